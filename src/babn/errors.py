"""The errors that babn raises, each with the value that was wrong and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class BabnError(Exception):
    """Base of all errors raised on purpose by babn."""


class BabnWarning(UserWarning):
    """Something was not as it should be, and work goes on all the same."""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of a machine without enough memory, or of its GPU."""
    signs = "out of memory", "not enough memory", "can't allocate memory", "alloc_failed"
    told = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in told for sign in signs)


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Names like one that is not known, as a question; if there are none, something else."""
    near = get_close_matches(name, list(known), 3)
    return f"Did you mean {' or '.join(near)}?" if near else otherwise


class ConfigError(BabnError, ValueError):
    """A configuration field has a value that cannot work."""


class ParameterError(BabnError, ValueError):
    """A parameter of a distribution is outside of its domain."""


class KeyLengthError(BabnError, ValueError):
    """More keys than the key-axis upward path was built for."""


class NothingToConvertError(BabnError, ValueError):
    """No attention call of the model can be reached."""


class ConversionError(BabnError, RuntimeError):
    """The model's attention could be found but not replaced faithfully."""


class AlreadyConvertedError(BabnError, RuntimeError):
    """The model is converted already."""


class NotConvertedError(BabnError, RuntimeError):
    """The model is not converted, or the call does not come through its root."""


class NoKLError(BabnError, RuntimeError):
    """The KL of a forward pass that computed none."""


class ExampleInputsError(BabnError, ValueError):
    """The dry run needs example inputs, or those given do not run."""


class UnsupportedAttentionError(BabnError, NotImplementedError):
    """An attention feature that the rules do not define, such as attention sinks."""


class CheckpointingError(BabnError, RuntimeError):
    """A form of activation checkpointing under which gradients would be wrong."""


class MismatchError(BabnError, ValueError):
    """Saved belief weights do not fit the model."""


class FormatError(BabnError, ValueError):
    """A saved file is not what it should be, or of an unknown format version."""


class NonFiniteError(BabnError, ValueError):
    """A parameter is NaN or infinite."""


class DeviceError(BabnError, ValueError):
    """Inputs and model are on different devices."""


class SamplesError(BabnError, ValueError):
    """The number of samples is not a positive whole number, or does not fit the batch."""


class MissingExtraError(BabnError, ImportError):
    """An optional package is needed and not installed."""


class MetricInputError(BabnError, ValueError):
    """Probabilities, labels, scores or settings from which a metric cannot be computed."""


class DataError(BabnError, ValueError):
    """Data that a task cannot use: a missing file, a wrong column, an unknown label."""


class ModelError(BabnError, ValueError):
    """The model that was asked for cannot be had."""


class LeaderError(BabnError, RuntimeError):
    """The first of several processes has failed, and says why."""


class StorageError(BabnError, OSError):
    """A file cannot be written: the disk is full, or the folder may not be written to."""

    @classmethod
    def of(cls, path: Path, error: Exception) -> "StorageError":
        """What to say of a file and why it could not be written."""
        return cls(
            f"{path} cannot be written: {one_line(error)}. Make room or allow writing there; the "
            "file is as it was before."
        )
