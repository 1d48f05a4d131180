"""Translation by beam search."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.attention.noise_source import NoiseLike, NoiseSource, fold_in
from babn.conversion.override import overriding
from babn.errors import ConfigError
from babn.prediction.sampling import evaluating
from babn.validation import check_count
from babn_paper.models.beam import BeamSearch
from babn_paper.models.translation import TranslationModel
from babn_paper.models.translation_parts import Memory, State


@dataclass(frozen=True)
class Translations:
    """Targets found by beam search, in descending order of their scores.

    Attributes:
        words: Targets with their end tokens, if they were reached; padded on the right.
        log_probs: Log-probability of each word; 0 at padding.
        scores: Log-probabilities of targets, divided by the length penalty; minus infinity where
            there are fewer targets than the beam is wide.
        pad: Id of the padding token.
        eos: Id of the end token.
    """

    words: Int[Tensor, "batch hypothesis position"]
    log_probs: Float[Tensor, "batch hypothesis position"]
    scores: Float[Tensor, "batch hypothesis"]
    pad: int
    eos: int

    @property
    def best(self) -> list[list[int]]:
        """The best target of each sentence, without the end token."""
        dropped = (self.pad, self.eos)
        return [[w for w in row if w not in dropped] for row in self.words[:, 0].tolist()]


def translate(
    model: TranslationModel,
    batch: Mapping[str, Tensor],
    beam: int = 10,
    length_penalty: float = 1.0,
    max_length: int = 125,
    samples: int | None = None,
    seed: int | None = 0,
    numbers: Sequence[int] | None = None,
) -> Translations:
    """Finds the most probable targets by beam search; a beam of 1 is greedy search.

    Args:
        model: A translation model, converted or not; its training mode is restored afterwards.
        batch: `input_ids` and, if there is padding, `attention_mask`; other entries are ignored.
        beam: Number of hypotheses per sentence.
        length_penalty: Exponent of the length penalty (Wu et al. 2016,
            https://arxiv.org/abs/1609.08144); 0 for no penalty.
        max_length: Maximum number of words of a target, with the end token.
        samples: Number of samples of attention over which the probability of a word is averaged,
            drawn anew for each hypothesis at each word, by a converted model or by variational
            attention; by default the mean of attention is used.
        seed: Makes samples reproducible; `None` uses torch's global state.
        numbers: Indices of the sentences, by default from 0. The noise of a sentence depends on
            `seed` and its index only, not on the batch.
    """
    for name, value in (("beam", beam), ("max_length", max_length), ("samples", samples or 1)):
        check_count(name, value)
    config, rows = model.config, len(batch["input_ids"])
    noise_source = None if samples is None else sentence_noise(rows, seed, numbers)
    with torch.no_grad(), evaluating(model, False), sampling_from(model, noise_source) as given:
        memory = model.encode(batch["input_ids"], batch.get("attention_mask"))
        special = config.pad_token_id, config.eos_token_id
        like = memory.value.new_empty(len(memory.value), dtype=_precise(memory.value))
        search = BeamSearch(like, beam, max_length, length_penalty, *special)
        _run(model, memory, search, samples or 1, noise_source, given)
    found = search.found
    return Translations(found.words, found.log_probs, found.scores, *special)


def sentence_noise(rows: int, seed: int | None, numbers: Sequence[int] | None) -> NoiseSource:
    """Returns a noise source in which the noise of a sentence does not depend on its batch.

    Args:
        rows: Number of sentences of the batch.
        seed: Seed of all sentences; `None` for torch's global state, in which sentences share
            noise.
        numbers: Indices of the sentences; by default from 0.
    """
    if seed is None:
        return NoiseSource()
    if numbers is not None and len(numbers) != rows:
        raise ConfigError(
            f"numbers has {len(numbers)} entries for {rows} sentences. Give one each."
        )
    return RowNoiseSource([fold_in(seed, i) for i in numbers or range(rows)])


@contextmanager
def sampling_from(
    model: TranslationModel, noise_source: NoiseSource | None
) -> Iterator[NoiseSource | None]:
    """Makes the model sample attention; yields the noise source for variational attention."""
    if noise_source is None or model.config.variational:
        yield noise_source
        return
    with overriding(model, mode="sample", noise_source=noise_source):
        yield None


def _run(
    model: TranslationModel,
    memory: Memory,
    search: BeamSearch,
    samples: int,
    noise_source: NoiseSource | None,
    given: NoiseSource | None,
) -> None:
    state: State = tuple(x.repeat_interleave(search.beam, 1) for x in memory.start)
    words = torch.full_like(search.last_words, model.config.bos_token_id)
    while not search.over:
        output = model(
            memory=memory, decoder_input_ids=words, state=state, samples=samples, noise_source=given
        )
        parents = search.grow(_log_probs(output.logits, samples, model))
        words, state = search.last_words, _taken(output.state, parents)
        if (kept := search.put_aside()) is not None:
            memory, words = memory.of(kept), words[kept]
            state = tuple(_kept(x, kept, search.beam) for x in state)
            if isinstance(noise_source, RowNoiseSource):
                noise_source.keep(kept)


def _log_probs(
    logits: Float[Tensor, "batch attended word"], samples: int, model: TranslationModel
) -> Float[Tensor, "batch hypothesis word"]:
    """Returns log-probabilities averaged over samples, without padding and begin tokens."""
    found = logits.log_softmax(-1, dtype=_precise(logits))
    if samples > 1:
        found = found.unflatten(1, (-1, samples)).logsumexp(2) - math.log(samples)
    for never in (model.config.pad_token_id, model.config.bos_token_id):
        found[..., never] = -torch.inf
    return found


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _taken(state: State, parents: Int[Tensor, "batch hypothesis"]) -> State:
    first = torch.arange(len(parents), device=parents.device).unsqueeze(-1) * parents.shape[1]
    rows = (first + parents).flatten()
    return tuple(x[:, rows] for x in state)


def _kept(x: Tensor, sentences: Int[Tensor, " kept"], beam: int) -> Tensor:
    """Selects sentences in a tensor of the decoder's state."""
    return x.unflatten(1, (-1, beam))[:, sentences].flatten(1, 2)


class RowNoiseSource(NoiseSource):
    """Noise that is independent of the other rows of the batch and of padding.

    Each number is a hash of the seed of its row, the number of earlier draws, and its indices, so
    that a sentence has the same noise in every batch.

    Args:
        seeds: One seed per row of the batch.

    Example:
        >>> short = RowNoiseSource([5]).uniform(torch.zeros(1, 3))
        >>> long = RowNoiseSource([4, 5]).uniform(torch.zeros(2, 8))
        >>> torch.equal(short[0], long[1, :3])
        True
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(seeds)
        self._rows = torch.tensor(seeds, dtype=torch.int64)
        self._drawn = 0

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Continues with some rows of the batch; their noise stays the same."""
        self._rows = self._rows.to(rows.device)[rows]

    noise = NoiseLike.noise

    def uniform(
        self, like: Float[Tensor, "row ..."], queries: int | None = None
    ) -> Float[Tensor, "row ..."]:
        """Uniform numbers between 0 and 1 with the shape of `like`."""
        self._rows = self._rows.to(like.device)
        hashed = _mixed(_mixed(self._rows) + self._drawn)
        self._drawn += 1
        for size in like.shape[1:]:
            places = torch.arange(1, size + 1, device=like.device)
            hashed = _mixed(hashed.unsqueeze(-1) + places * _GOLDEN)
        digits = 53 if like.dtype == torch.float64 else 23
        whole = (hashed >> (64 - digits)) & ((1 << digits) - 1)
        return (whole.to(like.dtype) + 0.5) * 2.0**-digits


def _signed(number: int) -> int:
    return number - (1 << 64)


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mixed(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The finaliser of SplitMix64 ([Steele et al. 2014](https://doi.org/10.1145/2714064.2660195))."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """A logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
