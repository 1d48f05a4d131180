"""What attacks need beside a model: word vectors, a sentence encoder, a masked language model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
"""What TextAttack's recipes use unless told otherwise."""

NEEDS: dict[Recipe, tuple[Kind, ...]] = {
    "textfooler": ("vectors", "encoder", "nltk"),
    "textbugger": ("vectors", "encoder", "nltk"),
    "bae": ("masked_lm", "encoder", "nltk"),
}

Encode = Callable[[Sequence[str]], Tensor]
"""Texts to vectors, one row for each."""


class ResourceError(BabnError, RuntimeError):
    """Something that an attack needs is missing or damaged."""


@dataclass(frozen=True)
class Resource:
    """One thing that an attack used.

    Attributes:
        name: What it is called.
        original: What the recipe uses unless told otherwise.
        substituted: Whether it stands in for the original.
        fingerprint: Changes when its content does; empty for what TextAttack downloads.
        note: What a reader of the numbers should know about it.
    """

    name: str
    original: str
    substituted: bool
    fingerprint: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)


class Provider(ABC):
    """Where resources come from. `None` stands for what TextAttack brings itself."""

    @abstractmethod
    def describe(self, recipe: Recipe) -> dict[Kind, Resource]:
        """What a recipe will use; refuses if something is not there."""

    @property
    @abstractmethod
    def nltk_data(self) -> Path | None:
        """The folder of NLTK's data."""

    @abstractmethod
    def embedding(self, base: type[Any]) -> Any | None:
        """Word vectors or a table of neighbours.

        Args:
            base: TextAttack's class of word embeddings.
        """

    @abstractmethod
    def encoder(self) -> Encode | None:
        """The sentence encoder."""

    @abstractmethod
    def masked_lm(self) -> tuple[Any, Any] | None:
        """The masked language model and its tokenizer."""


class Downloads(Provider):
    """TextAttack's own resources, which it downloads."""

    def describe(self, recipe: Recipe) -> dict[Kind, Resource]:
        """The originals by name."""
        return {kind: Resource(ORIGINALS[kind], ORIGINALS[kind], False) for kind in NEEDS[recipe]}

    @property
    def nltk_data(self) -> Path | None:
        """Where NLTK keeps it."""
        return None

    def embedding(self, base: type[Any]) -> Any | None:
        """TextAttack's."""
        return None

    def encoder(self) -> Encode | None:
        """TextAttack's."""
        return None

    def masked_lm(self) -> tuple[Any, Any] | None:
        """TextAttack's."""
        return None
