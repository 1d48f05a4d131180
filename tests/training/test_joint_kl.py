"""The KL of the batches of several processes together."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from joint_gradients import CONFIGS, gradients_of, joint_batch, loss_of, model_with
from torch import Tensor

import babn
from babn.errors import ConfigError
from models import checkpoint_activations


class Pretended:
    """Two processes, one after the other: what each adds to a sum is known from a first round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared: dict[int, list[Tensor]] = {0: [], 1: []}
        self.rank, self.second_round, self.place = 0, False, 0
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
        monkeypatch.setattr(dist, "all_reduce", self.all_reduce)

    def all_reduce(self, value: Tensor, group: Any = None) -> None:
        if self.second_round:
            value += self.shared[1 - self.rank][self.place]
            self.place += 1
        else:
            self.shared[self.rank].append(value.clone())

    def begin(self, rank: int, second_round: bool) -> None:
        self.rank, self.second_round, self.place = rank, second_round, 0


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [4, 5, 1])
@pytest.mark.parametrize("method", CONFIGS)
def test_the_mean_over_processes_is_that_of_the_joined_batch(
    method: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts have different lengths, and one process may have more of them, or all."""
    model = model_with(method)
    alone = loss_of(model, joint_batch(rows), range(rows))
    alone.backward()
    expected = gradients_of(model)
    pretended = Pretended(monkeypatch)
    losses, found = [], []
    for second_round in (False, True):
        for rank in range(2):
            model.zero_grad()
            pretended.begin(rank, second_round)
            mine = list(range(rows))[rank::2]
            weight = 2 * len(mine) / rows
            with babn.across_processes(model, weight):
                loss = loss_of(model, joint_batch(rows), mine or [0]) * weight
            loss.backward()
            if second_round:
                losses.append(loss.detach())
                found.append(gradients_of(model))
    torch.testing.assert_close(torch.stack(losses).mean(), alone.detach())
    for name, gradient in expected.items():
        both = (found[0][name] + found[1][name]) / 2
        torch.testing.assert_close(both, gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_recomputation_does_not_ask_other_processes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with("belief")
    checkpoint_activations(model)
    pretended = Pretended(monkeypatch)
    with babn.across_processes(model):
        model(**joint_batch(4)).loss.backward()
    assert len(pretended.shared[0]) == 2  # layers


def test_outside_of_a_process_group_nothing_changes() -> None:
    model = model_with("belief")
    with babn.across_processes(model, weight=3.0):
        inside = loss_of(model, joint_batch(4), range(4))
    assert torch.equal(inside, loss_of(model, joint_batch(4), range(4)))


def test_a_weight_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight=-1\.0"):
        babn.across_processes(model_with("belief"), -1.0).__enter__()
