"""What is saved comes back bit for bit, and nothing else is taken for it."""

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import babn
from babn import tensor_files
from babn.attention.inputs import Scores
from babn.attention.method import AttentionMethod, ChainShape
from babn.attention.softmax import PointMass
from babn.conversion.state import belief_states
from babn.errors import (
    AlreadyConvertedError,
    BabnWarning,
    ConfigError,
    FormatError,
    MismatchError,
    NonFiniteError,
    StorageError,
)
from models import CASES, TEXT, Case, cases, enlarge, token_batch

DOUBTFUL = babn.BeliefConfig.pairs(max_length=32, rho=1.0)


def bert(**settings: Any) -> nn.Module:
    """The base; the same weights each time."""
    model = hf.BertForTokenClassification(hf.BertConfig(**{**TEXT, **settings}))
    return enlarge(model, 0.15).eval()


def converted_bert(config: babn.MethodConfig = DOUBTFUL) -> nn.Module:
    model = babn.convert(bert(), config)
    enlarge(model.babn, 0.1)
    babn.set_kl_weight(model, 0.25)
    return model


@torch.no_grad()
def answers(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """By the posterior mean, and sampled with a seed."""
    model.eval()
    return model(**batch).logits, babn.predict(model, batch, samples=3).sample_logits


def assert_same(model: nn.Module, other: nn.Module, batch: dict[str, Tensor]) -> None:
    assert all(map(torch.equal, answers(model, batch), answers(other, batch)))
    assert belief_states(model)[0].config == belief_states(other)[0].config
    assert babn.get_kl_weight(model) == babn.get_kl_weight(other)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(path: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A whole model."""
    converted_bert().save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def belief_folder(tmp_path: Path) -> Path:
    """Belief parameters alone."""
    return babn.save_adapter(converted_bert(), tmp_path)


ways_to_load = pytest.mark.parametrize(
    ("save", "load", "weights", "description"),
    [
        pytest.param(
            lambda m, d: m.save_pretrained(d),
            babn.load,
            "model.safetensors",
            "config.json",
            id="model",
        ),
        pytest.param(
            babn.save_adapter,
            lambda d: babn.load_adapter(bert(), d),
            "belief.safetensors",
            "belief.json",
            id="belief",
        ),
    ],
)


# What comes back


@pytest.mark.parametrize("case", cases("bert", "albert", "bart"))
def test_saved_model_comes_back(case: Case, tmp_path: Path) -> None:
    model = case.converted(rho=1.0)
    model.save_pretrained(tmp_path)
    loaded = babn.load(tmp_path)
    assert type(loaded) is type(model)
    assert_same(model, loaded, case.batch())


@pytest.mark.parametrize("case", cases("bert", "gpt2", "bart"))
def test_noise_per_key_comes_back(case: Case, tmp_path: Path) -> None:
    model = case.with_key_noise()
    model.save_pretrained(tmp_path / "model")
    assert_same(model, babn.load(tmp_path / "model"), case.batch())
    folder = babn.save_adapter(model, tmp_path / "belief")
    assert_same(model, babn.load_adapter(case.model(), folder), case.batch())


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("bert", "albert", "bart"))
def test_names_in_the_file_are_those_of_the_model(case: Case, tmp_path: Path) -> None:
    model = case.converted()
    model.save_pretrained(tmp_path)
    own, saved = set(model.state_dict()), set(load_file(tmp_path / "model.safetensors"))
    assert saved <= own
    assert {n for n in own if n.startswith("babn.")} == {n for n in saved if "babn" in n}


@pytest.mark.thorough
def test_model_in_several_files(tmp_path: Path) -> None:
    model = converted_bert()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_same(model, babn.load(tmp_path), token_batch())


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("bert", "albert", "bart"))
def test_plain_loading_gives_the_deterministic_model(case: Case, tmp_path: Path) -> None:
    model = case.converted()
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path)
    expected = babn.revert(model)(**case.batch()).logits
    assert not hasattr(plain, "babn")
    assert torch.equal(plain(**case.batch()).logits, expected)


def test_deterministic_model_is_not_taken_for_a_converted_one(
    model_folder: Path, tmp_path: Path
) -> None:
    hf.BertForTokenClassification.from_pretrained(model_folder).save_pretrained(tmp_path / "plain")
    with pytest.raises((FormatError, MismatchError)):
        babn.load(tmp_path / "plain")


def test_model_saved_after_revert_was_never_converted(tmp_path: Path) -> None:
    babn.revert(converted_bert()).save_pretrained(tmp_path)
    assert "babn" not in (tmp_path / "config.json").read_text()
    assert not any("babn" in name for name in load_file(tmp_path / "model.safetensors"))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on CPUs without bf16
def test_half_precision_model_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    model = converted_bert().to(dtype)
    model.save_pretrained(tmp_path)
    loaded = babn.load(tmp_path)
    assert loaded.classifier.weight.dtype == dtype
    assert_same(model, loaded, token_batch())


def test_loaded_model_saves_itself_again(model_folder: Path, tmp_path: Path) -> None:
    first = babn.load(model_folder)
    first.save_pretrained(tmp_path / "again")
    assert_same(first, babn.load(tmp_path / "again"), token_batch())


def test_loaded_model_reverts(model_folder: Path) -> None:
    expected = bert()(**token_batch()).logits
    assert torch.equal(babn.revert(babn.load(model_folder))(**token_batch()).logits, expected)


def test_belief_alone_on_an_untouched_base(tmp_path: Path) -> None:
    model = converted_bert()
    folder = babn.save_adapter(model, tmp_path / "new" / "folder")
    assert_same(model, babn.load_adapter(bert(), folder), token_batch())


def test_belief_files_hold_the_belief_alone(belief_folder: Path) -> None:
    numbers = sum(t.numel() for t in converted_bert().babn.state_dict().values())
    assert {file.name for file in belief_folder.iterdir()} == {"belief.json", "belief.safetensors"}
    assert 4 * numbers < (belief_folder / "belief.safetensors").stat().st_size < 4 * numbers + 16000


@pytest.mark.thorough
@pytest.mark.parametrize("case", cases("gpt2", "bart", "vit", "torch-encoder"))
def test_belief_of_every_kind_of_model(case: Case, tmp_path: Path) -> None:
    model = case.converted(rho=1.0)
    babn.save_adapter(model, tmp_path)
    loaded = babn.load_adapter(case.model(), tmp_path, example_inputs=case.example)
    samples = (babn.predict(m, case.batch(), samples=2).sample_logits for m in (model, loaded))
    assert torch.equal(*samples)


def test_state_of_a_torch_model() -> None:
    case = CASES["torch-encoder"]
    model = case.converted(rho=1.0)
    other = babn.convert(case.model(), model.babn.config, case.example)
    other.load_state_dict(model.state_dict())
    samples = (babn.predict(m, case.batch(), samples=2).sample_logits for m in (model, other))
    assert torch.equal(*samples)


class WarmMethod(AttentionMethod):
    """Softmax at a temperature of its own."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, step: int, scores: Scores, upward: Any) -> PointMass:
        return PointMass(Scores(scores.phi / self.temperature, scores.mask, scores.key))


@dataclass(frozen=True, kw_only=True)
class WarmConfig(babn.MethodConfig):
    name: ClassVar[str] = "warm"

    temperature: float = 2.0

    def build(self, shape: ChainShape) -> WarmMethod:
        return WarmMethod(self.temperature)


@pytest.mark.thorough
@ways_to_load
def test_method_of_ones_own(
    save: Any, load: Any, weights: str, description: str, tmp_path: Path
) -> None:
    model = babn.convert(bert(), WarmConfig(temperature=3.0))
    model.babn.rules[0].temperature.data.fill_(4.0)
    save(model, tmp_path)
    loaded = load(tmp_path)
    assert loaded.babn.config == WarmConfig(temperature=3.0)
    assert_same(model, loaded, token_batch())
    assert not torch.equal(answers(loaded, token_batch())[0], bert()(**token_batch()).logits)


# What is refused


@pytest.mark.thorough
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: CASES["gpt2"].model(), id="architecture"),
        pytest.param(lambda: bert(num_hidden_layers=2), id="fewer-layers"),
        pytest.param(lambda: bert(num_hidden_layers=5), id="more-layers"),
        pytest.param(lambda: bert(num_attention_heads=2), id="heads"),
        pytest.param(lambda: bert(hidden_size=64), id="head-size"),
    ],
)
def test_belief_of_another_model_is_refused(belief_folder: Path, other: Any) -> None:
    base = other()
    with pytest.raises(MismatchError, match="chains"):
        babn.load_adapter(base, belief_folder)
    assert not hasattr(base, "babn")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change", [{"num_hidden_layers": 1}, {"num_hidden_layers": 5}, {"num_attention_heads": 2}]
)
def test_model_of_another_shape_is_refused(model_folder: Path, change: dict[str, int]) -> None:
    with pytest.raises(MismatchError):
        babn.load(model_folder, **change)


