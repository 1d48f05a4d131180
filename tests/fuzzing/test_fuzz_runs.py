"""Commands on runs and models whose files are damaged, and on settings of any value."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from broken_files import as_installed, damaged, fuzzed, numbers, result_or_error, toml, values
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import babn
from babn.cli._app import app
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from models import TEXT
from vqa_cases import tiny as tiny_visual

pytestmark = pytest.mark.thorough

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
TINY: dict[str, Any] = {
    "task": "mrpc",
    "model": "small",
    "data": "builtin",
    "steps": 1,
    "batch_size": 2,
    "max_length": 8,
    "samples": 2,
}
NUMBERS = {
    *("steps", "batch_size", "batch_tokens", "accumulation", "warmup_steps", "max_length", "seed"),
    *("buckets", "samples", "checkpoint_every", "test_every", "epochs", "learning_rate", "warmup"),
    *("belief_rate", "beta2", "weight_decay", "clip", "dropout", "classifier_dropout"),
    *("label_smoothing", "kl_warmup", "settings.rho", "settings.sigma", "settings.kl_weight"),
    *("settings.max_length", "settings.layers"),
}


def invoke(*words: str) -> str:
    """What a command says; it ends well, or with an error of one line."""
    with as_installed():
        result = RUNNER.invoke(app(), list(words))
    ended = result.exception is None or isinstance(result.exception, SystemExit)
    assert ended, (words, result.exc_info)
    assert result.exit_code == 0 or (
        result.exit_code == 2 and result.output.lower().count("error") >= 1
    ), result.output
    return str(result.output)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "run"
    run(Experiment.from_dict(TINY), folder)
    return folder


def files_of(folder: Path) -> list[str]:
    """Names of a folder's files, the same in every run."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
    return [name for name in names if (folder / name).is_file() and "tensorboard" not in name]


def with_damage(
    folder: Path, names: list[str], data: st.DataObject, work: Callable[[], object]
) -> None:
    """Damages one of some files while something is done."""
    path = folder / data.draw(st.sampled_from(names))
    content = path.read_bytes()
    path.write_bytes(data.draw(damaged(content)))
    before = {name: (folder / name).read_bytes() for name in files_of(folder)}
    try:
        work()
    finally:
        for name, each in before.items():
            (folder / name).write_bytes(each)
        path.write_bytes(content)


@pytest.mark.slow
@fuzzed
@given(data=st.data())
def test_results_of_damaged_runs(done: Path, data: st.DataObject) -> None:
    names = [name for name in files_of(done) if not name.startswith("model/")]
    with_damage(done, names, data, lambda: invoke("evaluate", str(done)))


@fuzzed
@given(data=st.data())
def test_going_on_with_damaged_runs(done: Path, data: st.DataObject, tmp_path: Path) -> None:
    """A finished run: nothing is trained, and all of it is read."""
    names = ["experiment.toml", "results.json", "environment.json", "log.jsonl"]
    config = tmp_path / "tiny.toml"
    config.write_text("\n".join(f"{name} = {toml(value)}" for name, value in TINY.items()))
    words = ["train", str(config), "--out", str(done), "--resume"]
    with_damage(done, names, data, lambda: invoke(*words))


@fuzzed(cost=10)
@given(data=st.data())
def test_reports_of_damaged_runs(done: Path, data: st.DataObject, tmp_path: Path) -> None:
    names = [name for name in files_of(done) if name.startswith("predictions/")]
    out = tmp_path / "report"
    with_damage(done, names, data, lambda: invoke("report", str(done), "--out", str(out)))
    shutil.rmtree(out, ignore_errors=True)


@pytest.mark.slow
@fuzzed(cost=5)
@given(data=st.data())
def test_asking_damaged_models_again(done: Path, data: st.DataObject, tmp_path: Path) -> None:
    names = [name for name in files_of(done) if name.startswith("model/")]
    copy = tmp_path / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(done, copy)
    if data.draw(st.booleans()):
        (copy / "model/checksums.json").unlink()
        names.remove("model/checksums.json")
    with_damage(copy, names, data, lambda: invoke("evaluate", str(copy), "--again"))


@pytest.mark.slow
@fuzzed(cost=5)
@given(name=st.sampled_from(sorted(NUMBERS)), value=numbers)
def test_training_with_any_number(name: str, value: float, tmp_path: Path) -> None:
    if name in ("steps", "epochs", "samples") and value > 3:
        value = 3  # more would only take longer
    config = tmp_path / "tiny.toml"
    config.write_text("\n".join(f"{n} = {toml(v)}" for n, v in TINY.items()))
    words = ["train", str(config), "--out", str(tmp_path / "run"), "--overwrite"]
    more = ["--set", "steps=0"] if name == "epochs" else []
    invoke(*words, *more, "--set", f"{name}={toml(value)}")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    model = babn.convert(base(), babn.BeliefConfig.pairs(max_length=16))
    model.save_pretrained(folder / "model")
    babn.save_adapter(model, folder / "belief")
    return folder


