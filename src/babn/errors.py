"""Errors of babn. Messages name the argument, the value and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any


class BabnError(Exception):
    """Base class of all errors of babn."""


class BabnWarning(UserWarning):
    """Base class of all warnings of babn."""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that CPU or GPU memory is exhausted."""
    signs = "out of memory", "not enough memory", "can't allocate memory", "alloc_failed"
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in message for sign in signs)


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggests similar known names, or returns `otherwise` if there are none."""
    near = get_close_matches(name, list(known), 3)
    return f"Did you mean {' or '.join(near)}?" if near else otherwise


class ConfigError(BabnError, ValueError):
    """A configuration field has an invalid value."""


class ParameterError(BabnError, ValueError):
    """A parameter of a distribution is outside of its domain."""


class KeyLengthError(BabnError, ValueError):
    """More keys than the key-axis upward path was built for."""


class NothingToConvertError(BabnError, ValueError):
    """The model makes no attention call that can be converted."""


class ConversionError(BabnError, RuntimeError):
    """The model's attention was found but cannot be replaced faithfully."""


class AlreadyConvertedError(BabnError, RuntimeError):
    """The model is already converted."""


class NotConvertedError(BabnError, RuntimeError):
    """The model is not converted, or was not called through its root."""


class NoKLError(BabnError, RuntimeError):
    """The KL was requested after a forward pass that computed none."""


class ExampleInputsError(BabnError, ValueError):
    """The dry run needs example inputs, or those given do not run."""


class UnsupportedAttentionError(BabnError, NotImplementedError):
    """An attention feature that is not supported, such as attention sinks."""


class CheckpointingError(BabnError, RuntimeError):
    """A kind of activation checkpointing under which gradients would be wrong."""


class MismatchError(BabnError, ValueError):
    """Saved parameters do not fit the model."""


class FormatError(BabnError, ValueError):
    """A saved file is damaged, or of an unknown format version."""


class NonFiniteError(BabnError, ValueError):
    """A parameter is NaN or infinite."""


class SamplesError(BabnError, ValueError):
    """The number of samples is not a positive whole number, or does not fit the batch."""


class MissingExtraError(BabnError, ImportError):
    """An optional package is needed and not installed."""


def import_extra(module: str, need: str, extra: str) -> Any:
    """Imports a module of an optional package.

    Args:
        module: Name of the module.
        need: What needs which package, as the beginning of the error message.
        extra: The extra of babn that installs the package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{need}: pip install 'babn[{extra}]'") from error


class MetricInputError(BabnError, ValueError):
    """Probabilities, labels, scores or settings from which a metric cannot be computed."""


class DataError(BabnError, ValueError):
    """Invalid data of a task: a missing file, a wrong column, an unknown label."""


class ModelError(BabnError, ValueError):
    """The requested model cannot be loaded."""


class LeaderError(BabnError, RuntimeError):
    """Rank zero of several processes failed; the message is its error."""


class StorageError(BabnError, OSError):
    """A file cannot be written, for example because the disk is full."""

    @classmethod
    def of(cls, path: Path, error: Exception) -> "StorageError":
        """The error for a file that could not be written."""
        return cls(
            f"{path} cannot be written: {one_line(error)}. Free disk space or check permissions; "
            "the file is unchanged."
        )
