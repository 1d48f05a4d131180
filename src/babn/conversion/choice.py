"""Which of a model's attention calls follow the rule; the others keep what they had."""

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from babn.attention.layers import ALL, COUNTED, FORMS, NUMBER, terms_of
from babn.conversion.plan import Call
from babn.errors import ConfigError


def choose(calls: Sequence[Call], layers: str) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """The calls that a choice of layers takes, and those that it leaves.

    Numbers count the calls of a stack in the order of a pass. A stack is made of the calls whose
    modules' paths differ in numbers only: a decoder has one, an encoder with a decoder three. A
    module that is called several times, as in ALBERT, is one layer for each call.

    Args:
        calls: All calls, in the order of a pass.
        layers: The choice, as in `RuleConfig.layers`.
    """
    stacks = list(stacks_of(calls).values())
    taken: set[int] = set()
    for term in terms_of(layers):
        found = {call.order for stack in stacks for call in _matches(term)(stack)}
        if not found:
            raise ConfigError(
                f"layers={layers!r}: {term!r} matches no attention call. There are "
                f"{describe_stacks(calls)}. Give {FORMS}."
            )
        taken |= found
    chosen = tuple(call for call in calls if call.order in taken)
    return chosen, tuple(call for call in calls if call.order not in taken)


def stacks_of(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """Calls by the paths of their modules without the numbers."""
    stacks: dict[str, list[Call]] = {}
    for call in calls:
        stacks.setdefault(re.sub(r"\d+", "*", call.path), []).append(call)
    return stacks


def describe_stacks(calls: Iterable[Call]) -> str:
    """The stacks with how many layers each has, in words."""
    return ", ".join(
        f"{name or 'root'} (0 to {len(stack) - 1})" for name, stack in stacks_of(calls).items()
    )


def _matches(term: str) -> Callable[[list[Call]], list[Call]]:
    """Takes a term's part of a stack."""
    if term == ALL:
        return lambda stack: stack
    if counted := COUNTED.fullmatch(term):
        count = int(counted[2])
        return lambda stack: stack[:count] if counted[1] == "first" else stack[-count:]
    if NUMBER.fullmatch(term):
        number = int(term)
        return lambda stack: stack[number : number + 1 or None]
    return lambda stack: [call for call in stack if fnmatchcase(call.path, term)]
