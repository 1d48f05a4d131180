"""Inputs of `babn.predict` and similar functions: batches, loaders and texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from babn.conversion.example_inputs import as_call
from babn.devices import device_of
from babn.errors import ConfigError, SamplesError
from babn.progress import bar
from babn.validation import check_count

Rows = TypeVar("Rows")

Text = str | tuple[str, str] | list[str]
"""A text, or a pair of texts."""

TARGETS = {"labels", "label", "label_ids", "start_positions", "end_positions", "mc_labels"}
"""Names of targets, with which models return a loss before their logits."""


@dataclass(frozen=True)
class Batches:
    """The batches in the data that a user passes.

    Attributes:
        batches: The batches, on the model's device unless there is only one.
        order: The index that restores the order of the texts, which are batched by length.
        single: Whether the data is one batch.
    """

    batches: Iterable[Any]
    order: Tensor | None = None
    single: bool = False

    @staticmethod
    def of(
        model: nn.Module, data: Any, tokenizer: Any, batch_size: int, **encoding: Any
    ) -> "Batches":
        """Batches from one batch, from an iterable of batches, or from texts."""
        if is_single(data):
            return Batches([data], single=True)
        if are_texts(data):
            device = device_of(model)
            return Batches(*text_batches(tokenizer, data, batch_size, device, **encoding))
        return Batches(placed_batches(data, device_of(model)))

    def in_order(self, rows: Rows) -> Rows:
        """The rows of all batches in the order of the texts."""
        return rows if self.order is None else rows[self.order]  # type: ignore[index]

    def shown(self, task: str, progress: bool) -> Iterator[Any]:
        """Yields the batches, with a progress bar unless there is only one."""
        total = len(self.batches) if isinstance(self.batches, Sized) else None
        shown = bar(task, total, progress and total != 1)
        empty = True
        try:
            for batch in self.batches:
                empty = False
                yield batch
                shown.update()
        finally:
            shown.close()
        if empty:
            raise SamplesError("data has no batches. Pass at least one example.")


def is_single(data: Any) -> bool:
    """Whether `data` is one batch: a mapping, a tensor, or the positional arguments of a call."""
    if isinstance(data, Mapping | Tensor) or not isinstance(data, Iterable):
        return True
    if not isinstance(data, tuple | list):
        return False
    return len(data) > 0 and all(isinstance(each, Tensor) for each in data)


def are_texts(data: Any) -> bool:
    """Whether `data` is a sequence of texts or of pairs of texts."""
    if isinstance(data, str):
        raise ConfigError(f"data={data[:40]!r} is one text. Pass a list of texts.")
    return isinstance(data, Sequence) and len(data) > 0 and all(_is_text(each) for each in data)


def _is_text(value: Any) -> bool:
    pair = isinstance(value, tuple | list) and len(value) == 2
    return isinstance(value, str) or (pair and all(isinstance(each, str) for each in value))


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the model for a batch, without targets."""
    args, named = as_call(batch)
    return args, without_targets(named)


def without_targets(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch without its labels and other targets."""
    return {name: value for name, value in batch.items() if name not in TARGETS}


def encode(tokenizer: Any, texts: Sequence[Text], device: torch.device, **settings: Any) -> Any:
    """Tokenizes texts or pairs of texts into one padded batch."""
    settings = {"padding": True, "truncation": True, "return_tensors": "pt", **settings}
    return tokenizer(*text_columns(texts), **settings).to(device)


def text_columns(texts: Sequence[Text]) -> list[list[str]]:
    """The texts as arguments of a tokenizer: one list, or the first and the second of all pairs."""
    rows = [(text,) if isinstance(text, str) else text for text in texts]
    if len({len(row) for row in rows}) > 1:
        raise ConfigError("The data mixes texts with pairs of texts. Pass one kind at a time.")
    return [list(column) for column in zip(*rows, strict=True)]


def text_batches(
    tokenizer: Any, texts: Sequence[Text], size: int, device: torch.device, **settings: Any
) -> tuple[list[Any], Tensor]:
    """Batches of texts of similar lengths, and the index that restores the order of the texts."""
    if tokenizer is None:
        raise ConfigError(
            "tokenizer=None, but data is a list of texts. Pass the model's tokenizer."
        )
    check_count("batch_size", size)
    lengths = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    batches = [encode(tokenizer, [texts[i] for i in part], device, **settings) for part in parts]
    return batches, torch.tensor(order).argsort()


def placed_batches(data: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The batches of an iterable, moved to a device."""
    for batch in data:
        yield _placed(batch, device)


def _placed(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _placed(each, device) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_placed(each, device) for each in value)
    return value
