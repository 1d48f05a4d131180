"""Which calls have kernels, and how reference modules are packed for them."""

from dataclasses import replace

import torch

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.inputs import Inputs
from babn.kernels.dispatch import Request, why_not_method, why_not_pairs
from babn.kernels.pair_inputs import softmax_weights


def test_pairs_and_the_weibull_family_have_kernels() -> None:
    for config in (BeliefConfig.pairs(), BamConfig()):
        assert why_not_method(config) is None
    for config in (BeliefConfig(), BamConfig(family="lognormal")):
        assert "has no kernel" in str(why_not_method(config))


def test_forward_passes_that_the_pair_kernels_cannot_compute() -> None:
    sample = Request(sample=True, with_kl=False)
    assert why_not_pairs(BeliefConfig.pairs(), sample, dropout=0.0) is None
    assert "drops attention weights" in str(why_not_pairs(BeliefConfig.pairs(), sample, 0.1))
    fixed = replace(sample, fixed_noise=True)
    assert "noise is fixed" in str(why_not_pairs(BamConfig(), fixed, 0.0))
    assert why_not_pairs(BamConfig(), replace(fixed, sample=False), 0.0) is None
    louder = replace(sample, level=2.0)
    assert why_not_pairs(BamConfig(), louder, 0.0) is None
    assert "level is 2" in str(why_not_pairs(BeliefConfig.pairs(), louder, 0.0))
    assert "level is 2" in str(why_not_pairs(BamConfig(), replace(louder, with_kl=True), 0.0))


def test_the_first_weights_are_softmax_in_the_precision_of_the_values() -> None:
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8)
    mask, bias = torch.rand(2, 1, 5, 6) > 0.3, torch.randn(1, 4, 5, 6)
    mask[0, 0, 2] = False
    found = softmax_weights(Inputs(q, k, k.half(), 0.3, mask, bias))
    scores = (q @ k.repeat_interleave(2, 1).transpose(-1, -2)).double() * 0.3 + bias
    expected = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-3)
