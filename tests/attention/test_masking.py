"""Masked keys take part in nothing, whatever the method."""

import pytest
import torch
from attention_cases import (
    CONFIGS,
    causal,
    make_method,
    make_scores,
    padding,
    posterior_of,
    readings,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from babn.attention.inputs import Scores
from babn.attention.masking import (
    from_ranks,
    in_rank_order,
    log_normalize,
    normalize,
    ranks,
    tokens_seen,
    zero_masked,
)

methods = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
beliefs = pytest.mark.parametrize("name", ["belief-keys", "belief-heads", "belief-raw"])
modest = settings(max_examples=40, deadline=None, derandomize=True, database=None)

# Both examples have padding; their queries see different keys.
MASK = padding(4, 3, keys=5) & causal(5)[:, :, 1:]
LEFT = padding(4, 3, keys=5, left=True)


@st.composite
def masks(draw):
    keys = draw(st.integers(1, 7))
    rows = st.lists(st.booleans(), min_size=keys, max_size=keys)
    return torch.tensor(draw(st.lists(rows, min_size=3, max_size=3)))[None, None]


@methods
@pytest.mark.parametrize("mask", [MASK, LEFT], ids=["right", "left"])
def test_masked_scores_and_keys_change_nothing(config, mask):
    method, scores = make_method(config), make_scores(mask=mask)
    other = make_scores(seed=9)
    unseen = ~mask.any(-2).squeeze(1)[:, None, :, None]
    phi = torch.where(mask, scores.phi, 1e3 * other.phi)
    key = torch.where(unseen, 1e3 * other.key, scores.key)
    changed = readings(posterior_of(method, Scores(phi, mask, key)))
    for name, value in readings(posterior_of(method, scores)).items():
        assert torch.equal(value, changed[name]), name


@methods
@pytest.mark.parametrize("mask", [MASK, LEFT], ids=["right", "left"])
def test_masked_scores_and_keys_get_no_gradient(config, mask):
    scores = make_scores(mask=mask)
    found = readings(posterior_of(make_method(config), scores))
    weighted = sum((x * torch.randn_like(x)).sum() for x in found.values())
    by_phi, by_key = torch.autograd.grad(weighted, (scores.phi, scores.key), allow_unused=True)
    assert not by_phi[~mask.expand_as(by_phi)].any() and by_phi.any()
    if by_key is not None:
        unseen = ~mask.any(-2).expand(2, 2, 5)
        assert not by_key[unseen].any() and by_key.any()


@methods
def test_everything_is_zero_at_masked_keys(config):
    for name, value in readings(posterior_of(make_method(config), make_scores(mask=MASK))).items():
        assert not value[~MASK.expand_as(value)].any(), name


@methods
def test_one_key_takes_all_the_weight(config):
    found = readings(posterior_of(make_method(config), make_scores(keys=1)))
    torch.testing.assert_close(found["mean"], torch.ones_like(found["mean"]))
    assert all(torch.isfinite(x).all() for x in found.values())
    if config.name != "mc-dropout":
        torch.testing.assert_close(found["sample"], torch.ones_like(found["sample"]))


@methods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [MASK, LEFT.expand(2, 1, 4, 5)], ids=["right", "left"])
def test_a_query_without_keys_gets_zeros_and_finite_gradients(config, dtype, mask):
    mask = mask.clone()
    mask[1] = False
    mask[0, :, 2] = False
    method, scores = make_method(config, dtype=dtype), make_scores(mask=mask, dtype=dtype)
    found = readings(posterior_of(method, scores))
    for value in found.values():
        assert not value[1].any() and not value[0, :, 2].any()
    # Squares, since the sums of weights are constant.
    total = sum(x.square().sum() for x in found.values())
    leaves = [scores.phi, scores.key, *method.parameters()]
    for gradient in torch.autograd.grad(total, leaves, allow_unused=True):
        assert gradient is None or torch.isfinite(gradient).all()


