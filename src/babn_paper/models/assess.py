"""Uncertainty of a translation model about given targets, word by word."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.prediction.predict import following_seed
from babn.prediction.sampling import evaluating
from babn_paper.models.translate import sampling_from, sentence_noise
from babn_paper.models.translation import TranslationModel
from babn_paper.models.translation_parts import IGNORED, Memory


@dataclass(frozen=True)
class Assessment:
    """Probability and uncertainty of the words of targets under teacher forcing.

    Attributes:
        counted: Mask of the targets' words.
        log_probs: Log-probabilities of the words, under the mean of the samples' probabilities.
        entropy: Entropy of the mean distribution of each word, in nats.
        mutual_information: Entropy minus the mean entropy of samples; 0 for one sample.
        spread: Standard deviation over samples of the mean log-probability of a target's words.
    """

    counted: Bool[Tensor, "batch word"]
    log_probs: Float[Tensor, "batch word"]
    entropy: Float[Tensor, "batch word"]
    mutual_information: Float[Tensor, "batch word"]
    spread: Float[Tensor, "batch"]


def assess(
    model: TranslationModel,
    batch: Mapping[str, Tensor],
    targets: Int[Tensor, "batch word"],
    samples: int | None = None,
    seed: int | None = 0,
    numbers: Sequence[int] | None = None,
    dropout: bool = False,
) -> Assessment:
    """Computes probabilities and uncertainties of targets, at the mean of attention or by samples.

    Args:
        model: A translation model, converted or not; its training mode is restored afterwards.
        batch: `input_ids` and, if there is padding, `attention_mask`; other entries are ignored.
        targets: Targets with their end tokens, padded with -100.
        samples: Number of samples; by default the mean is used.
        seed: Makes samples reproducible; `None` uses torch's global state.
        numbers: Indices of the sentences, by default from 0. The noise of a sentence depends on
            `seed` and its index only, not on the batch; this does not hold for dropout.
        dropout: Whether to sample dropout instead of attention.
    """
    counted = targets != IGNORED
    words = targets.clamp(min=0).unsqueeze(-1)
    total = entropies = None
    each: list[Tensor] = []
    with torch.no_grad():
        for logits in _logits(model, batch, targets, samples, seed, numbers, dropout):
            log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            probs = log_probs.exp()
            entropy = -(probs * log_probs.clamp(min=-1e4)).sum(-1)
            each.append(log_probs.gather(-1, words).squeeze(-1))
            total = probs if total is None else total.add_(probs)
            entropies = entropy if entropies is None else entropies + entropy
        assert total is not None and entropies is not None
        mean = total / len(each)
        entropy = -torch.xlogy(mean, mean).sum(-1)
        drawn = torch.stack(each)
        found = drawn.logsumexp(0) - torch.tensor(float(len(each))).log()
        shared = (entropy - entropies / len(each)).clamp(min=0)
        return Assessment(counted, found, entropy, shared, _spread(drawn, counted))


def _spread(
    log_probs: Float[Tensor, "sample batch word"], counted: Bool[Tensor, "batch word"]
) -> Float[Tensor, "batch"]:
    means = (log_probs * counted).sum(-1) / counted.sum(-1).clamp(min=1)
    return means.std(0, correction=min(1, len(means) - 1))


def _logits(
    model: TranslationModel,
    batch: Mapping[str, Tensor],
    targets: Tensor,
    samples: int | None,
    seed: int | None,
    numbers: Sequence[int] | None,
    dropout: bool,
) -> Iterator[Tensor]:
    """Yields the logits of every word, one forward pass per sample."""
    inputs = {"decoder_input_ids": model.shifted(targets)}
    inputs["decoder_attention_mask"] = targets != IGNORED
    source = batch["input_ids"], batch.get("attention_mask")
    if dropout:
        with evaluating(model, dropout=True), following_seed(seed, model):
            for _ in range(samples or 1):
                yield model(memory=model.encode(*source), **inputs).logits
        return
    noise_source = None if samples is None else sentence_noise(len(targets), seed, numbers)
    with evaluating(model), sampling_from(model, noise_source) as given:
        memory: Memory = model.encode(*source)
        for _ in range(samples or 1):
            yield model(memory=memory, noise_source=given, **inputs).logits
