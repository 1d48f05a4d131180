"""Whole models by the kernels against the same models by the reference."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import babn
from babn.errors import UnsupportedAttentionError
from babn.kernels import dispatch
from models import (
    ALL,
    TEXT,
    Batch,
    Case,
    checkpoint_activations,
    encoder,
    floats,
    token_batch,
    without_dropout,
)

pytestmark = pytest.mark.thorough

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def placed(case: Case) -> Case:
    """The same case on the device whose kernels are tested."""

    def moved(batch: Batch) -> Batch:
        return {name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in batch.items()}

    answers = case.answers
    return replace(
        case,
        build=lambda: case.build().to(DEVICE),
        batch=lambda: moved(case.batch()),
        answers=None if answers is None else lambda batch: moved(answers(batch)),
    )


BY_NAME = {case.name: placed(case) for case in ALL}
SMALL_TEXT = {**TEXT, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL = placed(encoder("bert", "Bert", **SMALL_TEXT))  # the interpreter takes its time
# Self-attention with padding and without, causal and grouped heads; more among the slow ones.
CASES = [("bert", "keys"), ("vit", "heads"), ("llama", "keys")]
SLOW_CASES = [
    ("albert", "keys"),
    ("bert", "heads"),
    ("gpt2", "heads"),
    ("bart", "keys"),
    ("t5", "keys"),
    ("t5", "heads"),
    ("torch-encoder", "keys"),
]


def step(
    case: Case, kernel: str, checkpointing: bool = False, **settings: Any
) -> dict[str, torch.Tensor]:
    """Loss, KL of each layer and gradients of a training step at the posterior mean."""
    model = without_dropout(case.converted(kernel=kernel, sigma=0.01, **settings)).train()
    if checkpointing:
        checkpoint_activations(model)
    with babn.posterior_mean(model):
        loss = case.loss(model)
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    kl = {name: kl.detach() for name, kl in babn.kl_per_layer(model).items()}
    return {"loss": loss.detach(), **kl, **gradients}


def assert_steps_are_equal(case: Case, **settings: Any) -> None:
    assert_alike(step(case, "triton", **settings), step(case, "reference", **settings))


def assert_alike(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    for key, value in expected.items():
        # Some gradients are zero but for rounding, such as that of a softmax's common bias.
        size = max(float(value.abs().max()), 1e-3 * largest)
        gap = float((found[key] - value).abs().max()) / size
        assert gap < 1e-4, f"{key}: {gap:.1e} of {size:.1e}"


@pytest.mark.parametrize(("name", "upward"), CASES)
def test_a_training_step_equals_the_references(name: str, upward: str) -> None:
    assert_steps_are_equal(BY_NAME[name], upward=upward)


@pytest.mark.parametrize("padding", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_maps_over_keys_fill_whole_tiles(padding: int) -> None:
    case = placed(replace(SMALL, batch=lambda: token_batch(64, padding)))
    assert_steps_are_equal(case, upward="keys")
    model = case.converted(kernel="triton", upward="keys").eval()
    expected = case.converted(kernel="reference", upward="keys").eval()
    with torch.no_grad():
        found = [floats(each(**case.batch()))[0] for each in (model, expected)]
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("upward", ["keys", pytest.param("heads", marks=pytest.mark.slow)])
def test_checkpointing_keeps_the_gradients(upward: str) -> None:
    again = step(SMALL, "triton", checkpointing=True, upward=upward)
    assert_alike(again, step(SMALL, "reference", upward=upward))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "upward"), SLOW_CASES)
def test_a_training_step_equals_the_references_in_more_models(name: str, upward: str) -> None:
    assert_steps_are_equal(BY_NAME[name], upward=upward)


def compiled_gap(name: str, upward: str, length: int | None) -> float:
    """Difference between the losses of a compiled and an eager model, both by the kernels."""
    case = BY_NAME[name]
    if length is not None:
        case = placed(replace(case, batch=lambda: token_batch(length)))
    model = without_dropout(case.converted(kernel="triton", upward=upward)).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses = []
    for run in (model, compiled):
        with babn.posterior_mean(model):
            losses.append(run(**case.with_answers()).loss)
        losses[-1].backward()
    return float((losses[0] - losses[1]).detach().abs())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "upward", "length"),
    [("bert", "keys", None), ("bert", "keys", 64), ("vit", "heads", None)],
)
def test_compiled_models_take_the_kernels_too(
    name: str, upward: str, length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inherited by the other process, which may import Triton before anything of ours.
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as unchecked:
        assert unchecked.submit(compiled_gap, name, upward, length).result() < 1e-5


@pytest.mark.slow
def test_samples_vary_follow_the_seed_and_not_the_memory() -> None:
    case = BY_NAME["bert"]
    model = case.converted(kernel="triton", rho=0.5)
    batch = {"input_ids": case.batch()["input_ids"][:1]}
    first, other, tight = (
        babn.predict(model, batch, samples=3, seed=seed, memory=memory).sample_logits
        for seed, memory in [(0, None), (1, None), (0, 1e-9)]
    )
    torch.testing.assert_close(first, tight, atol=1e-5, rtol=1e-5)
    assert (first - other).abs().max() > 1e-3 and (first[0] - first[1]).abs().max() > 1e-3


@pytest.mark.slow
def test_samples_have_the_references_mean_and_spread() -> None:
    case = BY_NAME["bert"]
    batch = {"input_ids": case.batch()["input_ids"][:1]}
    drawn = [
        babn.predict(case.converted(kernel=kernel, rho=0.5), batch, samples=150).sample_logits
        for kernel in ("reference", "triton")
    ]
    error = drawn[0].std(0) * (2 / 150) ** 0.5
    assert ((drawn[0].mean(0) - drawn[1].mean(0)).abs() < 5 * error).all()
    torch.testing.assert_close(drawn[0].std(0), drawn[1].std(0), atol=0.0, rtol=0.4)


def test_weights_that_are_asked_for_come_from_the_reference() -> None:
    case = BY_NAME["bert"]
    model = case.converted(kernel="triton")
    output = model(**case.batch(), output_attentions=True)
    assert len(output.attentions) == 3 and output.attentions[0].shape[-1] == 9
    assert len(babn.attention_maps(model, case.batch())) == 3


def test_bam_and_its_constant_prior() -> None:
    case = BY_NAME["bert"]
    for prior in ("contextual", "constant"):
        losses = []
        for kernel in ("reference", "triton"):
            config = babn.BamConfig(kernel=kernel, prior=prior, alpha=0.4)
            torch.manual_seed(0)
            model = without_dropout(babn.convert(case.model(), config)).train()
            with babn.posterior_mean(model):
                losses.append(case.loss(model).detach())
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)


def test_a_forced_kernel_refuses_what_it_cannot_do() -> None:
    model = BY_NAME["bert"].converted(kernel="triton").double()
    with pytest.raises(UnsupportedAttentionError, match=r'kernel="triton".*float64'):
        model(**BY_NAME["bert"].batch())
    config = babn.BamConfig(family="lognormal", kernel="triton")
    lognormal = babn.convert(BY_NAME["bert"].model(), config)
    with pytest.raises(UnsupportedAttentionError, match="'bam' has no kernel"):
        lognormal(**BY_NAME["bert"].batch())


def test_older_gpus_and_other_makers_take_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for capability, reason in (((7, 5), "kernels need an NVIDIA GPU from Ampere"), ((9, 0), None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        dispatch.is_recent.cache_clear()
        found = dispatch.why_no_kernels(torch.device("cuda", 0), forced=True)
        assert found is None if reason is None else found.startswith(reason)
    assert dispatch.why_no_kernels(torch.device("cuda", 0), forced=False) is None
    dispatch.is_recent.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert dispatch.why_no_kernels(torch.device("cuda", 0), forced=True)
    dispatch.is_recent.cache_clear()


def test_softmax_goes_to_torchs_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_NAME["bert"]
    calls = []
    inner = torch.nn.functional.scaled_dot_product_attention

    def counting(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(args)
        return inner(*args, **kwargs)

    model = case.converted(sigma=0.0)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counting)
    with torch.no_grad():
        found = model(**case.batch())
    assert len(calls) == 3
    for x, y in zip(floats(case.model()(**case.batch())), floats(found), strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)
