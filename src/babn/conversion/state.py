"""What a converted model carries: the rules' parameters, and each attention module's place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from babn.attention.rule import RuleConfig
from babn.conversion.plan import Chain
from babn.errors import NotConvertedError

ATTRIBUTE = "babn"
"""Name under which the root of a converted model holds its `BeliefState`."""


@dataclass(frozen=True)
class Site:
    """What an attention module knows of its calls: their places in the chains, in call order."""

    path: str
    places: tuple[tuple[int, int], ...]
    crossed: bool


class BeliefState(nn.Module):
    """All parameters that conversion adds, in one module on the root.

    They are not inside the layers because the first layer's upward path needs every layer's map,
    which sharded training could not gather otherwise.
    """

    kl_weight: Tensor

    def __init__(self, config: RuleConfig, chains: tuple[Chain, ...]) -> None:
        super().__init__()
        self.config = config
        self.chains = chains
        self.rules = nn.ModuleList(config.build(chain.shape(config)) for chain in chains)
        self.register_buffer("kl_weight", torch.tensor(float(config.kl_weight)))
        self.last_kl: dict[str, Tensor] = {}
        self.undos: list[Callable[[], Any]] = []  # partials, not closures: copies must own theirs

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the last pass's graph behind."""
        return {**self.__dict__, "last_kl": {}}

    def layer_name(self, place: tuple[int, int]) -> str:
        """A name for one call: its chain and its step."""
        chain, step = place
        return f"{self.chains[chain].name}/{step}"

    def extra_repr(self) -> str:
        """The rule and its chains."""
        steps = ", ".join(f"{chain.name} x{len(chain.calls)}" for chain in self.chains)
        return f"{self.config.rule}: {steps}"


def belief_states(model: nn.Module) -> list[BeliefState]:
    """The states of all converted models inside `model`, at least one."""
    states = [module for module in model.modules() if isinstance(module, BeliefState)]
    if not states:
        raise NotConvertedError(
            f"{type(model).__name__} is not converted. Call babn.convert(model, config) first."
        )
    return states
