"""Chooses how an attention call is computed: by the reference, torch's attention or Triton kernels.

The modules of `babn.attention` define the methods. `key_inputs.attend` and `pair_inputs.attend`
take such a module and a call, and compute the same by kernels, which store no tensor of query-key
pairs for each operation. Triton is imported at the first such call.
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from os import environ
from typing import Any, Literal

import torch

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.inputs import Inputs
from babn.attention.keys import SMALLEST_K
from babn.attention.masking import is_rowwise
from babn.attention.method import MethodConfig
from babn.errors import UnsupportedAttentionError
from babn.kernels.sdpa import takes_softmax

LARGEST_HEAD = 256
"""Largest head size with kernels."""


Implementation = Literal["reference", "softmax", "factors", "key kernels", "pair kernels"]
"""How a call is computed: by the modules of `babn.attention`, by torch's attention, by torch's
attention with a factor per key, or by the kernels for noise per key or over pairs."""


@dataclass(frozen=True)
class Request:
    """What the calls of a forward pass compute.

    Attributes:
        sample: A sample, or else the posterior mean.
        with_kl: Whether to compute the KL too.
        level: Factor of the noise of the sample.
        fixed_noise: Whether the noise belongs to a text, and not to a forward pass.
    """

    sample: bool
    with_kl: bool
    level: float = 1.0
    fixed_noise: bool = False


def is_softmax(config: MethodConfig, request: Request) -> bool:
    """Whether torch's attention may compute the calls of a forward pass."""
    return config.kernel != "reference" and config.is_softmax(request.sample, request.with_kl)


def choose(
    config: MethodConfig,
    inputs: Inputs,
    request: Request,
    dropout: float = 0.0,
    recurrent: bool = False,
) -> Implementation:
    """The implementation of a call whose weights are not needed.

    Args:
        config: Configuration of the method.
        inputs: The call.
        request: What to compute.
        dropout: Probability with which weights are dropped.
        recurrent: Whether the module attends once for each word of a text.

    Raises:
        UnsupportedAttentionError: `kernel="triton"`, and kernels cannot compute the call.
    """
    if config.kernel == "reference":
        return "reference"
    if is_softmax(config, request) and takes_softmax(inputs):
        return "softmax"
    if config.biases_keys and inputs.softcap is None:
        fits = request.sample and not dropout and not recurrent and takes_key_kernels(inputs)
        return "key kernels" if fits and _use_triton(config, inputs) else "factors"
    if recurrent or not _use_triton(config, inputs, why_not_pairs(config, request, dropout)):
        return "reference"
    return "pair kernels"


def _use_triton(config: MethodConfig, inputs: Inputs, reason: str | None = None) -> bool:
    """Whether there is no reason against a kernel; raises if kernels are required."""
    forced = config.kernel == "triton"
    reason = reason or why_not_triton(inputs, forced)
    if forced and reason is not None:
        raise UnsupportedAttentionError(
            f'kernel="triton", but {reason}. Use kernel="auto" to do without it.'
        )
    return reason is None


def why_not_pairs(config: MethodConfig, request: Request, dropout: float) -> str | None:
    """Why the kernels for noise over pairs cannot compute a forward pass, or `None`."""
    if reason := why_not_method(config):
        return reason
    if request.sample and request.fixed_noise:
        return "kernels draw new noise in each forward pass, and the noise is fixed here"
    levels = isinstance(config, BamConfig) and not request.with_kl
    if request.sample and request.level != 1 and not levels:
        return f"kernels draw noise at level 1, and the level is {request.level:g}"
    return "the model drops attention weights" if dropout else None


def why_not_method(config: MethodConfig) -> str | None:
    """Why the kernels for noise over pairs cannot compute a method, or `None` if they can."""
    pairs = isinstance(config, BeliefConfig) and config.noise_over == "pairs"
    if not pairs and not (isinstance(config, BamConfig) and config.family == "weibull"):
        return f"method {config.name!r} has no kernel"
    if isinstance(config, BeliefConfig) and config.smallest_k != SMALLEST_K:
        return "kernels have a fixed floor of the shape, and smallest_k is another one"
    return None


def describe(config: MethodConfig, device: torch.device) -> str:
    """The implementation of a method on a device, in words, with the reason for the reference."""
    if config.is_softmax(sample=True, with_kl=True):
        return "torch (scaled_dot_product_attention)"
    if config.kernel == "reference":
        return "reference (as configured)"
    missing = why_no_kernels(device, config.kernel == "triton")
    if config.biases_keys:
        torch_ = "torch (scaled_dot_product_attention with a bias on keys)"
        return torch_ if missing else "triton for samples, torch for the posterior mean"
    reason = why_not_method(config) or missing
    return "triton" if reason is None else f"reference ({reason})"


def constant_under_compile(function: Any) -> Any:
    """Marks a function whose result compilers take as a constant.

    Sets what `torch.compiler.assume_constant_result` sets, which imports torch's compiler and, with
    it, Triton.
    """
    function._dynamo_marked_constant = True
    return function


def interpreted() -> bool:
    """Whether kernels run through Triton's interpreter, as in tests on a CPU."""
    return environ.get("TRITON_INTERPRET") == "1"


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def is_recent(device: torch.device) -> bool:
    """Whether a GPU supports the instructions of the kernels."""
    nvidia = torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


@constant_under_compile
def why_no_kernels(device: torch.device, forced: bool) -> str | None:
    """Why no call on a device can use the kernels, or `None` if calls can."""
    if not has_triton():
        return "triton is not installed"
    if (kind := device.type) == "cuda":
        return None if is_recent(device) else "kernels need an NVIDIA GPU from Ampere (8.0) on"
    if forced and interpreted():
        return None
    return f"the model is on {kind}, not on a CUDA device"


def why_not_triton(inputs: Inputs, forced: bool) -> str | None:
    """Why a call cannot use the kernels, or `None` if it can."""
    dtype, size = inputs.value.dtype, max(inputs.key.shape[-1], inputs.value.shape[-1])
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"there is none for {dtype}"
    if size > LARGEST_HEAD:
        return f"there is none for heads of size {size}, only up to {LARGEST_HEAD}"
    if inputs.softcap is not None:
        return "there is none for scores with a softcap"
    return why_no_kernels(inputs.query.device, forced)


def takes_key_kernels(inputs: Inputs) -> bool:
    """Whether the kernels for noise per key apply: several queries, and no mask of pairs."""
    if inputs.bias is not None or is_rowwise(inputs.mask):
        return False
    _, _, queries, size = inputs.query.shape
    return queries > 1 and size == inputs.key.shape[3] == inputs.value.shape[3]
