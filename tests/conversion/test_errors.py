"""What goes wrong when a model is used is said at once, and leaves no trace."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import babn
from babn import errors
from models import CASES, Multihead, outputs, vector_batch


def test_reverting_an_unconverted_model() -> None:
    with pytest.raises(errors.NotConvertedError, match="BertForTokenClassification"):
        babn.revert(CASES["bert"].model())


@pytest.mark.parametrize(
    "use",
    [
        lambda model, batch: babn.predict(model, batch),
        lambda model, batch: babn.attention_maps(model, batch),
        lambda model, batch: babn.sampling(model).__enter__(),
        lambda model, batch: babn.posterior_mean(model).__enter__(),
        lambda model, batch: babn.recording_kl(model).__enter__(),
        lambda model, batch: babn.set_kl_weight(model, 1.0),
        lambda model, batch: babn.belief_kl(model),
        lambda model, batch: babn.kl_per_layer(model),
    ],
    ids=["predict", "attention", "sampling", "mean", "recording", "weight", "kl", "layers"],
)
def test_an_unconverted_model_is_refused_everywhere(use: Callable[..., Any]) -> None:
    with pytest.raises(errors.NotConvertedError, match=r"babn\.convert"):
        use(CASES["bert"].model(), CASES["bert"].batch())


def test_an_output_without_kl_is_refused() -> None:
    with pytest.raises(errors.NoKLError, match="recording_kl"):
        babn.kl_per_layer(CASES["bert"].model()(**CASES["bert"].batch()))


def test_more_keys_than_foreseen_at_run_time() -> None:
    model = CASES["bert"].converted(max_length=10)
    ids = torch.ones(1, 11, dtype=torch.long)

    with pytest.raises(errors.KeyLengthError, match=r"11 keys.*max_length=10.*max_length=11"):
        model(input_ids=ids)
    assert model(input_ids=ids[:, :10]).logits.shape == (1, 10, 2)


def test_maps_over_heads_have_no_limit() -> None:
    model = CASES["bert"].converted(max_length=8, upward="heads")

    assert model(input_ids=torch.ones(1, 20, dtype=torch.long)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("name", "path"),
    [("bert", "bert.encoder.layer.0.attention.self"), ("torch-encoder", "encoder.layers.0")],
)
def test_a_layer_outside_its_root(name: str, path: str) -> None:
    model = CASES[name].converted()
    hidden = torch.randn(1, 3, 32 if name == "bert" else 16)

    with pytest.raises(errors.NotConvertedError, match=rf"(?s){path}.*converted model itself"):
        model.get_submodule(path)(hidden)


def test_an_input_on_another_device() -> None:
    case = CASES["bert"]
    model, batch = case.converted(sigma=0.0), case.batch()

    with pytest.raises(RuntimeError, match="meta"):
        model(**{key: value.to("meta") for key, value in batch.items()})
    torch.testing.assert_close(outputs(model, batch), outputs(case.model(), batch))


class Loops(Multihead):
    """Applies its layers as often as requested."""

    def forward(self, x: Tensor, rounds: int) -> Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        for _ in range(rounds):
            x, _ = super().forward(x, padding)
        return x


def test_more_calls_than_in_the_dry_run() -> None:
    x = vector_batch()["x"]
    model = babn.convert(Loops(), babn.BeliefConfig.pairs(max_length=16), {"x": x, "rounds": 2})

    with pytest.raises(errors.ConversionError, match=r"layers\.0 was called 3 times.*2 times"):
        model(x, 3)
    assert model(x, 2).isfinite().all()


def raising(error: BaseException) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        raise error

    return hook


@pytest.mark.thorough
@pytest.mark.parametrize("error", [ValueError("stop"), KeyboardInterrupt()], ids=["error", "key"])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("bert", "bert.encoder.layer.1"),
        ("torch-encoder", "encoder.layers.1.linear1"),
        ("mpnet", "mpnet.encoder.layer.1.attention.attn.v"),
        ("handmade", "layers.1.value"),
    ],
)
def test_a_pass_that_broke_off_leaves_nothing_behind(
    name: str, path: str, error: BaseException
) -> None:
    case = CASES[name]
    model, batch = case.converted(sigma=0.1), case.batch()
    expected, kl = outputs(model, batch), babn.belief_kl(model)

    def break_off_and_try_again() -> None:
        broken = model.get_submodule(path).register_forward_pre_hook(raising(error))
        with pytest.raises(type(error)):
            model(**{key: value[:1] for key, value in batch.items()})
        broken.remove()
        torch.testing.assert_close(outputs(model, batch), expected)
        torch.testing.assert_close(babn.belief_kl(model), kl)

    with ThreadPoolExecutor(1) as pool:  # where other tests would not see what is left
        pool.submit(break_off_and_try_again).result()


def test_the_right_error_comes_when_another_hook_fails_first() -> None:
    model = CASES["bert"].converted()
    model.register_forward_pre_hook(raising(ValueError("mine")), prepend=True)

    with pytest.raises(ValueError, match="mine"):
        model(**CASES["bert"].batch())
