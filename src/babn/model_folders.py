"""Validates a transformers folder before transformers builds a model from it.

The folder is not trusted: its configuration must not make transformers fetch or run code.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from babn.errors import FormatError
from babn.validation import shown

LOCAL = {"trust_remote_code": False, "local_files_only": True}
"""Arguments of `from_pretrained` that keep it from fetching files and running remote code."""

IMPLEMENTATIONS = {
    "attn_implementation": ("eager", "sdpa", "flex_attention"),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}
"""Allowed values of fields whose other values make transformers fetch or import kernels; some
configurations have the fields as `_NAME` or `_NAME_internal`."""

QUANTISED = "bitsandbytes"
"""The only quantisation method that needs no kernels from the hub."""


def check_local(config: Mapping[str, Any], path: Path, kwargs: Mapping[str, Any]) -> None:
    """Validates that a configuration does not make transformers fetch or run code.

    Args:
        config: The content of `config.json`.
        path: Its path, for error messages.
        kwargs: The caller's arguments for `from_pretrained`.
    """
    for name, value in fields(config):
        allowed = IMPLEMENTATIONS.get(name.removeprefix("_").removesuffix("_internal"))
        if allowed is not None and not _is_among(value, allowed):
            raise FormatError(
                f"{path} has {name}={shown(value)}, which transformers may fetch and run. Remove "
                f"the field, or write one of {list(allowed)}."
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
            f"{path.parent} holds an adapter beside the model. Move it to another folder and load "
            "it with peft, after babn.load."
        )


def fields(config: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of each field of a configuration, including nested ones."""
    rest = [config]
    while rest:
        values = rest.pop()
        if isinstance(values, dict):
            yield from values.items()
            rest += values.values()
        elif isinstance(values, list):
            rest += values


def _is_among(value: Any, allowed: tuple[str, ...]) -> bool:
    """Whether an implementation, or one for each nested configuration, is allowed."""
    values = list(value.values()) if isinstance(value, dict) else [value]
    return all(each is None or each in allowed for each in values)


def is_hub_name(name: str | Path) -> bool:
    """Whether a name has the form of one on the hub, such as `me/reviews`."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def find_folder(name: str | Path, patterns: Sequence[str], **settings: Any) -> Path:
    """The folder of a model: the one that is named, or a copy of that on the hub.

    Args:
        name: A folder; if there is none of this name, a name on the hub such as `me/reviews`.
        patterns: Files to fetch.
        **settings: Arguments of `huggingface_hub.snapshot_download`, such as `revision`.
    """
    if Path(name).exists() or not is_hub_name(name):
        return Path(name)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(name), allow_patterns=list(patterns), **settings))
    except Exception as error:  # of many kinds: no network, no access, no such model
        first = (str(error).strip() or type(error).__name__).splitlines()[0].removeprefix("Got: ")
        raise FormatError(
            f"{name} does not exist as a folder, and cannot be fetched from the hub "
            f"({first.rstrip('.')[:200]}). Check the name."
        ) from error
