"""The protocol of attention rules: how scores become weights.

A rule serves one chain of attention calls (the self-attention layers of an encoder, say). Adding a
rule means adding one file to this folder with a configuration and a rule class.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_type_hints

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.attention.fused import FusedResult, Request
from babn.attention.inputs import Inputs, Scores
from babn.attention.layers import ALL, normalized_layers
from babn.attention.noise_source import NoiseLike
from babn.errors import ConfigError
from babn.validation import LARGEST, check_at_least, check_choices

KL_WEIGHT = 0.003
"""Weight of a divergence that is a mean over query-key pairs; docs/settings.md tells of others."""


@dataclass(frozen=True)
class ChainShape:
    """The sizes that a rule needs to make its parameters.

    Attributes:
        heads: Attention heads.
        head_dim: Size of one head's keys.
        parameter_sets: For each step of the chain the set of parameters that serves it; steps that
            call one shared module share one set.
        rowwise: Whether queries differ in the keys that they see, as in causal models; `None` where
            the mask of each call decides.
    """

    heads: int
    head_dim: int
    parameter_sets: tuple[int, ...]
    rowwise: bool | None = None

    @property
    def steps(self) -> int:
        """Number of attention calls in one pass."""
        return len(self.parameter_sets)


class Posterior(ABC):
    """The distribution of one call's attention weights."""

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
        r"""Standard deviation divided by mean of the normalised weights; zero at masked keys.

        With mean weights $w_j$ and relative variances $c_j^2$ of the variables,

        $$v_j = (1 - 2 w_j) c_j^2 + \sum_l w_l^2 c_l^2, \qquad
        \frac{\mathrm{Var}\, W_j}{(E\, W_j)^2} = \frac{v_j}{1 + v_j w_j / (1 - w_j)}.$$

        $v_j$ is the first order in the noise. The quotient keeps it below $(1 - w_j) / w_j$, the
        most that a weight can vary, and makes it exact for gamma variables of one rate, whose
        weights have a Dirichlet distribution.
        """
        w, variance = self.mean_weights(), self.relative_std().square()
        dtype, wide = w.dtype, torch.float32 if w.device.type == "mps" else torch.float64
        w, variance = w.to(wide), variance.to(wide)  # the terms cancel where a weight is near one
        first_order = (1 - 2 * w) * variance + (w.square() * variance).sum(-1, keepdim=True)
        first_order = first_order.clamp(min=0).where(variance > 0, 0)
        rest = 1 - w
        bounded = first_order * rest / (rest + first_order * w).clamp(min=torch.finfo(wide).tiny)
        return bounded.sqrt().to(dtype)

    def at_level(self, level: float) -> "Posterior":
        """The posterior with its noise multiplied by a level and its mean kept."""
        return self

    def kl(self) -> Float[Tensor, "batch head #query key"] | None:
        """KL of each variable from its prior; `None` for methods without a prior."""
        return None

    def kl_mask(
        self, pairs: Bool[Tensor, "#batch #head #query key"] | None
    ) -> Bool[Tensor, "#batch #head #query key"] | None:
        """The variables that count in the KL, from the pairs that do."""
        return pairs


class AttentionRule(nn.Module, ABC):
    """Turns the scores of a chain's calls into posteriors over weights."""

    def climb(self, first: Scores) -> Any:
        """What every step needs of the chain's first scores; made once in a forward pass."""
        return None

    @abstractmethod
    def forward(self, step: int, scores: Scores, climbed: Any) -> Posterior:
        """The posterior of step `step`."""

    def observe(self, keys: Sequence[Float[Tensor, "batch keyhead key dim"]]) -> None:
        """Sets what parameters start from by the keys that each step had in the dry run."""

    def climb_fused(self, first: Inputs) -> Any:
        """What `climb` makes, from a call whose scores are not at hand."""
        return None

    def fused(self, step: int, inputs: Inputs, climbed: Any, request: Request) -> FusedResult:
        """The whole call of step `step`, for rules whose configuration says `fusible`."""
        raise NotImplementedError(f"{type(self).__name__} has no fused form.")


@dataclass(frozen=True, kw_only=True)
class RuleConfig(ABC):
    """Settings that every rule has; rules without parameters or without a prior ignore some.

    Attributes:
        layers: Which attention layers follow the rule; the others keep the model's own attention.
            `"all"`, `"first:2"`, `"last:4"`, numbers as `"0,2,5"` or `[0, 2, 5]`, globs on names of
            modules as `"*.encoder_attn"`, or several of these separated by commas.
        share: Which steps of a chain share parameters: `"auto"` those that call one shared module
            (as in ALBERT), `"none"` no two steps, `"all"` the whole chain.
        attention_dropout: Whether the model's own dropout on attention weights stays on.
        kl_reduction: `"mean"` over query-key pairs, or `"sum"` per example (the true ELBO).
        kl_weight: Weight of the divergence in the loss, until a schedule changes it.
        kernel: `"auto"` takes torch's own attention where a call is softmax, fused kernels on
            NVIDIA GPUs, and the reference elsewhere; `"triton"` refuses calls without a kernel;
            `"reference"` takes nothing else.
    """

    rule: ClassVar[str]
    known: ClassVar[dict[str, type["RuleConfig"]]] = {}

    layers: str | Sequence[int] = ALL
    share: Literal["auto", "none", "all"] = "auto"
    attention_dropout: bool = False
    kl_reduction: Literal["mean", "sum"] = "mean"
    kl_weight: float = KL_WEIGHT
    kernel: Literal["auto", "reference", "triton"] = "auto"

    def __init_subclass__(cls) -> None:
        if "rule" in cls.__dict__:
            cls.known[cls.rule] = cls

    def __post_init__(self) -> None:
        """Refuses values that cannot work."""
        check_choices(self)
        object.__setattr__(self, "layers", normalized_layers(self.layers))
        check_at_least("kl_weight", self.kl_weight, 0.0)
        self._take_whole_numbers()

    def _take_whole_numbers(self) -> None:
        """Makes broken numbers of whole ones, which torch computes with otherwise."""
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if hint is float and type(value) is int and abs(value) <= LARGEST:
                object.__setattr__(self, name, float(value))

    @property
    def max_keys(self) -> int | None:
        """The largest number of keys that the rule can take, or `None` for any."""
        return None

    @property
    def fusible(self) -> bool:
        """Whether the rule has Triton kernels."""
        return False

    @property
    def fusible_at_any_level(self) -> bool:
        """Whether the kernels know noise levels other than 1."""
        return False

    @property
    def biases_keys(self) -> bool:
        """Whether samples are softmax attention with a random bias on each key."""
        return False

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        """Whether a call is softmax attention, for which torch has kernels of its own."""
        return False

    @abstractmethod
    def build(self, shape: ChainShape) -> AttentionRule:
        """The rule for a chain."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a JSON file."""
        return {"rule": self.rule, **asdict(self)}

    @classmethod
    def completed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of a file with defaults that differ from the fields'."""
        return settings

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RuleConfig":
        """The inverse of `to_dict`."""
        settings = dict(values)
        name = settings.pop("rule", None)
        if name not in cls.known:
            raise ConfigError(
                f"rule={name!r} is not known. Known rules: {sorted(cls.known)}. "
                "Import the module that defines it first."
            )
        kind = cls.known[name]
        settings = kind.completed(settings)
        unknown = sorted(set(settings) - {field.name for field in fields(kind)})
        if unknown:
            raise ConfigError(f"{kind.__name__} has no field {', '.join(unknown)}.")
        return kind(**settings)