@beliefs
def test_padding_left_or_right_or_none_is_the_same(name):
    method, short = make_method(CONFIGS[name]), make_scores(keys=3, queries=2, batch=1)
    expected = readings(posterior_of(method, short, step=1))
    for left in (False, True):
        mask = padding(3, keys=5, left=left)
        real = mask.flatten()
        filler = make_scores(keys=5, queries=2, batch=1, seed=5)
        phi, key = filler.phi.detach().clone(), filler.key.detach().clone()
        phi[..., real], key[..., real, :] = short.phi.detach(), short.key.detach()
        found = readings(posterior_of(method, Scores(phi, mask, key), step=1))
        for reading in ("mean", "relative_std", "kl"):
            torch.testing.assert_close(found[reading][..., real], expected[reading])


@beliefs
def test_a_mask_with_holes_is_the_same_as_leaving_the_keys_out(name):
    kept = torch.tensor([False, True, False, True, True])
    method, scores = make_method(CONFIGS[name]), make_scores(mask=kept.expand(1, 1, 4, 5))
    short = Scores(scores.phi[..., kept], None, scores.key[..., kept, :])
    found, expected = (readings(posterior_of(method, s, step=1)) for s in (scores, short))
    for reading in ("mean", "relative_std", "kl"):
        torch.testing.assert_close(found[reading][..., kept], expected[reading])


@modest
@given(masks())
def test_ranks_are_places_among_the_keys_seen(mask):
    rank = ranks(mask)
    for q, row in enumerate(mask[0, 0].tolist()):
        seen = [key for key, takes_part in enumerate(row) if takes_part]
        places = range(len(row)) if rank is None else rank[0, 0, q].tolist()
        assert [places[key] for key in seen] == list(range(len(seen)))


@modest
@given(masks())
def test_from_ranks_inverts_in_rank_order(mask):
    x = zero_masked(torch.randn(2, 2, 3, mask.shape[-1]), mask)
    y, seen_first, rank = in_rank_order(x, mask)
    assert torch.equal(seen_first.sum(-1), mask.sum(-1))
    assert torch.equal(zero_masked(y, seen_first), y)
    assert torch.equal(zero_masked(from_ranks(y, rank), mask), x)
    # In the order of ranks what is seen comes first, in its old order.
    for b, head, q in torch.cartesian_prod(*map(torch.arange, (2, 2, 3))):
        seen = x[b, head, q][mask[0, 0, q]]
        assert torch.equal(y[b, head, q, : len(seen)], seen)
        assert not y[b, head, q, len(seen) :].any()


@pytest.mark.parametrize("mask", [None, causal(4), padding(4, 2, 0, keys=4)])
def test_right_padding_and_causal_masks_need_no_ranks(mask):
    assert ranks(mask) is None


@pytest.mark.parametrize("mask", [MASK, LEFT], ids=["right", "left"])
def test_ranks_are_worth_the_same_where_they_could_be_left_out(mask, monkeypatch):
    method, scores = make_method(CONFIGS["belief-keys"]), make_scores(mask=mask)
    expected = readings(posterior_of(method, scores))
    # Compiled code cannot look at the mask and always reorders.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = readings(posterior_of(method, scores))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


@modest
@given(masks(), st.floats(-1e4, 1e4))
def test_normalize_is_softmax_of_the_keys_seen(mask, offset):
    x = (torch.randn(2, 2, 3, mask.shape[-1], dtype=torch.float64) + offset).expand(2, 2, 3, -1)
    weights, logs = normalize(x, mask), log_normalize(x, mask)
    for q, row in enumerate(mask[0, 0]):
        expected = x[:, :, q, row].softmax(-1)
        torch.testing.assert_close(weights[:, :, q, row], expected)
        torch.testing.assert_close(logs[:, :, q, row].exp(), expected)
        assert not weights[:, :, q, ~row].any() and not logs[:, :, q, ~row].any()


def test_tokens_that_no_query_sees_are_padding():
    assert tokens_seen(padding(2, keys=3)).int().tolist() == [[[1, 1, 0]]]
    assert tokens_seen(causal(3)).all()
