"""Resources of attacks: word vectors, sentence encoder, masked language model, NLTK data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from babn.errors import BabnError
from babn_paper.attacks.plan import Recipe

Kind = Literal["vectors", "encoder", "masked_lm", "nltk"]

ORIGINALS: dict[Kind, str] = {
    "vectors": "counter-fitted GloVe vectors (Mrkšić et al. 2016)",
    "encoder": "Universal Sentence Encoder, version 3",
    "masked_lm": "bert-base-uncased",
    "nltk": "NLTK's stop words and averaged perceptron tagger",
}
"""The resources that TextAttack's recipes use by default."""

NEEDS: dict[Recipe, tuple[Kind, ...]] = {
    "textfooler": ("vectors", "encoder", "nltk"),
    "textbugger": ("vectors", "encoder", "nltk"),
    "bae": ("masked_lm", "encoder", "nltk"),
}

Encode = Callable[[Sequence[str]], Tensor]
"""Encodes texts as vectors, one row each."""


class ResourceError(BabnError, RuntimeError):
    """A resource of an attack is missing or damaged."""


@dataclass(frozen=True)
class Resource:
    """A resource of an attack.

    Attributes:
        name: Its name.
        original: The resource that the recipe uses by default.
        substituted: Whether it stands in for the original.
        fingerprint: Hash of its content; empty for TextAttack's downloads.
        note: A remark for readers of the results.
    """

    name: str
    original: str
    substituted: bool
    fingerprint: str = ""
    note: str = ""


class Provider:
    """Provides resources; `None` stands for TextAttack's own, which it downloads."""

    def describe(self, recipe: Recipe) -> dict[Kind, Resource]:
        """The resources of a recipe; raises if one is missing."""
        return {kind: Resource(ORIGINALS[kind], ORIGINALS[kind], False) for kind in NEEDS[recipe]}

    @property
    def nltk_data(self) -> Path | None:
        """The folder of NLTK's data."""
        return None

    def embedding(self, base: type[Any]) -> Any | None:
        """Word vectors or a table of neighbours.

        Args:
            base: TextAttack's class of word embeddings.
        """
        return None

    def encoder(self) -> Encode | None:
        """The sentence encoder."""
        return None

    def masked_lm(self) -> tuple[Any, Any] | None:
        """The masked language model and its tokenizer."""
        return None
