"""The attention of both models, converted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pair_cases import KINDS, METHODS, PAIRS, SEP, chooser, classifier, converted, encoded
from torch import Tensor

import babn
from babn.conversion.layer_kl import nearest
from models import assert_same_weights

pytestmark = pytest.mark.thorough

STOCHASTIC = ("bam", "belief", "heads")
LABELS = torch.tensor([0, 1, 2])


def kl_values(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    model(**batch)
    return babn.kl_per_layer(model)


@pytest.mark.parametrize("kind", KINDS)
def test_every_direction_is_a_chain_of_its_own(kind: str) -> None:
    found = babn.inspect(classifier(kind))
    cross = ["network.premise.cross_attention", "network.hypothesis.cross_attention"]
    within = ["network.premise.self_attention", "network.hypothesis.self_attention"]

    assert [chain.name for chain in found.chains] == (within if kind == "intra" else []) + cross
    assert all(len(chain.calls) == 1 for chain in found.chains)
    assert [chain.calls[0].crossed for chain in found.chains[-2:]] == [True, True]
    assert not found.skipped
    first, second = (chain.calls[0] for chain in found.chains[-2:])
    assert (first.queries, first.keys) == (second.keys, second.queries)
    for name in cross:
        assert name in str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_do_not_depend_on_the_lengths_of_the_example(kind: str) -> None:
    examples = [encoded([([5, 6], [7, 8])]), encoded([([5, 6], [7])]), None]
    found = [babn.inspect(classifier(kind), example).chains for example in examples]
    names = [[(c.name, len(c.calls), c.calls[0].crossed) for c in chains] for chains in found]

    assert names[0] == names[1] == names[2]


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_changes_nothing(kind: str) -> None:
    model, batch = classifier(kind), encoded(PAIRS)
    before = model(**batch).logits
    after = babn.convert(model, babn.SoftmaxConfig())(**batch).logits

    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)
    assert torch.equal(babn.revert(model)(**batch).logits, before)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_softmax_without_scale_noise(kind: str) -> None:
    model, batch = classifier(kind), encoded(PAIRS)
    before = model(**batch).logits
    babn.convert(model, babn.BeliefConfig.pairs(max_length=16, sigma=0.0))

    torch.testing.assert_close(model(**batch).logits, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str, method: str) -> None:
    """Also not in the KL, of which a batch has the mean over its examples."""
    model = converted(kind, method)
    singles = [encoded([pair]) for pair in PAIRS]
    logits = torch.cat([model(**single).logits for single in singles])
    kl = [kl_values(model, single) for single in singles]
    means = {name: torch.stack([each[name] for each in kl]).mean() for name in kl[0]}

    for batch in (encoded(PAIRS), encoded(PAIRS, extra=3), encoded(PAIRS, extra=3, left=True)):
        torch.testing.assert_close(model(**batch).logits, logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(kl_values(model, batch), means, rtol=1e-4, atol=0)
    assert (len(means) > 0) == (method != "softmax")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_masked_keys_get_no_weight(kind: str, method: str) -> None:
    model = converted(kind, method)
    lengths = {
        "premise": torch.tensor([len(a) + 1 for a, _ in PAIRS]),
        "hypothesis": torch.tensor([len(b) + 1 for _, b in PAIRS]),
    }
    for each in babn.attention_maps(model, encoded(PAIRS, extra=2)):
        own = each.name.split(".")[1]
        other = own if "self" in each.name else ({*lengths} - {own}).pop()
        rows = torch.arange(each.mean.shape[2]) < lengths[own][:, None]
        keys = torch.arange(each.mean.shape[3]) < lengths[other][:, None]
        seen = (rows[:, :, None] & keys[:, None])[:, None]
        assert (each.mean[~seen] == 0).all()
        torch.testing.assert_close(each.mean.sum(-1), rows[:, None].float())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter(kind: str, method: str) -> None:
    torch.manual_seed(0)
    model = converted(kind, method)
    model.eval() if method == "softmax" else model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model(**encoded(PAIRS), labels=LABELS).loss.backward()

    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("method", STOCHASTIC)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_differ_and_can_be_repeated(kind: str, method: str) -> None:
    model = converted(kind, method)
    first, again, other = (babn.predict(model, encoded(PAIRS), 4, seed=s) for s in (0, 0, 1))

    assert first.sample_probs.shape == (4, 3, 3)
    assert torch.equal(first.sample_probs, again.sample_probs)
    assert not torch.equal(first.sample_probs, other.sample_probs)
    assert first.sample_probs.std(0).max() > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind: str, method: str, tmp_path: Path) -> None:
    model, batch = converted(kind, method), encoded(PAIRS)
    model.save_pretrained(tmp_path / "whole")
    loaded = babn.load(tmp_path / "whole").eval()
    assert type(loaded) is type(model)
    assert_same_weights(loaded, model)
    torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits)

    babn.save_adapter(model, tmp_path / "belief")
    filled = babn.load_adapter(classifier(kind), tmp_path / "belief")
    assert_same_weights(filled, model)
    torch.testing.assert_close(filled(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_choosers_convert_too(kind: str, tmp_path: Path) -> None:
    model = babn.convert(chooser(kind), METHODS["belief"])
    batch = {name: x[None] for name, x in encoded(PAIRS).items()}
    model.train()(**batch, labels=torch.tensor([1])).loss.backward()
    model.eval().save_pretrained(tmp_path)

    assert all(p.grad.isfinite().all() for p in model.parameters())
    loaded = babn.load(tmp_path)
    assert_same_weights(loaded, model)
    torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits)
    assert babn.predict(model, batch, 3).sample_probs.shape == (3, 1, 3)


def test_relatives_of_a_call_in_the_model() -> None:
    paths = ["a.self", "b.self", "a.other.self"]
    assert nearest("a.cross", paths[:2]) == "a.self"
    assert nearest("a.cross", paths) == "a.other.self"  # as near, and later
    assert nearest("cross", paths[:2]) == "b.self"
    assert nearest("b.self", paths) == "b.self"


def test_longer_texts_than_maps_are_refused() -> None:
    model = babn.convert(classifier("esim"), babn.BeliefConfig.pairs(max_length=8))
    with pytest.raises(babn.errors.KeyLengthError, match="max_length=9"):
        model(**encoded([([5], [6] * 8)]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_without_a_counterpart_is_no_trouble(kind: str) -> None:
    model = converted(kind, "belief").train()
    output = model(torch.tensor([[5, 6], [7, SEP]]), labels=LABELS[:2])
    output.loss.backward()

    assert output.loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", [None, *METHODS])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_no_trouble_on_a_gpu(
    kind: str, method: str | None, precision: torch.dtype
) -> None:
    """Rows of queries that are padding have no key at all, which kernels must stand."""
    model = (classifier(kind) if method is None else converted(kind, method)).cuda().train()
    batch = {name: x.cuda() for name, x in encoded(PAIRS, extra=3).items()}
    with torch.autocast("cuda", precision, enabled=precision != torch.float32):
        output = model(**batch, labels=LABELS.cuda())
    output.loss.backward()

    assert output.logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
