"""The protocol of attention methods: how scores become a distribution over weights.

An `AttentionMethod` is the method for one chain of attention calls, such as the self-attention
layers of an encoder. To add a method, add one file to this folder with a configuration and such a
class.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_type_hints

from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Scores
from babn.attention.posterior import Posterior
from babn.errors import ConfigError
from babn.validation import LARGEST, check_at_least, check_choices

ALL = "all"
"""The default of `layers`."""

REMOVED = {"share": "auto", "upward_rank": 0, "upward_share": 1}
"""Settings of earlier versions, each with the value with which a file can still be read."""

KL_WEIGHT = 0.003
"""Weight of a KL that is a mean over query-key pairs; docs/settings.md compares others."""


@dataclass(frozen=True)
class ChainShape:
    """The sizes that determine the parameters of a method.

    Attributes:
        heads: Attention heads.
        head_dim: Size of one head's keys.
        parameter_sets: For each step of the chain the index of its parameters; steps that call one
            shared module share one set.
        rowwise: Whether queries see different keys, as in causal models; `None` where the mask of
            each call decides.

    Example:
        >>> albert = ChainShape(heads=12, head_dim=64, parameter_sets=(0,) * 12)
    """

    heads: int
    head_dim: int
    parameter_sets: tuple[int, ...]
    rowwise: bool | None = None


class AttentionMethod(nn.Module, ABC):
    r"""The method for one chain: a posterior over $W^l$ for each step $l$, from scores $\Phi^l$.

    Example:
        >>> import torch
        >>> from babn.attention.softmax import SoftmaxConfig
        >>> method = SoftmaxConfig().build(ChainShape(heads=1, head_dim=8, parameter_sets=(0,)))
        >>> scores = Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8))
        >>> method(0, scores, method.upward(scores)).mean_weights()
        tensor([[[[0.5000, 0.5000]]]])
    """

    def upward(self, first: Scores) -> Any:
        """The upward states, computed once per forward pass from the chain's first scores."""
        return None

    @abstractmethod
    def forward(self, step: int, scores: Scores, upward: Any) -> Posterior:
        """The posterior of step `step`.

        Args:
            step: Index of the call in the chain.
            scores: Its scores.
            upward: The upward states of the chain, from `upward`.
        """

    def observe(self, keys: Sequence[Float[Tensor, "batch keyhead key dim"]]) -> None:
        """Initialises data-dependent constants from the keys of each step in the dry run."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ABC):
    """Settings of every method; methods without parameters or without a prior ignore some.

    Attributes:
        layers: The attention layers that use the method; the others keep the model's attention.
            `"all"`, `"first:2"`, `"last:4"`, numbers such as `"0,2,5"` or `[0, 2, 5]`, globs on
            module names such as `"*.encoder_attn"`, or several of these separated by commas.
        attention_dropout: Whether the model's own dropout on attention weights stays on.
        kl_reduction: `"mean"` over query-key pairs, or `"sum"` per example (the true ELBO).
        kl_weight: Weight of the KL in the loss, until a schedule changes it.
        kernel: `"auto"` uses torch's attention where a call is softmax, fused kernels on NVIDIA
            GPUs, and the reference elsewhere; `"triton"` raises an error where kernels
            cannot run; `"reference"` always uses the reference.

    Example:
        >>> from babn.attention.softmax import SoftmaxConfig
        >>> MethodConfig.from_dict(SoftmaxConfig(layers=[0, 2]).to_dict()).layers
        '0,2'
    """

    name: ClassVar[str]
    known: ClassVar[dict[str, type["MethodConfig"]]] = {}

    layers: str | Sequence[int] = ALL
    attention_dropout: bool = False
    kl_reduction: Literal["mean", "sum"] = "mean"
    kl_weight: float = KL_WEIGHT
    kernel: Literal["auto", "reference", "triton"] = "auto"

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            cls.known[cls.name] = cls

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)
        object.__setattr__(self, "layers", normalized_layers(self.layers))
        check_at_least("kl_weight", self.kl_weight, 0.0)
        # Casts integer settings to float.
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if hint is float and type(value) is int and abs(value) <= LARGEST:
                object.__setattr__(self, name, float(value))

    @property
    def max_keys(self) -> int | None:
        """The largest number of keys that the method supports, or `None` for any."""
        return None

    @property
    def biases_keys(self) -> bool:
        """Whether samples are softmax attention with a random bias on each key."""
        return False

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        """Whether a call is softmax attention, which torch can compute."""
        return False

    @abstractmethod
    def build(self, shape: ChainShape) -> AttentionMethod:
        """The method for a chain."""

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a JSON file, in which `name` has the key `"rule"`."""
        return {"rule": self.name, **asdict(self)}

    @classmethod
    def completed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a file, with defaults of files that differ from those of the fields."""
        return settings

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MethodConfig":
        """The inverse of `to_dict`."""
        settings = dict(values)
        name = settings.pop("rule", None)
        if name not in cls.known:
            raise ConfigError(
                f"method={name!r} is not known. Known methods: {sorted(cls.known)}. "
                "Import the module that defines it first."
            )
        kind = cls.known[name]
        for name, neutral in REMOVED.items():
            value = settings.pop(name, neutral)
            if value != neutral:
                raise ConfigError(
                    f"{name}={value!r} is a setting of babn 0.1, which this version does not have. "
                    "Train without it, or use babn 0.1 for a model trained with it."
                )
        settings = kind.completed(settings)
        unknown = sorted(set(settings) - {field.name for field in fields(kind)})
        if unknown:
            raise ConfigError(f"{kind.__name__} has no field {', '.join(unknown)}.")
        return kind(**settings)


COUNTED = re.compile(r"(first|last):([1-9]\d*)")
NUMBER = re.compile(r"-?\d+")
GLOB = re.compile(r"(?!(first|last)\W?\d+$)[\w.*?\[\]!-]*[A-Za-z_*?][\w.*?\[\]!-]*")
"""Names of modules, but not misspelt forms such as `last4`."""

FORMS = '"all", "first:2", "last:4", "0,2,5" or [0, 2, 5], or names of modules as "*.self_attn"'


def normalized_layers(layers: str | Sequence[int]) -> str:
    """Validates a choice of layers and writes it as one string of terms separated by commas.

    Args:
        layers: One or several of `"all"`, `"first:N"`, `"last:N"`, a number from 0 on (negative
            ones count from the end) and a glob on names of modules; or a list of numbers.

    Example:
        >>> normalized_layers([0, 2, 5])
        '0,2,5'
    """
    if isinstance(layers, Sequence) and all(type(entry) is int for entry in layers):
        layers = ",".join(map(str, layers))
    terms = terms_of(layers) if isinstance(layers, str) else [""]
    if not all(any(form.fullmatch(term) for form in (COUNTED, NUMBER, GLOB)) for term in terms):
        raise ConfigError(f"layers={layers!r} is invalid. Give {FORMS}.")
    return ",".join(terms)


def terms_of(layers: str) -> list[str]:
    """The terms of a choice; a layer is chosen if any of them matches it."""
    return [term.strip() for term in layers.split(",")]