def test_model_of_another_class_is_refused(model_folder: Path) -> None:
    with pytest.raises(MismatchError, match="BertModel"):
        babn.load(model_folder, model_class=hf.BertModel)


@pytest.mark.thorough
def test_class_that_transformers_does_not_have_is_asked_for(model_folder: Path) -> None:
    edit_json(model_folder / "config.json", architectures=["Nobody"])
    with pytest.raises(FormatError, match="model_class"):
        babn.load(model_folder)
    assert babn.load(model_folder, model_class=hf.BertForTokenClassification)


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[::-1]])
@ways_to_load
def test_damaged_weights_are_refused(
    save: Any, load: Any, weights: str, description: str, damage: Any, tmp_path: Path
) -> None:
    save(converted_bert(), tmp_path)
    path = tmp_path / weights
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FormatError, match=weights):
        load(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
@ways_to_load
def test_damaged_description_is_refused(
    save: Any, load: Any, weights: str, description: str, text: str, tmp_path: Path
) -> None:
    save(converted_bert(), tmp_path)
    (tmp_path / description).write_text(text)
    with pytest.raises(FormatError, match=description):
        load(tmp_path)


@pytest.mark.parametrize("binary", [b"\xff\xfe\x00", b"\x80"])
def test_description_that_is_not_text_is_refused(belief_folder: Path, binary: bytes) -> None:
    (belief_folder / "belief.json").write_bytes(binary)
    with pytest.raises(FormatError, match=r"belief\.json"):
        babn.load_adapter(bert(), belief_folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"format": 99},
        {"rule": None},
        {"rule": "belief"},
        {"rule": {"rule": "nobody"}},
        {"rule": {"rule": "belief", "rho": -1.0}},
        {"chains": []},
        {"chains": [{"name": "x", "calls": []}]},
        {"chains": [{"name": "x", "calls": [{"path": "y"}]}]},
    ],
    ids=str,
)
@ways_to_load
def test_description_of_something_else_is_refused(
    save: Any,
    load: Any,
    weights: str,
    description: str,
    change: dict[str, Any],
    tmp_path: Path,
    as_installed: None,
) -> None:
    save(converted_bert(), tmp_path)
    path = tmp_path / description
    if description == "config.json":
        change = {"babn": {**json.loads(path.read_text())["babn"], **change}}
    edit_json(path, **change)
    with pytest.raises((FormatError, ConfigError, MismatchError)):
        load(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("missing", ["weights", "description", "folder"])
@ways_to_load
def test_missing_files_are_named(
    save: Any, load: Any, weights: str, description: str, missing: str, tmp_path: Path
) -> None:
    save(converted_bert(), tmp_path / "saved")
    for name in {"weights": [weights], "description": [description]}.get(missing, []):
        (tmp_path / "saved" / name).unlink()
    with pytest.raises(FormatError, match=r"does not exist|has no model"):
        load(tmp_path / ("other" if missing == "folder" else "saved"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@ways_to_load
def test_weights_that_are_not_numbers_are_refused(
    save: Any, load: Any, weights: str, description: str, bad: float, tmp_path: Path
) -> None:
    model = converted_bert()
    next(model.babn.parameters()).data[0] = bad
    save(model, tmp_path)
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        load(tmp_path)


def test_base_weights_that_are_not_numbers_are_refused(model_folder: Path) -> None:
    edit_tensors(
        model_folder / "model.safetensors", lambda t: t["classifier.bias"].fill_(torch.nan)
    )
    with pytest.raises(NonFiniteError, match=r"classifier\.bias"):
        babn.load(model_folder)


def test_missing_base_weights_are_not_made_up(model_folder: Path) -> None:
    edit_tensors(model_folder / "model.safetensors", lambda t: t.pop("classifier.weight"))
    with pytest.raises((FormatError, MismatchError), match=r"classifier\.weight"):
        babn.load(model_folder)


def test_folder_that_was_never_converted_is_refused(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    with pytest.raises(FormatError, match="describes no conversion"):
        babn.load(tmp_path)


def test_belief_on_a_converted_model_is_refused(belief_folder: Path) -> None:
    model = converted_bert()
    expected = answers(model, token_batch())
    with pytest.raises(AlreadyConvertedError, match="revert"):
        babn.load_adapter(model, belief_folder)
    assert all(map(torch.equal, answers(model, token_batch()), expected))


def wrong_shape(tensors: dict[str, Tensor]) -> None:
    tensors["rules.0.prior_nets.0.inner.bias"] = torch.zeros(3)


WRONG = [
    pytest.param(lambda t: t.pop("kl_weight"), id="missing"),
    pytest.param(lambda t: t.update(more=torch.zeros(1)), id="unknown"),
    pytest.param(wrong_shape, id="shape"),
]


@pytest.mark.parametrize("change", WRONG)
def test_belief_that_does_not_fit_leaves_the_base_alone(belief_folder: Path, change: Any) -> None:
    edit_tensors(belief_folder / "belief.safetensors", change)
    base = bert()
    expected = base(**token_batch()).logits
    with pytest.raises(MismatchError, match="does not fit"):
        babn.load_adapter(base, belief_folder)
    assert not hasattr(base, "babn")
    assert torch.equal(base(**token_batch()).logits, expected)


DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


@pytest.mark.parametrize("name", ["config.json", "checksums.json"])
def test_json_nested_too_deeply_is_refused(model_folder: Path, name: str) -> None:
    (model_folder / name).write_text(DEEP)
    with pytest.raises(FormatError, match=rf"{name} is not JSON: it is nested too deeply"):
        babn.load(model_folder)


def test_beliefs_described_by_json_nested_too_deeply_are_refused(belief_folder: Path) -> None:
    (belief_folder / "belief.json").write_text(DEEP)
    with pytest.raises(FormatError, match=r"belief\.json is not JSON: it is nested too deeply"):
        babn.load_adapter(bert(), belief_folder)


LARGE = [
    {"max_length": 10**7},
    {"max_length": 2**31 - 1},
    {"prior_hidden": 2**31 - 1},
]


@pytest.mark.thorough
@pytest.mark.parametrize("settings", LARGE, ids=str)
@ways_to_load
def test_maps_larger_than_their_file_are_refused_before_they_are_made(
    save: Any, load: Any, weights: str, description: str, settings: Any, tmp_path: Path
) -> None:
    save(converted_bert(), tmp_path)
    values = json.loads((tmp_path / description).read_text())
    values.get("babn", values)["rule"].update(settings)
    edit_json(tmp_path / description, **values)
    if description == "belief.json":
        edit_tensors(tmp_path / weights, lambda tensors: None)  # takes its own description away
    with pytest.raises((MismatchError, FormatError), match=r"does not fit|is damaged"):
        load(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [{"head_dim": -5}, {"heads": 0}, {"heads": 1.5}, {"keys": 10**30}, {"path": 3}, {"order": "x"}],
    ids=str,
)
def test_calls_of_impossible_values_are_refused(
    belief_folder: Path, change: dict[str, Any], as_installed: None
) -> None:
    chains = json.loads((belief_folder / "belief.json").read_text())["chains"]
    chains[0]["calls"][0] |= change
    edit_json(belief_folder / "belief.json", chains=chains)
    edit_tensors(belief_folder / "belief.safetensors", lambda tensors: None)
    with pytest.raises(FormatError, match=rf"belief\.json is damaged: {next(iter(change))}="):
        babn.load_adapter(bert(), belief_folder)


def test_calls_of_modules_that_the_base_does_not_have_are_refused(belief_folder: Path) -> None:
    """Also where the numbers of layers and heads agree."""
    chains = json.loads((belief_folder / "belief.json").read_text())["chains"]
    chains[0]["calls"][0]["path"] = "nowhere"
    edit_json(belief_folder / "belief.json", chains=chains)
    edit_tensors(belief_folder / "belief.safetensors", lambda tensors: None)
    base = bert()
    with pytest.raises(MismatchError, match="BertForTokenClassification has nothing there"):
        babn.load_adapter(base, belief_folder)
    assert not hasattr(base, "babn")


# How a base is recognised


def test_another_head_is_refused(belief_folder: Path) -> None:
    base = bert()
    base.classifier.reset_parameters()
    with pytest.raises(MismatchError, match=r"classifier\.weight, classifier\.bias differ"):
        babn.load_adapter(base, belief_folder)
    assert not hasattr(base, "babn")
    assert hasattr(babn.load_adapter(base, belief_folder, check_base=False), "babn")


def test_an_adapter_without_checksums_of_its_base_loads_with_a_warning(belief_folder: Path) -> None:
    values = json.loads((belief_folder / "belief.json").read_text())
    del values["base_weights"]
    (belief_folder / "belief.json").write_text(json.dumps(values))
    edit_tensors(belief_folder / "belief.safetensors", lambda tensors: None)
    with pytest.warns(BabnWarning, match="could not be verified"):
        babn.load_adapter(bert(), belief_folder)


def without_key_noise(description: dict[str, Any]) -> None:
    """Makes a description one of a version that had noise over pairs alone."""
    del description["rule"]["noise_over"]
    for call in itertools.chain(*(chain["calls"] for chain in description["chains"])):
        del call["rowwise"]


@ways_to_load
def test_descriptions_without_noise_over_are_of_pairs(
    save: Any, load: Any, weights: str, description: str, tmp_path: Path
) -> None:
    model = converted_bert()
    save(model, tmp_path)
    path = tmp_path / description
    values = json.loads(path.read_text())
    without_key_noise(values.get("babn", values))
    path.write_text(json.dumps(values))
    edit_tensors(tmp_path / weights, lambda tensors: None)
    loaded = load(tmp_path)
    assert loaded.babn.config == DOUBTFUL and DOUBTFUL.noise_over == "pairs"
    assert_same(model, loaded, token_batch())


def test_a_changed_description_beside_whole_weights_is_refused(belief_folder: Path) -> None:
    values = json.loads((belief_folder / "belief.json").read_text())
    values["other_name"] = values.pop("base_weights")
    (belief_folder / "belief.json").write_text(json.dumps(values))
    with pytest.raises(FormatError, match=r"belief\.json is damaged: it differs"):
        babn.load_adapter(bert(), belief_folder)


@pytest.mark.thorough
@pytest.mark.parametrize("base", [3, {"weights": 1}, {"weights": {"classifier.bias": 1}}, {"x": 1}])
def test_a_damaged_fingerprint_is_named(belief_folder: Path, base: Any) -> None:
    edit_json(belief_folder / "belief.json", base_weights=base)
    edit_tensors(belief_folder / "belief.safetensors", lambda tensors: None)
    with pytest.raises(FormatError, match="base_weights is not the fingerprint"):
        babn.load_adapter(bert(), belief_folder)


# What an interruption leaves


def test_interrupted_saving_leaves_the_old_files(
    belief_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_a_file(tensors: Any, path: Path, about: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    before = {file.name: file.read_bytes() for file in belief_folder.iterdir()}
    monkeypatch.setattr(tensor_files, "save_file", half_a_file)
    with pytest.raises(OSError, match="disk full"):
        babn.save_adapter(babn.convert(bert(), babn.BamConfig()), belief_folder)
    assert {file.name: file.read_bytes() for file in belief_folder.iterdir()} == before


def test_interruption_between_the_files_leaves_the_new_weights_whole(
    belief_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights beside an old description are not taken for what that describes."""

    def fail(*args: Any, **others: Any) -> None:
        raise OSError("disk full")

    old = (belief_folder / "belief.json").read_text()
    model = babn.convert(bert(), babn.BamConfig())
    with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"belief\.json"):
        patch.setattr(Path, "write_text", fail)
        babn.save_adapter(model, belief_folder)
    assert (belief_folder / "belief.json").read_text() == old
    assert_same(model, babn.load_adapter(bert(), belief_folder), token_batch())


@pytest.mark.slow
def test_loading_while_another_thread_saves(tmp_path: Path) -> None:
    """Two sets of beliefs by turns: a reader finds one or the other, whole."""
    models = [converted_bert(), converted_bert(babn.BamConfig())]
    babn.save_adapter(models[0], tmp_path)
    stop = threading.Event()

    def save() -> None:
        for model in itertools.cycle(models):
            if stop.is_set():
                return
            babn.save_adapter(model, tmp_path)

    methods = set()
    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(save)
        try:
            for _ in range(25):
                methods.add(babn.load_adapter(bert(), tmp_path).babn.config.name)
        finally:
            stop.set()
        saving.result()
    assert methods == {"belief", "bam"}


def test_saving_again_replaces_what_was_there(belief_folder: Path) -> None:
    model = babn.convert(bert(), babn.BamConfig())
    babn.save_adapter(model, belief_folder)
    assert_same(model, babn.load_adapter(bert(), belief_folder), token_batch())


def test_two_converted_models_in_one_are_not_saved_as_one(tmp_path: Path) -> None:
    pair = nn.ModuleList([converted_bert(), converted_bert()])
    with pytest.raises(MismatchError, match="2 converted models"):
        babn.save_adapter(pair, tmp_path)
