"""Batched beam search, independent of the model that scores the words."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def penalty(length: int, strength: float) -> float:
    r"""Length penalty $((5 + n) / 6)^\alpha$ (Wu et al. 2016, https://arxiv.org/abs/1609.08144)."""
    return float(((5 + length) / 6) ** strength)


@dataclass(frozen=True)
class Hypotheses:
    """Several targets for each sentence.

    Attributes:
        words: Targets so far, padded on the right.
        log_probs: Log-probability of each word; 0 at padding.
        scores: Sums of log-probabilities, divided by the length penalty once a target is finished.
    """

    words: Int[Tensor, "batch hypothesis position"]
    log_probs: Float[Tensor, "batch hypothesis position"]
    scores: Float[Tensor, "batch hypothesis"]

    @classmethod
    def none(cls, log_probs: Float[Tensor, "batch hypothesis position"], pad: int) -> "Hypotheses":
        """Returns empty hypotheses with scores of minus infinity; `log_probs` must be zeros."""
        words = torch.full(log_probs.shape, pad, device=log_probs.device)
        return cls(words, log_probs.clone(), torch.full_like(log_probs[..., 0], -torch.inf))

    def chosen(self, which: Int[Tensor, "batch other"]) -> "Hypotheses":
        """Selects hypotheses of each sentence, in a given order."""
        wide = which.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])
        words, log_probs = self.words.gather(1, wide), self.log_probs.gather(1, wide)
        return Hypotheses(words, log_probs, self.scores.gather(1, which))

    def cat(self, others: "Hypotheses") -> "Hypotheses":
        """Concatenates the hypotheses of each sentence with others."""
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, 1) for pair in pairs))

    def best(self, count: int) -> "Hypotheses":
        """Returns the best hypotheses in descending order."""
        return self.chosen(self.scores.topk(count).indices)

    def of(self, rows: Int[Tensor, " other"]) -> "Hypotheses":
        """Returns the hypotheses of some sentences."""
        return Hypotheses(*(each[rows] for each in vars(self).values()))

    def put(self, rows: Int[Tensor, " other"], others: "Hypotheses") -> None:
        """Replaces the hypotheses of some sentences."""
        for own, other in zip(vars(self).values(), vars(others).values(), strict=True):
            own[rows] = other

    def cut(self, length: int) -> "Hypotheses":
        """Truncates the targets."""
        return Hypotheses(self.words[..., :length], self.log_probs[..., :length], self.scores)


class BeamSearch:
    """Beam search with growing and finished hypotheses.

    A sentence is done when it has as many finished hypotheses as the beam is wide and no growing
    one scores better, at its present length, than the worst of these. The result for a sentence
    does not depend on the others, and sentences that are done can be removed from the batch.

    Args:
        like: A tensor with one row for each sentence, for device and precision.
        beam: Number of hypotheses.
        max_length: Maximum number of words, with the end token.
        strength: Exponent of the length penalty.
        pad: Id of the padding token.
        eos: Id of the end token.
    """

    def __init__(
        self, like: Tensor, beam: int, max_length: int, strength: float, pad: int, eos: int
    ) -> None:
        self.beam, self.max_length, self.strength, self.eos = beam, max_length, strength, eos
        self.length = 0
        empty = like.new_zeros(len(like), beam, max_length)
        self.growing = Hypotheses.none(empty, pad)
        self.growing.scores[:, 0] = 0.0
        self.finished = Hypotheses.none(empty, pad)
        self.aside = Hypotheses.none(empty, pad)
        self.rows = torch.arange(len(like), device=like.device)
        self.done = torch.zeros(len(like), dtype=torch.bool, device=like.device)
        self.left = len(like)

    @property
    def over(self) -> bool:
        """Whether the search is finished."""
        return self.length == self.max_length or not self.left

    @property
    def found(self) -> Hypotheses:
        """Finished hypotheses of all sentences, truncated to the longest."""
        self.aside.put(self.rows, self.finished)
        return self.aside.cut(self.length)

    @property
    def last_words(self) -> Int[Tensor, "batch hypothesis"]:
        """The words that were added last."""
        return self.growing.words[..., self.length - 1]

    def grow(
        self, log_probs: Float[Tensor, "batch hypothesis word"]
    ) -> Int[Tensor, "batch hypothesis"]:
        """Adds a word to each hypothesis, and returns the hypothesis that each continues.

        Args:
            log_probs: Log-probabilities of the next words.
        """
        candidates, parents = self._candidates(log_probs)
        self.length += 1
        ended = candidates.words[..., self.length - 1] == self.eos
        self._finish(candidates, ended)
        going_on = ended.byte().argsort(dim=-1, stable=True)[:, : self.beam]
        self.growing = candidates.chosen(going_on)
        best = self.growing.scores.amax(-1) / penalty(self.length, self.strength)
        self.done = self.done | (best <= self.finished.scores.amin(-1))
        self.left = int((~self.done).sum())
        return parents.gather(1, going_on)

    def put_aside(self) -> Int[Tensor, " kept"] | None:
        """Removes the sentences that are done from the batch, if they are at least half of it.

        Otherwise a few long sentences would keep all others in the computation.

        Returns:
            Indices of the sentences that remain, or `None` if the batch is unchanged.
        """
        if self.over or 2 * self.left > len(self.done):
            return None
        kept = (~self.done).nonzero().squeeze(-1)
        self.aside.put(self.rows, self.finished)
        self.rows, self.done = self.rows[kept], self.done[kept]
        self.growing, self.finished = self.growing.of(kept), self.finished.of(kept)
        return kept

    def _candidates(self, log_probs: Tensor) -> tuple[Hypotheses, Tensor]:
        """Returns the best continuations, twice as many as the beam, since some may be finished."""
        # The best of all are among the best of each, which a GPU finds in parallel.
        each, words = log_probs.topk(min(2 * self.beam, log_probs.shape[-1]))
        total = (self.growing.scores.unsqueeze(-1) + each).flatten(1)
        scores, numbers = total.topk(min(2 * self.beam, total.shape[1]))
        parents = numbers // each.shape[-1]
        grown = self.growing.chosen(parents)
        grown.words[..., self.length] = words.flatten(1).gather(1, numbers)
        grown.log_probs[..., self.length] = each.flatten(1).gather(1, numbers)
        return Hypotheses(grown.words, grown.log_probs, scores), parents

    def _finish(self, candidates: Hypotheses, ended: Bool[Tensor, "batch candidate"]) -> None:
        """Keeps the finished among the first candidates; at the maximum length all of these."""
        first = torch.arange(ended.shape[1], device=ended.device) < self.beam
        last = self.length == self.max_length
        kept = (ended | last) & first & ~self.done.unsqueeze(-1)
        scores = candidates.scores / penalty(self.length, self.strength)
        scores = scores.masked_fill(~kept, -torch.inf)
        new = Hypotheses(candidates.words, candidates.log_probs, scores)
        self.finished = self.finished.cat(new).best(self.beam)
