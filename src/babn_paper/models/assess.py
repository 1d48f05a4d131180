"""How sure a translation model is of given targets, word by word."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.prediction.modes import evaluating
from babn.prediction.predict import following_seed
from babn_paper.models.translate import drawing, sentence_noise
from babn_paper.models.translation import TranslationModel
from babn_paper.models.translation_parts import IGNORED, Memory


@dataclass(frozen=True)
class Assessment:
    """What a model thinks of the words of targets, which it is told one after the other.

    Attributes:
        counted: Where targets have words.
        log_probs: Of the words, under the mean of the samples' probabilities.
        entropy: Of the mean distribution of each word, in nats.
        mutual_information: Entropy less the mean entropy of samples; zero for one sample.
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
    """Probabilities and uncertainties of targets, with attention at its mean or by samples.

    Args:
        model: A translation model, converted or not; its training mode is restored afterwards.
        batch: `input_ids` and, if there is padding, `attention_mask`; anything else is ignored.
        targets: With their ends; padded with -100.
        samples: How many samples to draw; by default none, but the mean.
        seed: Makes samples reproducible; `None` uses torch's global state.
        numbers: Numbers of the sentences, from 0 on by default. A sentence's noise follows from
            `seed` and its number, whatever batch it is in; that of dropout does not.
        dropout: Whether samples are of dropout and not of attention.
    """
    counted = targets != IGNORED
    words = targets.clamp(min=0).unsqueeze(-1)
    total = entropies = None
    each: list[Tensor] = []
    with torch.no_grad():
        for logits in _passes(model, batch, targets, samples, seed, numbers, dropout):
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


def _passes(
    model: TranslationModel,
    batch: Mapping[str, Tensor],
    targets: Tensor,
    samples: int | None,
    seed: int | None,
    numbers: Sequence[int] | None,
    dropout: bool,
) -> Iterator[Tensor]:
    """Logits of every word, one pass after the other."""
    inputs = {"decoder_input_ids": model.shifted(targets)}
    inputs["decoder_attention_mask"] = targets != IGNORED
    source = batch["input_ids"], batch.get("attention_mask")
    if dropout:
        with evaluating(model, dropout=True), following_seed(seed, model):
            for _ in range(samples or 1):
                yield model(memory=model.encode(*source), **inputs).logits
        return
    noise_source = None if samples is None else sentence_noise(len(targets), seed, numbers)
    with evaluating(model), drawing(model, noise_source) as given:
        memory: Memory = model.encode(*source)
        for _ in range(samples or 1):
            yield model(memory=memory, noise_source=given, **inputs).logits
