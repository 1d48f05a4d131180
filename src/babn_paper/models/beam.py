"""Beam search over many sentences at a time, without knowing what scores the words."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def penalty(length: int, strength: float) -> float:
    r"""What log-probabilities are divided by, $((5 + n) / 6)^\alpha$ (Wu et al., 2016)."""
    return float(((5 + length) / 6) ** strength)


@dataclass(frozen=True)
class Hypotheses:
    """Some targets for each sentence.

    Attributes:
        words: Targets so far, padded on the right.
        log_probs: Of each word; zero at padding.
        scores: Sums of log-probabilities, divided by the penalty once a target is finished.
    """

    words: Int[Tensor, "batch hypothesis position"]
    log_probs: Float[Tensor, "batch hypothesis position"]
    scores: Float[Tensor, "batch hypothesis"]

    @classmethod
    def none(cls, log_probs: Float[Tensor, "batch hypothesis position"], pad: int) -> "Hypotheses":
        """Impossible hypotheses without words, with zeros for their log-probabilities."""
        words = torch.full(log_probs.shape, pad, device=log_probs.device)
        return cls(words, log_probs.clone(), torch.full_like(log_probs[..., 0], -torch.inf))

    def chosen(self, which: Int[Tensor, "batch other"]) -> "Hypotheses":
        """Some of them, in a given order."""
        wide = which.unsqueeze(-1).expand(-1, -1, self.words.shape[-1])
        words, log_probs = self.words.gather(1, wide), self.log_probs.gather(1, wide)
        return Hypotheses(words, log_probs, self.scores.gather(1, which))

    def and_others(self, others: "Hypotheses") -> "Hypotheses":
        """These and those."""
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, 1) for pair in pairs))

    def best(self, count: int) -> "Hypotheses":
        """The best, best first."""
        return self.chosen(self.scores.topk(count).indices)

    def of(self, rows: Int[Tensor, " other"]) -> "Hypotheses":
        """Those of some sentences."""
        return Hypotheses(*(each[rows] for each in vars(self).values()))

    def put(self, rows: Int[Tensor, " other"], others: "Hypotheses") -> None:
        """Replaces those of some sentences."""
        for own, other in zip(vars(self).values(), vars(others).values(), strict=True):
            own[rows] = other

    def cut(self, length: int) -> "Hypotheses":
        """The first words."""
        return Hypotheses(self.words[..., :length], self.log_probs[..., :length], self.scores)


class BeamSearch:
    """Hypotheses that grow by a word at a time, and those that are finished.

    A sentence is done when no growing hypothesis scores better, at its present length, than the
    worst of as many finished ones as the beam is wide. What a sentence finds does not depend on the
    others, and those that are done can be put aside while others go on.

    Args:
        like: A tensor with one row for each sentence, for device and precision.
        beam: Hypotheses that are kept.
        max_length: Words of the longest, with its end.
        strength: Of the length penalty.
        pad: Number of the padding token.
        eos: Number of the token that ends a target.
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
        """Whether nothing is left to do."""
        return self.length == self.max_length or not self.left

    @property
    def found(self) -> Hypotheses:
        """The finished hypotheses of all sentences, cut to the length of the longest."""
        self.aside.put(self.rows, self.finished)
        return self.aside.cut(self.length)

    @property
    def last_words(self) -> Int[Tensor, "batch hypothesis"]:
        """The words that were added last."""
        return self.growing.words[..., self.length - 1]

    def grow(
        self, log_probs: Float[Tensor, "batch hypothesis word"]
    ) -> Int[Tensor, "batch hypothesis"]:
        """Adds a word to each hypothesis, and says which hypothesis each came from.

        Args:
            log_probs: Of next words.
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
        """Goes on without the sentences that are done, if these are half of them or more.

        A few long sentences would otherwise make all the others wait, and be computed with them.

        Returns:
            Places of those that go on, or `None` if all of them do.
        """
        if self.over or 2 * self.left > len(self.done):
            return None
        kept = (~self.done).nonzero().squeeze(-1)
        self.aside.put(self.rows, self.finished)
        self.rows, self.done = self.rows[kept], self.done[kept]
        self.growing, self.finished = self.growing.of(kept), self.finished.of(kept)
        return kept

    def _candidates(self, log_probs: Tensor) -> tuple[Hypotheses, Tensor]:
        """The best continuations, twice as many as the beam is wide, since some may be ends."""
        # The best of all are among the best of each, which a GPU finds for all rows side by side.
        each, words = log_probs.topk(min(2 * self.beam, log_probs.shape[-1]))
        total = (self.growing.scores.unsqueeze(-1) + each).flatten(1)
        scores, numbers = total.topk(min(2 * self.beam, total.shape[1]))
        parents = numbers // each.shape[-1]
        grown = self.growing.chosen(parents)
        grown.words[..., self.length] = words.flatten(1).gather(1, numbers)
        grown.log_probs[..., self.length] = each.flatten(1).gather(1, numbers)
        return Hypotheses(grown.words, grown.log_probs, scores), parents

    def _finish(self, candidates: Hypotheses, ended: Bool[Tensor, "batch candidate"]) -> None:
        """Keeps ends among the first candidates, and at the greatest length all of these."""
        first = torch.arange(ended.shape[1], device=ended.device) < self.beam
        last = self.length == self.max_length
        kept = (ended | last) & first & ~self.done.unsqueeze(-1)
        scores = candidates.scores / penalty(self.length, self.strength)
        scores = scores.masked_fill(~kept, -torch.inf)
        new = Hypotheses(candidates.words, candidates.log_probs, scores)
        self.finished = self.finished.and_others(new).best(self.beam)