def base() -> hf.BertForTokenClassification:
    torch.manual_seed(0)
    return hf.BertForTokenClassification(hf.BertConfig(**TEXT)).eval()


@fuzzed
@given(data=st.data())
def test_damaged_models(saved: Path, data: st.DataObject) -> None:
    folder = saved / "model"
    names = ["config.json", "model.safetensors"]
    with_damage(folder, names, data, lambda: result_or_error(lambda: babn.load(folder)))


def with_other_values(
    folder: Path, name: str, data: st.DataObject, work: Callable[[], object]
) -> None:
    """Gives one field of a JSON file another value while something is done."""
    path = folder / name
    content = path.read_text()
    changed = json.loads(content)
    at = changed
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        keys = [key for key in keys if key != "num_hidden_layers"]  # many take long to build
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(st.one_of(values, st.sampled_from([10**6, 10**9, 10**12, -5, None])))
    path.write_text(json.dumps(changed))
    try:
        work()
    finally:
        path.write_text(content)


@fuzzed
@given(data=st.data())
def test_configurations_of_any_value(saved: Path, data: st.DataObject) -> None:
    folder = saved / "model"
    work = lambda: result_or_error(lambda: babn.load(folder))  # noqa: E731
    with_other_values(folder, "config.json", data, work)


@pytest.mark.filterwarnings("ignore::babn.errors.BabnWarning")  # of a base without checksums
@fuzzed
@given(data=st.data())
def test_descriptions_of_any_value(saved: Path, bare: Path, data: st.DataObject) -> None:
    work = lambda: result_or_error(lambda: babn.load_adapter(base(), bare), str(bare))  # noqa: E731
    with_other_values(bare, "belief.json", data, work)


@pytest.fixture(scope="module")
def bare(saved: Path) -> Path:
    """Beliefs whose weights do not hold their description too."""
    folder = saved / "bare"
    shutil.copytree(saved / "belief", folder)
    tensors = load_file(folder / "belief.safetensors")
    save_file(tensors, folder / "belief.safetensors")
    return folder


@fuzzed
@given(data=st.data())
def test_damaged_beliefs(saved: Path, data: st.DataObject) -> None:
    folder = saved / "belief"
    work = lambda: result_or_error(lambda: babn.load_adapter(base(), folder), str(folder))  # noqa: E731
    with_damage(folder, files_of(folder), data, work)


@pytest.fixture(scope="module")
def visual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visual") / "run"
    run(tiny_visual(steps=1, samples=2), folder)
    return folder


@pytest.mark.slow
@fuzzed(cost=5)
@given(
    question=st.text(max_size=30),
    samples=st.integers(-1, 3),
    image=st.binary(max_size=100),
    ending=st.sampled_from([".png", ".jpg", ".npz", "", ".txt"]),
)
def test_questions_about_any_image(
    question: str, samples: int, image: bytes, ending: str, visual: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"image{ending}"
    path.write_bytes(image)
    more = ["--question", question.replace("\0", " "), "--samples", str(samples)]
    invoke("vqa", str(visual), "--image", str(path), *more)


# What fuzzing has found.

DEEP = "[" * 3000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("results.json", '{"measures": {"dev": {"mean": {"accuracy": 1}}}}', ()),
        ("predictions/dev-mean/evaluation.json", DEEP, ()),
        ("model/config.json", "[]", ("--again",)),
        ("model/config.json", DEEP, ("--again",)),
        ("model/config.json", '{"model_type": "bert"}', ("--again",)),
        ("model/tokenizer.json", "{}", ("--again",)),
    ],
)
def test_damage_that_had_a_traceback(
    name: str, content: str, words: tuple[str, ...], done: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    (copy / "model/checksums.json").unlink()
    (copy / name).write_text(content)
    assert "error: " in invoke("evaluate", str(copy), *words)


@pytest.mark.parametrize("name", ["dropout", "classifier_dropout"])
@pytest.mark.parametrize("value", [-2.0, 1.0, 7e16])
def test_dropout_rates_are_shares(name: str, value: float) -> None:
    with pytest.raises(babn.errors.ConfigError, match=f"{name}=.*Give a rate below 1"):
        Experiment.from_dict(TINY | {name: value})
