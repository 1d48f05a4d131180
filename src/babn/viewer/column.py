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
from babn.prediction.attention_maps import attention_maps
from babn.prediction.predict import predict
from babn.prediction.sampling import evaluating, posterior_mean
from babn.viewer.packing import BYTES, largest, pack, share, with_average
from babn.viewer.texts import MOST_TOKENS, Text, Tokenizer, prepare, setting

DIGITS = 5


def column(
    model: nn.Module,
    tokenizer: Tokenizer,
    text: Text,
    *,
    samples: int = 10,
    seed: int = 0,
    budget: int = BYTES,
    most: int = MOST_TOKENS,
) -> dict[str, Any]:
    """Returns the JSON data of a column."""
    example = prepare(model, tokenizer, text, most)
    found, drawn = chains(model, example.batch, seed, budget)
    return {
        "text": example.texts,
        "words": example.words,
        "output": example.output,
        "chains": found,
        "drawn": drawn,
        "prediction": predicted(model, example.batch, samples, seed),
    }


def predicted(
    model: nn.Module, batch: dict[str, Tensor], samples: int, seed: int
) -> dict[str, Any] | None:
    """Class probabilities of each sample with their statistics, as plain values.

    `None` for a model that does not return one row of logits for the whole text.
    """
    with torch.no_grad(), evaluating(model), posterior_mean(model):
        logits = getattr(model(**batch), "logits", None)
    if not torch.is_tensor(logits) or logits.ndim != 2:
        return None
    # Without a padding token some models accept only one text at a time.
    memory = 0.0 if setting(model, "pad_token_id") is None else None
    found = predict(model, batch, samples, seed, memory=memory)
    found = replace(found, residual=0.0)  # the page shows the spread of the samples
    values = {"samples": found.sample_probs[:, 0], "mean": found.probs[0], "std": found.std[0]}
    if found.activation != "identity":
        values["entropy"] = found.entropy[0]
        values["mutual_information"] = found.mutual_information[0]
    names = setting(model, "id2label") or {}
    if is_multiple_choice(model):
        names = {0: "score of the choice"}
    return {
        "labels": [str(names.get(i, f"class {i}")) for i in range(found.probs.shape[-1])],
        "kind": found.activation,
        **{name: x.double().round(decimals=DIGITS).tolist() for name, x in values.items()},
    }


def chains(
    model: nn.Module, batch: Mapping[str, Tensor], seed: int, budget: int = BYTES
) -> tuple[list[dict[str, Any]], int]:
    """Every chain with its packed layers, in call order, and the number of samples in them.

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
    titles = {c.name: describe(c, model) for state in belief_states(model) for c in state.chains}
    found: dict[str, dict[str, Any]] = {}
    for m, k, *samples in zip(maps, keys, *drawn, strict=True):
        name = m.name.rpartition("/")[0]
        _, heads, queries, length = m.mean.shape
        size = {"heads": heads, "size": [queries, length], "kept": k.shape[-1]}
        chain = found.setdefault(name, {**titles[name], **size, "layers": []})
        layer = pack(k, length, _take(m.mean, k), _take(m.relative_std, k), samples)
        chain["layers"].append(layer)
    return list(found.values()), count


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


def describe(chain: Chain, model: nn.Module) -> dict[str, str]:
    """Name and title of a chain, and which words of a column are its queries and keys."""
    call = chain.calls[0]
    if call.crossed:
        title, queries, keys = "Cross-attention, decoder to encoder", "output", "words"
    else:
        encoder_decoder = bool(setting(model, "is_encoder_decoder"))
        part = "decoder" if "decoder" in chain.name else "encoder"
        queries = keys = "output" if encoder_decoder and part == "decoder" else "words"
        title = f"{part} self-attention" if encoder_decoder else "self-attention"
        title = title.capitalize() + (" in a sliding window" if call.windowed else "")
    return {"name": chain.name, "title": title, "queries": queries, "keys": keys}
