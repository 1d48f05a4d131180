"""What launching the kernels has in common: settings, tiles, strides, and the launch itself."""

import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

LN2, LOG2_E, EULER = math.log(2), 1 / math.log(2), 0.57721566490153286

FIXED, BARE, LIFTED = 0, 1, 2
NO_PRIOR, CONTEXTUAL, CONSTANT, ROWWISE = 0, 1, 2, 3
NO_MASK, PAIRWISE, KEYWISE = 0, 1, 2
PACKED = 3
FEW, ALL, ROUNDED = 0, 1, 2


def fingerprint(folder: Path) -> str:
    """A short name for all sources in a folder."""
    sources = b"".join(each.read_bytes() for each in sorted(folder.glob("*.py")))
    return sha256(sources).hexdigest()[:8]


FINGERPRINT = fingerprint(Path(__file__).parent)


def operator(function: Callable[..., Any]) -> Any:
    """Makes an operator of a function.

    Compilers keep graphs on disk, and know an operator by its name alone. It names the sources,
    since sizes of results may be others in the next version.
    """
    name = f"babn::{function.__name__}_{FINGERPRINT}"
    return torch.library.custom_op(name, function, mutates_args=())


def digits(dtype: torch.dtype) -> int:
    """How products of matrices are computed: those of float32 as torch was told to compute them."""
    if dtype != torch.float32:
        return FEW
    return ALL if torch.get_float32_matmul_precision() == "highest" else ROUNDED


def masks(mask: Tensor | None) -> int:
    """The kind of mask."""
    if mask is None:
        return NO_MASK
    return PAIRWISE if mask.shape[1] > 1 or mask.shape[2] > 1 else KEYWISE


LARGE_RHO = 8.0
"""From this rho on kernels first try what is right for k of at least 1, and all others afterwards
where they find a smaller one. Untrained maps give softplus values of about 0.7."""


