"""Maps of attention weights and of their uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.posterior import Posterior
from babn.conversion.example_inputs import as_call
from babn.conversion.override import overriding
from babn.errors import ConfigError, FormatError
from babn.prediction.batches import Batches, arguments
from babn.prediction.result import cat_padded, data_frame, rows_at
from babn.prediction.sampling import evaluating
from babn.tensor_files import read_tensors, write_tensors


@dataclass(frozen=True)
class AttentionMap:
    """The posterior of one attention call for every example.

    Indexing selects examples and keeps the batch dimension, so that `map[3]` is the map of one
    example. All values are zero where a shorter example was padded.

    Attributes:
        name: The call's chain and step.
        mean: Posterior mean weights, normalised over keys.
        relative_std: Standard deviation divided by mean of the normalised weights; zero at masked
            keys.
        variable_relative_std: Standard deviation divided by mean of the unnormalised weights, which
            the paper's figures show.
    """

    name: str
    mean: Float[Tensor, "batch head query key"]
    relative_std: Float[Tensor, "batch head query key"]
    variable_relative_std: Float[Tensor, "batch head query key"] | None = None

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.mean)

    def __getitem__(self, index: Any) -> "AttentionMap":
        """The map of some examples: an integer, a slice, a list, or a mask."""
        rows = rows_at(index, len(self))
        return AttentionMap(self.name, **{name: x[rows] for name, x in self._tensors.items()})

    def __repr__(self) -> str:
        """One line with the sizes and the mean uncertainty."""
        examples, heads, queries, keys = self.mean.shape
        spread = float((self.mean * self.relative_std).sum() / self.mean.sum().clamp(min=1e-9))
        return (
            f"AttentionMap({self.name}, {examples} examples, {heads} heads, {queries} queries, "
            f"{keys} keys, mean relative std {spread:.3f})"
        )

    @staticmethod
    def cat(maps: Sequence["AttentionMap"]) -> "AttentionMap":
        """Joins the maps of one call for several batches, padded with zeros to the longest."""
        kinds = {(m.name, m.mean.shape[1], m.variable_relative_std is None) for m in maps}
        if len(kinds) != 1:
            found = sorted(f"{name} with {heads} heads" for name, heads, _ in kinds)
            raise ConfigError(f"Maps of different calls cannot be joined: {', '.join(found)}.")
        parts = [m._tensors for m in maps]
        joined = {name: cat_padded([part[name] for part in parts], 0) for name in parts[0]}
        return AttentionMap(maps[0].name, **joined)

    def to(self, device: torch.device | str) -> "AttentionMap":
        """The map on another device."""
        return AttentionMap(self.name, **{name: x.to(device) for name, x in self._tensors.items()})

    def save(self, path: Path | str) -> None:
        """Writes the map to a safetensors file, which `AttentionMap.load` reads."""
        write_tensors(Path(path), self._tensors, {"name": self.name})

    @staticmethod
    def load(path: Path | str) -> "AttentionMap":
        """Reads a file that `save` wrote."""
        tensors, about = read_tensors(Path(path))
        try:
            return AttentionMap(about["name"], **tensors)
        except (KeyError, TypeError) as error:
            raise FormatError(f"{path} holds no attention map.") from error

    def to_pandas(self) -> Any:
        """A data frame with one row for each weight that is not zero.

        Columns: `example`, `head`, `query`, `key`, `mean`, `relative_std`.
        """
        seen = self.mean.cpu() > 0
        names = ("example", "head", "query", "key")
        columns = dict(zip(names, seen.nonzero().T, strict=True))
        values = {"mean": self.mean, "relative_std": self.relative_std}
        return data_frame(columns | {name: x.cpu()[seen] for name, x in values.items()})

    @property
    def _tensors(self) -> dict[str, Tensor]:
        """The tensors by name; `variable_relative_std` only if it is known."""
        names = ("mean", "relative_std", "variable_relative_std")
        return {name: x for name in names if (x := getattr(self, name)) is not None}


def attention_maps(
    model: nn.Module,
    data: Any,
    *,
    tokenizer: Any = None,
    batch_size: int = 32,
    progress: bool = True,
) -> list[AttentionMap]:
    """Returns the posterior mean and relative std of every attention call, in call order.

    Maps of an iterable or of texts are joined on the CPU, padded with zeros to the longest. They
    take 12 bytes for each call, example, head, query and key.

    Args:
        model: A converted model; its training mode is restored afterwards.
        data: A batch, an iterable of batches, or a list of texts or of pairs of texts, as for
            `babn.predict`.
        tokenizer: The model's tokenizer, for texts.
        batch_size: Texts in one batch.
        progress: Whether to show a progress bar over several batches, if tqdm is installed.
    """
    batches = Batches.of(model, data, tokenizer, batch_size)
    found = []
    for batch in batches.shown("attention maps", progress):
        maps = _maps(model, batch)
        if batches.single:
            return maps
        found.append([each.to("cpu") for each in maps])
    joined = (AttentionMap.cat(of_call) for of_call in zip(*found, strict=True))
    return [batches.in_order(each) for each in joined]


def _maps(model: nn.Module, batch: Any) -> list[AttentionMap]:
    """The maps of one batch."""
    # Encoder-decoders make the decoder's inputs from the labels.
    has_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    args, kwargs = as_call(batch) if has_decoder else arguments(batch)
    posteriors: list[tuple[str, Posterior]] = []
    override = overriding(model, mode="mean", posteriors=posteriors)
    with torch.no_grad(), evaluating(model), override:
        model(*args, **kwargs)
        return [
            AttentionMap(name, p.mean_weights(), p.weight_relative_std(), p.relative_std())
            for name, p in posteriors
        ]
