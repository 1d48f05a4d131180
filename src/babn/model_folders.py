"""What is checked of a transformers folder before transformers builds a model from it.

A folder may come from anywhere. Its configuration must not make transformers fetch or run code, nor
describe a model that is larger than the weights beside it.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from babn.errors import FormatError, MismatchError, one_line
from babn.validation import shown

LOCAL = {"trust_remote_code": False, "local_files_only": True}
"""Arguments of `from_pretrained` under which it neither fetches anything nor runs code it finds."""

ATTENTION, EXPERTS = ("eager", "sdpa", "flex_attention"), ("eager", "batched_mm", "grouped_mm")

IMPLEMENTATIONS = {
    "attn_implementation": ATTENTION,
    "_attn_implementation": ATTENTION,
    "_attn_implementation_internal": ATTENTION,
    "experts_implementation": EXPERTS,
    "_experts_implementation": EXPERTS,
    "_experts_implementation_internal": EXPERTS,
}
"""What is allowed of fields whose other values make transformers fetch or import kernels."""

QUANTISED = "bitsandbytes"
"""The one method of quantisation that needs no kernels from a hub."""

ROOM = 2**26
"""Elements that a model may have beyond its weights: tables of positions and the like."""


def check_local(config: Mapping[str, Any], path: Path, kwargs: Mapping[str, Any]) -> None:
    """Refuses a configuration that makes transformers fetch or run code.

    Args:
        config: What `config.json` holds.
        path: Where it is, for errors.
        kwargs: The caller's arguments for `from_pretrained`.
    """
    for name, value in fields(config):
        if name in IMPLEMENTATIONS and not _is_among(value, IMPLEMENTATIONS[name]):
            raise FormatError(
                f"{path} has {name}={shown(value)}, which transformers may fetch and run. Remove "
                f"the field, or write one of {list(IMPLEMENTATIONS[name])}."
            )
        if name == "quantization_config" and "quantization_config" not in kwargs:
            method = value.get("quant_method", QUANTISED) if isinstance(value, dict) else QUANTISED
            if method != QUANTISED:
                raise FormatError(
                    f"{path} has quant_method={shown(method)}, for which transformers may fetch "
                    "kernels. If you trust the folder, pass quantization_config to babn.load."
                )
    if "transformers_weights" in config:
        raise FormatError(
            f"{path} has transformers_weights={shown(config['transformers_weights'])}. Remove the "
            "field: babn.load reads model*.safetensors."
        )
    if (path.parent / "adapter_config.json").exists():
        raise FormatError(
            f"{path.parent} holds an adapter beside the model. Load the adapter from a folder of "
            "its own by peft, after babn.load."
        )


def fields(config: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of each field of a configuration, those of inner ones included."""
    rest = [config]
    while rest:
        values = rest.pop()
        if isinstance(values, dict):
            yield from values.items()
            rest += values.values()
        elif isinstance(values, list):
            rest += values


def _is_among(value: Any, allowed: tuple[str, ...]) -> bool:
    """Whether an implementation, or one for each inner configuration, is an allowed one."""
    values = list(value.values()) if isinstance(value, dict) else [value]
    return all(each is None or each in allowed for each in values)


def check_size(
    model_class: Any, folder: Path, config: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuses a configuration of a model much larger than its weights, before it is built.

    The model is built on the meta device, where it takes no memory.
    """
    shapes, size = weight_shapes(folder)
    _check_counts(config, len(shapes), sum(map(math.prod, shapes.values())), folder)
    described = 0
    with suppress(Exception):  # whatever it is, transformers meets it too and reports it
        own, _ = model_class.config_class.from_pretrained(
            folder, return_unused_kwargs=True, **{**LOCAL, **kwargs}
        )
        with torch.device("meta"):
            model = model_class(own)
        tensors = {id(x): x for x in (*model.parameters(), *model.buffers())}
        described = sum(x.numel() for x in tensors.values())
    if described > 2 * size + ROOM:  # four bits for each element
        raise MismatchError(
            f"{folder / 'config.json'} describes a model of {described} numbers; the weights in "
            f"the folder have {size} bytes. Load the configuration that belongs to them."
        )


def _check_counts(config: Mapping[str, Any], tensors: int, elements: int, folder: Path) -> None:
    """Refuses more layers, experts or labels than the weights can be of: each is an object."""
    for name, value in fields(config):
        if not isinstance(value, int):
            continue
        many = any(part in name for part in ("layer", "expert", "depth", "block"))
        most = tensors + 1000 if many else elements + 1000
        if value > most and (many or name == "num_labels"):
            raise MismatchError(
                f"{folder / 'config.json'} has {name}={shown(value)}, more than the {tensors} "
                "tensors in the folder are for. Load the configuration that belongs to them."
            )


def weight_files(folder: Path) -> list[Path]:
    """The files with a model's weights."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise FormatError(f"{folder} has no model*.safetensors; other formats are not read.")
    return files


def weight_shapes(folder: Path) -> tuple[dict[str, tuple[int, ...]], int]:
    """The shapes of a model's weights by name, and the size of their files in bytes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise FormatError(
                f"{path} is damaged: {one_line(error)}. Save the model again."
            ) from error
    return shapes, sum(path.stat().st_size for path in weight_files(folder))