class Settings(NamedTuple):
    """The numbers and choices of a call."""

    scale: float
    rho: float
    fixed_k: float
    sigma: float
    beta: float
    alpha: float
    normalized: bool
    sample: bool
    truncated: bool
    own_moment: bool
    with_kl: bool

    @property
    def shape(self) -> int:
        """Where the Weibull shape comes from."""
        if self.fixed_k > 0:
            return FIXED
        return LIFTED if self.rho > 0 else BARE

    def priors(self, prior: Tensor | None, mask: Tensor | None) -> int:
        """The kind of prior."""
        if not self.with_kl:
            return NO_PRIOR
        if prior is None:
            return CONSTANT
        return ROWWISE if masks(mask) == PAIRWISE else CONTEXTUAL

    def balanced(self, prior: Tensor | None, mask: Tensor | None) -> bool:
        """Whether the gradients of a row's normalised scores always add up to zero.

        Those through the logits do. The divergence's are the differences of two distributions over
        keys, if expected weights are the scores themselves and the prior's shapes add up to one.
        """
        expected = self.beta == 1 and self.priors(prior, mask) in (CONTEXTUAL, ROWWISE)
        plain = self.shape == FIXED and self.sigma == 0 and not self.own_moment
        return plain and self.normalized and (expected or not self.with_kl)

    def numbers(self) -> tuple[float, ...]:
        """What kernels compute with; logarithms to base 2."""
        return (
            self.scale * LOG2_E,
            self.rho * LN2,
            max(self.fixed_k, 1e-4),
            self.sigma * LN2,
            math.log2(self.beta),
            self.alpha,
        )

    def options(self, prior: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
        """What kernels are compiled for."""
        return {
            "SHAPE": self.shape,
            "LIFT": self.sigma > 0,
            "NORMALIZED": self.normalized,
            "SAMPLE": self.sample,
            "TRUNCATED": self.truncated,
            "OWN_MOMENT": self.own_moment,
            "PRIORS": self.priors(prior, mask),
            "LARGE_K": self.fixed_k >= 1 or self.rho >= LARGE_RHO,
        }


class Tile(NamedTuple):
    """Queries and keys of a tile, and how a kernel works on it.

    Attributes:
        stages: How many tiles are loaded at once.
        registers: The most that a thread may have, so that more of them run; 0 for any number.
    """

    queries: int
    keys: int
    warps: int
    stages: int = 3
    registers: int = 0


TILES = {
    "forward": Tile(64, 32, 4, registers=128),
    "forward over heads": Tile(64, 32, 4, registers=168),
    "rows": Tile(64, 16, 4, registers=168),
    "rows without lift": Tile(64, 32, 4, registers=168),
    "columns": Tile(64, 64, 4),
    "whole": Tile(32, 128, 8, registers=128),
    "queries": Tile(64, 64, 4),
    "softmax": Tile(64, 64, 4),
}
"""For each kernel the largest tile that fits its registers with heads of 64."""


LARGE_HEAD = 1024
"""Bytes of a head from which on tiles are smaller, to fit the shared memory of small GPUs."""


def tile_options(
    kernel: str, q: Tensor, m: int, mask: Tensor | None, bias: Tensor | None, sizes: dict[str, int]
) -> dict[str, Any]:
    """The tile of a kernel, smaller for short texts, and what has to be done in it."""
    n, largest, widest = q.shape[2], TILES[kernel], max(sizes["BD"], sizes["BDV"])
    parts = 2 if widest * q.element_size() >= LARGE_HEAD else 1
    queries = min(largest.queries // parts, max(16, triton.next_power_of_2(n)))
    keys = min(max(16, largest.keys // parts), max(16, triton.next_power_of_2(m)))
    options = {
        "BM": queries,
        "BN": keys,
        "MASKED": masks(mask),
        "BIASED": bias is not None,
        "IEEE": digits(q.dtype),
        "FULL": n % queries == 0 and m % keys == 0,
        # Large heads leave fewer registers for pairs.
        "num_warps": 2 * largest.warps if widest > 64 and parts == 1 else largest.warps,
        "num_stages": largest.stages,
    }
    if largest.registers and widest <= 64:
        options["maxnreg"] = largest.registers
    return options


def head_sizes(q: Tensor, v: Tensor) -> dict[str, int]:
    """Head sizes of queries and values, and the blocks that hold them."""
    d, dv = q.shape[-1], v.shape[-1]
    block, value_block = (max(16, triton.next_power_of_2(size)) for size in (d, dv))
    return {"D": d, "DV": dv, "BD": block, "BDV": value_block}


class Pairs(NamedTuple):
    """Optional tensors of query-key pairs in the form that kernels take.

    Absent ones are any tensor with strides of zero, which is never read.
    """

    mask: Tensor
    mask_strides: tuple[int, ...]
    bias: Tensor
    bias_strides: tuple[int, ...]

    @classmethod
    def of(cls, q: Tensor, m: int, mask: Tensor | None, bias: Tensor | None) -> "Pairs":
        """Mask and bias as if they had the full shape."""
        full = (*q.shape[:3], m)
        nothing = q, (0, 0, 0, 0)
        masks = nothing if mask is None else (mask.view(torch.uint8), mask.expand(full).stride())
        biases = nothing if bias is None else (bias, bias.expand(full).stride())
        return cls(*masks, *biases)


class Lift(NamedTuple):
    """The maps of the upward path for shape and scale, whose numbers for a pair lie side by side.

    Attributes:
        kind: How many they are, or `PACKED`: two that are read as one 32-bit number.
    """

    first: Tensor
    second: Tensor
    strides: tuple[int, ...]
    kind: int

    @classmethod
    def of(cls, lift: Tensor | None, q: Tensor, m: int) -> "Lift":
        """A lift has `m` or twice as many columns; one map serves as both."""
        if lift is None:
            return cls(q, q, (0, 0, 0), 0)
        maps = lift.shape[3] // m
        if maps == 1 or lift.dtype == torch.float32:
            return cls(lift, lift.view(-1)[maps - 1 :], lift.stride()[:3], maps)
        # Kernels read four keys of a whole tile at once.
        packed = (lift.clone() if lift.data_ptr() % 16 else lift).view(torch.int32)
        return cls(packed, packed, packed.stride()[:3], PACKED)


def token_by_token(x: Tensor, tokens: int, size: int) -> Tensor:
    """Room for a tensor in which the heads of a token lie side by side, as linear maps take it.

    Args:
        x: A tensor with as many examples and heads.
        tokens: How many there are.
        size: Of a head.
    """
    return x.new_empty(x.shape[0], tokens, x.shape[1], size).transpose(1, 2)


Argument: TypeAlias = Tensor | TensorDescriptor | tuple[Tensor, ...]
"""What kernels take: a tensor, one of which they take blocks, or several as one argument."""


class Launcher:
    """Launches a kernel, and keeps what Triton found out about a call for calls of the same kind.

    Triton looks at each argument of each call, and at each constant of the kernel. With some fifty
    arguments that takes longer than a small kernel runs.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(
        self, grid: tuple[int, int], tensors: tuple[Argument, ...],
        numbers: tuple[Any, ...], **options: Any,
    ) -> None:  # fmt: skip
        """Arguments in the kernel's order; `options` are its constants and how it is compiled.

        The first of them is a tensor.
        """
        device = tensors[0].device  # type: ignore[union-attr]
        if device.type != "cuda":  # through the interpreter
            self.kernel[grid](*tensors, *numbers, **options)
            return
        if device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(grid, tensors, numbers, **options)
        kinds = tuple([_kind(each) for each in tensors])
        kind = device.index, kinds, numbers, tuple(options.items())
        found = self.compiled.get(kind)
        if found is None:
            compiled = fitted(lambda given: self.kernel[grid](*tensors, *numbers, **given), options)
            names = self.kernel.arg_names[len(tensors) + len(numbers) :]
            self.compiled[kind] = compiled, tuple(options[name] for name in names)
            return
        compiled, constants = found
        compiled[(*grid, 1)](*tensors, *numbers, *constants)


def fitted(launch: Callable[[dict[str, Any]], Any], options: dict[str, Any]) -> Any:
    """Launches with as many tiles loaded at once as the GPU's shared memory has room for."""
    stages = options.get("num_stages", 3)
    while True:
        try:
            return launch({**options, "num_stages": stages})
        except OutOfResources as error:
            if error.name != "shared memory" or stages == 1:
                raise
            stages -= 1


def _kind(tensor: Argument) -> Any:
    """What Triton compiles for."""
    if isinstance(tensor, tuple):
        return tuple([_kind(each) for each in tensor])
    if isinstance(tensor, TensorDescriptor):
        return tensor.base.dtype, tuple(tensor.block_shape)
    return tensor.dtype, tensor.data_ptr() % 16 == 0
