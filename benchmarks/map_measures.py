"""Whether the uncertainty maps of attention depend on the input."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.errors import ConfigError
from babn.prediction.attention_maps import AttentionMap, attention_maps
from babn.prediction.stored_settings import get_noise_level


@dataclass(frozen=True)
class MapContent:
    """How the uncertainty map of one attention call depends on position and text.

    Both maps are logarithms: of the weights' std/mean and, for comparison, of their mean.

    Attributes:
        name: Chain and step of the call.
        by_position: Share of the uncertainty map's variance explained by head and key position.
        between_texts: Mean correlation of the uncertainty maps of two texts.
        weights_by_position: The same share for the map of mean weights.
        weights_between_texts: The same correlation for the map of mean weights.
    """

    name: str
    by_position: float
    between_texts: float
    weights_by_position: float
    weights_between_texts: float


def map_content(model: nn.Module, batch: Any, *, without: Sequence[int] = ()) -> list[MapContent]:
    """Measures how much the uncertainty maps of a converted model depend on its input.

    If the maps depend on the model's parameters alone, head and key position explain them and they
    are alike for all texts: `by_position` and `between_texts` are near 1. Compare the two with the
    same measures of the attention weights.

    Calls whose weights cannot vary, such as those with a single key, are left out.

    Args:
        model: A converted model with a noise level above 0.
        batch: Two or more inputs of the same length, without padding, as `predict` takes them.
        without: Key positions to leave out, such as `(0, -1)` for special tokens. They are the same
            in all texts, so position explains much if they get most of the attention.
    """
    maps = attention_maps(model, batch)
    found = [content for one in maps if (content := _content(one, without)) is not None]
    if not found:
        raise ConfigError(
            "No attention weight of the model is random, so there are no uncertainty maps: its "
            f"noise level is {get_noise_level(model):g}. Convert it with a method that has noise, "
            "and set the level with babn.set_noise_level(model, 1.0)."
        )
    return found


def _content(one: AttentionMap, without: Sequence[int]) -> MapContent | None:
    """The measures of one call; `None` if its weights do not vary."""
    if len(one.mean) < 2:
        raise ConfigError(f"batch has {len(one.mean)} input. Give two or more of the same length.")
    seen = one.mean > 0 if one.variable_relative_std is None else one.variable_relative_std > 0
    if bool(seen.any(0).ne(seen.all(0)).any()):
        raise ConfigError(
            f"batch has {len(seen)} inputs that see different keys. Give inputs of the same "
            "length, without padding."
        )
    common = ((one.mean > 0) & (one.relative_std > 0)).all(0)
    keys = common.shape[-1]
    if not all(-keys <= position < keys for position in without):
        raise ConfigError(f"without={tuple(without)} has positions outside of the {keys} keys.")
    common[..., list(without)] = False
    if not bool(common.any()):
        return None
    spread, mean = (x.double().clamp(min=1e-30).log() for x in (one.relative_std, one.mean))
    return MapContent(
        one.name,
        explained_by_position(spread, common),
        correlation_between(spread, common),
        explained_by_position(mean, common),
        correlation_between(mean, common),
    )


def explained_by_position(
    x: Float[Tensor, "text head query key"], seen: Bool[Tensor, "head query key"]
) -> float:
    """Share of the variance of the maps that lies between heads and key positions."""
    count = (seen.sum(1) * len(x)).double()
    mean = (x * seen).sum(dim=(0, 2)) / count.clamp(min=1)
    total = (x * seen).sum() / count.sum()
    within = ((x - total).square() * seen).sum()
    return float((count * (mean - total).square()).sum() / within.clamp(min=1e-30))


def correlation_between(
    x: Float[Tensor, "text head query key"], seen: Bool[Tensor, "head query key"]
) -> float:
    """Mean correlation over pairs of texts."""
    found = torch.corrcoef(x[:, seen]).nan_to_num()  # 0 for constant maps
    first, second = torch.triu_indices(len(x), len(x), 1)
    return float(found[first, second].mean())
