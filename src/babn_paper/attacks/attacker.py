"""What the engine asks of an attacker."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from babn.errors import BabnError


class ExampleError(BabnError, ValueError):
    """An example that an attacker cannot handle; other examples may be fine."""


@dataclass(frozen=True)
class Attempt:
    """What came of attacking one example.

    Attributes:
        skipped: Whether the model was wrong before anything was changed.
        succeeded: Whether the model was right before and is wrong now.
        texts: The texts as the attacker left them, by column.
        probs_before: Probabilities of the classes for the original texts.
        probs_after: The same for the changed ones, as the attacker saw them.
        queries: How often the model was asked.
    """

    skipped: bool
    succeeded: bool
    texts: Mapping[str, str]
    probs_before: tuple[float, ...]
    probs_after: tuple[float, ...]
    queries: int


class Attacker(ABC):
    """Changes texts until its victim gives a wrong answer."""

    @abstractmethod
    def attack(self, texts: Mapping[str, str], label: int, seed: int) -> Attempt:
        """Tries to change the answer to one example.

        Args:
            texts: Its texts by column.
            label: The right answer.
            seed: Decides what the attacker does at random.

        Raises:
            ExampleError: If the attacker cannot handle the example.
        """
