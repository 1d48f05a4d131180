"""The data of one column of the page: a model's prediction and attention for one text."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.noise_source import NoiseSource, fold_in
from babn.attention.posterior import Posterior
from babn.conversion.calls import Chain
from babn.conversion.example_inputs import is_multiple_choice
from babn.conversion.override import overriding
from babn.conversion.state import belief_states
from babn.prediction.attention_maps import AttentionMap, attention_maps
from babn.prediction.predict import predict
from babn.prediction.result import Prediction
from babn.prediction.sampling import evaluating, posterior_mean
from babn.viewer.inputs import MOST_TOKENS, Example, Text, Tokenizer, prepare
from babn.viewer.packing import BYTES, largest, pack, share, with_average

DIGITS = 5


def column(
    model: nn.Module,
    tokenizer: Tokenizer,
    text: Text,
    *,
    title: str = "",
    samples: int = 20,
    seed: int = 0,
    budget: int = BYTES,
    most: int = MOST_TOKENS,
) -> dict[str, Any]:
    """Returns the JSON data of a column."""
    example = prepare(model, tokenizer, text, most)
    found, drawn = chains(model, example.batch, seed, budget)
    return {
        "title": title,
        "text": list(example.text) if isinstance(example.text, tuple) else [example.text],
        "words": example.words,
        "output": example.output,
        "chains": found,
        "drawn": drawn,
        "prediction": (
            predicted(model, example, samples, seed) if classifies(model, example) else None
        ),
    }


def classifies(model: nn.Module, example: Example) -> bool:
    """Whether the model returns one row of logits for the whole text."""
    with torch.no_grad(), evaluating(model), posterior_mean(model):
        logits = getattr(model(**example.batch), "logits", None)
    return torch.is_tensor(logits) and logits.ndim == 2


def predicted(model: nn.Module, example: Example, samples: int, seed: int) -> dict[str, Any]:
    """Class probabilities of each sample, and their statistics."""
    config = getattr(model, "config", None)
    # Without a padding token some models accept only one text at a time.
    memory = 0.0 if getattr(config, "pad_token_id", None) is None else None
    found = predict(model, example.batch, samples, seed, memory=memory)
    names = getattr(config, "id2label", None) or {}
    if is_multiple_choice(model):
        names = {0: "score of the choice"}
    return {
        "labels": [str(names.get(i, f"class {i}")) for i in range(found.probs.shape[-1])],
        "kind": found.activation,
        **_numbers(found),
    }


def _numbers(found: Prediction) -> dict[str, Any]:
    """Samples, mean and standard deviation, and the entropies of probabilities."""
    found = replace(found, residual=0.0)  # the page shows the spread of the samples
    values = {"samples": found.sample_probs[:, 0], "mean": found.probs[0], "std": found.std[0]}
    if found.activation != "identity":
        values["entropy"] = found.entropy[0]
        values["mutual_information"] = found.mutual_information[0]
    return {name: x.double().round(decimals=DIGITS).tolist() for name, x in values.items()}


def chains(
    model: nn.Module, batch: Mapping[str, Tensor], seed: int, budget: int = BYTES
) -> tuple[list[dict[str, Any]], int]:
    """The packed layers of every chain, and the number of samples in them.

    Args:
        model: A converted model.
        batch: Its arguments, a batch of one.
        seed: Sample `i` is sample `i` of `babn.predict` with this seed.
        budget: Maximum number of bytes.
    """
    maps = attention_maps(model, dict(batch))
    kept, count = share(maps, budget)
    keys = [largest(with_average(m.mean[0]), kept) for m in maps]
    drawn = []
    for i in range(count):
        weights = sampled_weights(model, batch, fold_in(seed, i))
        drawn.append([_take(w, k) for w, k in zip(weights, keys, strict=True)])
    layers = [
        pack(k, m.mean.shape[-1], _take(m.mean, k), _take(m.relative_std, k), list(samples))
        for m, k, *samples in zip(maps, keys, *drawn, strict=True)
    ]
    return _grouped(model, maps, layers, kept), count


def sampled_weights(
    model: nn.Module, batch: Mapping[str, Tensor], seed: int
) -> list[Float[Tensor, "batch head query key"]]:
    """The weights of one forward pass with sampled attention, in call order.

    The forward pass records posteriors but not weights, which are sampled again with the same
    noise.
    """
    posteriors: list[tuple[str, Posterior]] = []
    override = {"mode": "sample", "noise_source": NoiseSource([seed]), "posteriors": posteriors}
    with torch.no_grad(), evaluating(model), overriding(model, **override):
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
    """Name and title of a chain, and the words of its queries and keys."""
    call = chain.calls[0]
    if call.crossed:
        words = {"queries": "output", "keys": "words"}
        return {"name": chain.name, "title": "Cross-attention, decoder to encoder", **words}
    side = ("output" if "decoder" in chain.name else "words") if encoder_decoder else "words"
    part = {"output": "decoder ", "words": "encoder "}[side] if encoder_decoder else ""
    window = " in a sliding window" if call.windowed else ""
    title = f"{part}self-attention{window}".capitalize()
    return {"name": chain.name, "title": title, "queries": side, "keys": side}
