"""Reference modules are packed for the kernels."""

import pytest
import torch
from torch import nn

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.upward import AxisMap
from babn.kernels.dispatch import has_kernels, joint_map, supports_levels


@pytest.mark.parametrize("rank", [0, 2])
def test_joint_maps_interleave_the_results_of_each(rank: int) -> None:
    maps = [AxisMap("keys", 6, rank=rank).double() for _ in range(2)]
    for parameter in nn.ModuleList(maps).parameters():
        nn.init.normal_(parameter)
    h = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    both = torch.stack([one(h) for one in maps], -1).flatten(-2)
    torch.testing.assert_close(joint_map(maps, h), both)


def test_pairs_and_the_weibull_family_have_kernels() -> None:
    assert has_kernels(BeliefConfig.pairs()) and not has_kernels(BeliefConfig())
    assert has_kernels(BamConfig()) and not has_kernels(BamConfig(family="lognormal"))
    assert supports_levels(BamConfig()) and not supports_levels(BeliefConfig.pairs())
