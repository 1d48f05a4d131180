"""What a converted model's attention does with one text: mean, spread and a few samples."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.noise_source import NoiseSource, fold_in
from babn.attention.rule import Posterior
from babn.conversion.override import overriding
from babn.conversion.plan import Chain
from babn.conversion.state import belief_states
from babn.prediction.attention_maps import AttentionMap, attention_maps
from babn.prediction.modes import evaluating
from babn.viewer.packing import BYTES, largest, pack, share, with_average


def chains(
    model: nn.Module, batch: Mapping[str, Tensor], seed: int, budget: int = BYTES
) -> tuple[list[dict[str, Any]], int]:
    """The packed layers of every chain, and how many samples they hold.

    Args:
        model: A converted model.
        batch: Its arguments, a batch of one.
        seed: Sample `i` is sample `i` of `babn.predict` with this seed.
        budget: Bytes to use.
    """
    maps = attention_maps(model, dict(batch))
    part = share(maps, budget)
    keys = [largest(with_average(m.mean[0]), part.kept) for m in maps]
    drawn = []
    for i in range(part.drawn):
        weights = sampled_weights(model, batch, fold_in(seed, i))
        drawn.append([_take(w, k) for w, k in zip(weights, keys, strict=True)])
    layers = [
        pack(k, m.mean.shape[-1], _take(m.mean, k), _take(m.relative_std, k), list(samples))
        for m, k, *samples in zip(maps, keys, *drawn, strict=True)
    ]
    return _grouped(model, maps, layers, part.kept), part.drawn


def sampled_weights(
    model: nn.Module, batch: Mapping[str, Tensor], seed: int
) -> list[Float[Tensor, "batch head query key"]]:
    """The weights that one pass with samples uses, in call order.

    The pass keeps its posteriors but not its weights; the same noise, drawn again in the same
    order, gives those.
    """
    posteriors: list[tuple[str, Posterior]] = []
    asked = {"mode": "sample", "noise_source": NoiseSource([seed]), "posteriors": posteriors}
    with torch.no_grad(), evaluating(model), overriding(model, **asked):
        model(**batch)
        again = NoiseSource([seed])
        return [posterior.sample_weights(again) for _, posterior in posteriors]


def _take(values: Tensor, keys: Tensor) -> Tensor:
    return with_average(values[0]).gather(-1, keys)


def _grouped(
    model: nn.Module, maps: list[AttentionMap], layers: list[dict[str, Any]], kept: int
) -> list[dict[str, Any]]:
    """The layers by chain, in call order."""
    known = {chain.name: chain for state in belief_states(model) for chain in state.chains}
    encoder_decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    found: dict[str, dict[str, Any]] = {}
    for attention_map, layer in zip(maps, layers, strict=True):
        name = attention_map.name.rpartition("/")[0]
        if name not in found:
            _, heads, queries, keys = attention_map.mean.shape
            size = {"heads": heads, "size": [queries, keys], "kept": min(kept, keys)}
            found[name] = {**describe(known[name], encoder_decoder), **size, "layers": []}
        found[name]["layers"].append(layer)
    return list(found.values())


def describe(chain: Chain, encoder_decoder: bool) -> dict[str, Any]:
    """A chain's name, a title for it, and which words it looks from and at."""
    call = chain.calls[0]
    if call.crossed:
        words = {"queries": "output", "keys": "words"}
        return {"name": chain.name, "title": "Cross-attention, decoder to encoder", **words}
    side = ("output" if "decoder" in chain.name else "words") if encoder_decoder else "words"
    part = {"output": "decoder ", "words": "encoder "}[side] if encoder_decoder else ""
    window = " in a sliding window" if call.windowed else ""
    title = f"{part}self-attention{window}".capitalize()
    return {"name": chain.name, "title": title, "queries": side, "keys": side}
