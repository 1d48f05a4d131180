"""The protocol of attention methods: how scores become a distribution over weights.

An `AttentionMethod` is the method for one chain of attention calls, such as the self-attention
layers of an encoder. To add a method, add one file to this folder with a configuration and such a
class.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_type_hints

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.attention.inputs import Scores
from babn.attention.layers import ALL, normalized_layers
from babn.attention.noise_source import NoiseLike
from babn.errors import ConfigError
from babn.validation import LARGEST, check_at_least, check_choices

KL_WEIGHT = 0.003
"""Weight of a KL that is a mean over query-key pairs; docs/settings.md compares others."""

LARGEST_VARIANCE = 1e12
"""Ceiling of relative variances, above which a normalised weight varies as much as it can."""


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
        >>> ChainShape(heads=12, head_dim=64, parameter_sets=(0, 0, 0)).steps  # as in ALBERT
        3
    """

    heads: int
    head_dim: int
    parameter_sets: tuple[int, ...]
    rowwise: bool | None = None

    @property
    def steps(self) -> int:
        """Number of attention calls in one forward pass."""
        return len(self.parameter_sets)


class Posterior(ABC):
    r"""The distribution of the attention weights of one call, $W = S / \sum S$.

    $S$ are unnormalised positive variables, one for each query and key. Subclasses define their
    distribution.

    Example:
        >>> from babn.attention.softmax import PointMass
        >>> posterior = PointMass(Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8)))
        >>> posterior.mean_weights()
        tensor([[[[0.5000, 0.5000]]]])
    """

    @abstractmethod
    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """Weights with the unnormalised variables at their means."""

    @abstractmethod
    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """Weights drawn from the posterior."""

    @abstractmethod
    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        """Standard deviation divided by mean of the unnormalised variables; zero at masked keys."""

    def weight_relative_std(self) -> Float[Tensor, "batch head query key"]:
        r"""Approximate standard deviation divided by mean of the normalised weights.

        Zero at masked keys. For mean weights $w_j$ and relative variances $c_j^2$ of the variables,

        $$v_j = (1 - 2 w_j) c_j^2 + \sum_l w_l^2 c_l^2, \qquad
        \frac{\mathrm{Var}\, W_j}{(E\, W_j)^2} = \frac{v_j}{1 + v_j w_j / (1 - w_j)}.$$

        $v_j$ is of first order in the noise. The quotient bounds it by $(1 - w_j) / w_j$, the
        largest relative variance of a weight, and makes it exact for gamma variables of one rate,
        whose weights have a Dirichlet distribution.
        """
        w, variance = self.mean_weights(), self.relative_std().square()
        dtype, wide = w.dtype, torch.float32 if w.device.type == "mps" else torch.float64
        # The terms cancel where a weight is near one, and overflow where the noise is very strong.
        w, variance = w.to(wide), variance.to(wide).clamp(max=LARGEST_VARIANCE)
        first_order = (1 - 2 * w) * variance + (w.square() * variance).sum(-1, keepdim=True)
        first_order = first_order.clamp(min=0).where(variance > 0, 0)
        rest = 1 - w
        bounded = first_order * rest / (rest + first_order * w).clamp(min=torch.finfo(wide).tiny)
        return bounded.sqrt().to(dtype)

    def at_level(self, level: float) -> "Posterior":
        """The posterior with the same mean and its noise multiplied by a level."""
        return self

    def kl(self) -> Float[Tensor, "batch head #query key"] | None:
        """KL of each variable from its prior; `None` for methods without a prior."""
        return None

    def kl_mask(
        self,
        mask: Bool[Tensor, "#batch #head #query key"] | None,
        rows: Bool[Tensor, "#batch #head query"] | None,
    ) -> Bool[Tensor, "#batch #head #query #key"] | None:
        """The variables that enter the KL.

        Args:
            mask: The pairs that take part.
            rows: The queries that count.
        """
        if rows is None:
            return mask
        return rows.unsqueeze(-1) if mask is None else mask & rows.unsqueeze(-1)


class AttentionMethod(nn.Module, ABC):
    r"""The method for one chain: a posterior over $W^l$ for each step $l$, from scores $\Phi^l$.

    Example:
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
            upward: What `upward` returned for the chain.
        """

    def observe(self, keys: Sequence[Float[Tensor, "batch keyhead key dim"]]) -> None:
        """Initialises data-dependent constants from the keys of each step in the dry run."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ABC):
    """Settings of every method; methods without parameters or without a prior ignore some.

    Attributes:
        layers: Which attention layers use the method; the others keep the model's own attention.
            `"all"`, `"first:2"`, `"last:4"`, numbers as `"0,2,5"` or `[0, 2, 5]`, globs on names of
            modules as `"*.encoder_attn"`, or several of these separated by commas.
        share: Which steps of a chain share parameters: `"auto"` those that call one shared module
            (as in ALBERT), `"none"` no two steps, `"all"` the whole chain.
        attention_dropout: Whether the model's own dropout on attention weights stays on.
        kl_reduction: `"mean"` over query-key pairs, or `"sum"` per example (the true ELBO).
        kl_weight: Weight of the KL in the loss, until a schedule changes it.
        kernel: `"auto"` uses torch's attention where a call is softmax, fused kernels on NVIDIA
            GPUs, and the reference elsewhere; `"triton"` raises an error where kernels
            cannot run; `"reference"` uses the reference always.

    Example:
        >>> from babn.attention.softmax import SoftmaxConfig
        >>> MethodConfig.from_dict(SoftmaxConfig(layers=[0, 2]).to_dict()).layers
        '0,2'
    """

    name: ClassVar[str]
    known: ClassVar[dict[str, type["MethodConfig"]]] = {}

    layers: str | Sequence[int] = ALL
    share: Literal["auto", "none", "all"] = "auto"
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
        self._cast_integers()

    def _cast_integers(self) -> None:
        """Casts integer settings to float."""
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
        settings = kind.completed(settings)
        unknown = sorted(set(settings) - {field.name for field in fields(kind)})
        if unknown:
            raise ConfigError(f"{kind.__name__} has no field {', '.join(unknown)}.")
        return kind(**settings)
