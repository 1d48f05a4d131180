"""Launches of the kernels: operators, tiles, compile-time flags, strides, and a bounded cache."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import attrgetter, or_
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from babn.kernels.dispatch import constant_under_compile
from babn.kernels.settings import (
    LARGE_RHO,
    MaskType,
    Precision,
    Prior,
    Settings,
    Shape,
    mask_type,
)

VERSION = 5
"""Version of the operators. Compilers cache graphs on disk by the names of operators, and with them
the sizes of results: increase it when arguments or results of an operator change."""

CACHED_LAUNCHES = 512
"""Launches that a launcher remembers. Each combination of shapes, strides and flags is one."""


_LIBRARY = torch.library.Library("babn", "FRAGMENT")


class Operator:
    """A function that compilers see as an operator; other code calls it directly.

    A call through `torch.library.custom_op` takes several times as long on the CPU as the function
    itself, and longer than a small kernel runs.

    Args:
        function: The function, without gradients of its own.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        name = f"{function.__name__}_v{VERSION}"
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        self.compiled = getattr(torch.ops.babn, name).default

    def __call__(self, *arguments: Any) -> Any:
        """The results of the function."""
        compute = self.compiled if torch.compiler.is_compiling() else self.function
        return compute(*arguments)

    def register_fake(self, function: Callable[..., Any]) -> None:
        """Registers what computes the shapes of the results."""
        torch.library.register_fake(self.compiled)(function)


def precision(dtype: torch.dtype) -> int:
    """How products of matrices are computed; those of float32 follow torch's setting."""
    if dtype != torch.float32:
        return Precision.HALF.value
    return Precision.IEEE.value if float32_products() == "ieee" else Precision.TF32.value


@constant_under_compile
def float32_products() -> str:
    """How products of float32 matrices are computed, as Triton calls it, by torch's setting."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@lru_cache(CACHED_LAUNCHES)
def numbers_of(settings: Settings) -> tuple[float, ...]:
    """The numbers of a call as kernels take them, with logarithms to base 2."""
    return (
        settings.scale / math.log(2),
        settings.rho * math.log(2),
        max(settings.fixed_k, 1e-4),
        settings.sigma * math.log(2),
        math.log2(settings.beta),
        settings.alpha,
    )


@dataclass(frozen=True)
class Flags:
    """What an attention kernel is compiled for: one argument, the names as in flash-attention.

    Attributes:
        HEAD_DIM: Size of a head of queries and keys.
        VALUE_DIM: Size of a head of values.
        BLOCK_D: The block that holds a head of queries and keys.
        BLOCK_DV: The block that holds a head of values.
        BLOCK_M: Queries of a tile.
        BLOCK_N: Keys of a tile.
        EVEN_MN: Whether queries and keys fill whole tiles.
        MASK_TYPE: `MaskType`.
        HAS_BIAS: Whether a bias is added to the scores.
        PRECISION: `Precision`.
        SHAPE_TYPE: `Shape`.
        HAS_SCALE: Whether the upward path enters the scale.
        NUM_LOGITS: Logits of the upward path for each pair: none, those of shape or scale, or both.
        IS_POSITIVE: Whether softplus has been applied to the logits.
        IS_NORMALIZED: Whether scores are normalised over keys.
        IS_SAMPLE: Whether to draw a sample.
        IS_TRUNCATED: Whether the noise is truncated.
        HAS_OWN_MOMENT: Whether the mean factor is that of the truncated noise.
        PRIOR_TYPE: `Prior`.
        LARGE_K: Whether to assume first that all k are at least 1.
        IS_COMPLETE: Whether backward needs no gradient through the normaliser of scores.
    """

    HEAD_DIM: int
    VALUE_DIM: int
    BLOCK_D: int
    BLOCK_DV: int
    BLOCK_M: int
    BLOCK_N: int
    EVEN_MN: bool
    MASK_TYPE: int
    HAS_BIAS: bool
    PRECISION: int
    SHAPE_TYPE: int = Shape.SCORES.value
    HAS_SCALE: bool = False
    NUM_LOGITS: int = 0
    IS_POSITIVE: bool = False
    IS_NORMALIZED: bool = True
    IS_SAMPLE: bool = False
    IS_TRUNCATED: bool = False
    HAS_OWN_MOMENT: bool = False
    PRIOR_TYPE: int = Prior.NONE.value
    LARGE_K: bool = False
    IS_COMPLETE: bool = False


class Method(NamedTuple):
    """What a call computes.

    Attributes:
        settings: Its settings.
        has_network: Whether the prior is an MLP.
        num_logits: Logits of the upward path for each pair.
        is_positive: Whether softplus has been applied to them.
    """

    settings: Settings
    has_network: bool
    num_logits: int
    is_positive: bool

    def flags(self, mask: MaskType) -> dict[str, Any]:
        """The flags that follow."""
        settings, prior = self.settings, self.settings.prior(self.has_network, mask)
        return {
            "SHAPE_TYPE": settings.shape.value,
            "HAS_SCALE": settings.sigma > 0,
            "NUM_LOGITS": self.num_logits,
            "IS_POSITIVE": self.is_positive,
            "IS_NORMALIZED": settings.normalized,
            "IS_SAMPLE": settings.sample,
            "IS_TRUNCATED": settings.truncated,
            "HAS_OWN_MOMENT": settings.own_moment,
            "PRIOR_TYPE": prior.value,
            "LARGE_K": settings.fixed_k >= 1 or settings.rho >= LARGE_RHO,
            "IS_COMPLETE": settings.complete(prior),
        }


class Tile(NamedTuple):
    """Queries and keys of a tile, and how a kernel works on it.

    Attributes:
        queries: Queries of the tile.
        keys: Keys of the tile.
        warps: Warps of a program.
        stages: Tiles that are loaded at once.
        registers: Limit of the registers of a thread, so that more programs run at a time; 0 for
            none. Compiled for Hopper with heads of 64 in bfloat16, a multiprocessor runs 4 forward
            programs in place of 2 (180 registers without the limit), 3 over heads in place of 2
            (174), and 3 of rows in place of 2 (243; 254 without logits, under a mask of pairs).
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
    "rows without logits": Tile(64, 32, 4, registers=168),
    "columns": Tile(64, 64, 4),
}
"""For each kernel the largest tile that fits its registers with heads of 64."""

LARGE_HEAD = 1024
"""Bytes of a head from which on tiles are smaller, to fit the shared memory of small GPUs."""


def traceable(cached: Any) -> Any:
    """A cached function without its cache, of which compilers would warn, while they trace it."""
    return cached.__wrapped__ if torch.compiler.is_compiling() else cached


def ceil_div(count: int, size: int) -> int:
    """How many blocks of a size hold so many numbers; faster than `triton.cdiv` on the host."""
    return -(-count // size)


def block(size: int) -> int:
    """The smallest block that holds so many numbers and that products of matrices accept."""
    found = 16
    while found < size:
        found *= 2
    return found


def compiled_for(
    kernel: str, q: Tensor, v: Tensor, m: int, mask: Tensor | None, bias: Tensor | None,
    method: Method | None = None,
) -> tuple[Flags, dict[str, Any]]:  # fmt: skip
    """The flags of a kernel, and its options with them.

    Args:
        kernel: Its name in `TILES`; short texts get smaller tiles.
        q: Queries.
        v: Values.
        m: Number of keys.
        mask: The mask.
        bias: The bias.
        method: What it computes, unless that makes no difference.
    """
    return _compiled_for(
        kernel, q.shape[2], m, q.shape[3], v.shape[3], q.element_size(), mask_type(mask),
        bias is not None, precision(q.dtype), method,
    )  # fmt: skip


@lru_cache(CACHED_LAUNCHES)
def _compiled_for(
    kernel: str, n: int, m: int, size: int, value_size: int, width: int, mask: MaskType,
    has_bias: bool, products: int, method: Method | None,
) -> tuple[Flags, dict[str, Any]]:  # fmt: skip
    largest, widest = TILES[kernel], block(max(size, value_size))
    parts = 2 if widest * width >= LARGE_HEAD else 1
    queries = min(largest.queries // parts, block(n))
    keys = min(max(16, largest.keys // parts), block(m))
    options = {
        # Heads of 256 spill 320 bytes of a thread's registers with 4 warps, and 32 with 8.
        "num_warps": 2 * largest.warps if widest > 64 and parts == 1 else largest.warps,
        "num_stages": largest.stages,
    }
    if largest.registers and widest <= 64:
        options["maxnreg"] = largest.registers
    found = Flags(
        HEAD_DIM=size,
        VALUE_DIM=value_size,
        BLOCK_D=block(size),
        BLOCK_DV=block(value_size),
        BLOCK_M=queries,
        BLOCK_N=keys,
        EVEN_MN=n % queries == 0 and m % keys == 0,
        MASK_TYPE=mask.value,
        HAS_BIAS=has_bias,
        PRECISION=products,
        **({} if method is None else method.flags(mask)),
    )
    return found, {"C": found, **options}


def broadcast(x: Tensor | None, other: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A mask or bias with strides for all examples, heads, queries and keys.

    For none any tensor with strides of zero, which is never read.
    """
    if x is None:
        return other, (0, 0, 0, 0)
    strides = tuple(
        [0 if size == 1 else each for size, each in zip(x.shape, x.stride(), strict=True)]
    )
    return x.view(torch.uint8) if x.dtype == torch.bool else x, strides


def token_by_token(x: Tensor, tokens: int | None = None, size: int | None = None) -> Tensor:
    """An empty tensor in which the heads of a token are adjacent, as linear layers take it.

    Args:
        x: A tensor with as many examples and heads.
        tokens: Number of tokens; that of `x` by default.
        size: Size of a head; that of `x` by default.
    """
    batch, heads, rows, width = x.shape
    rows, width = rows if tokens is None else tokens, width if size is None else size
    if torch.compiler.is_compiling():  # merges equal calls of `new_empty_strided` into one tensor
        return x.new_empty(batch, rows, heads, width).transpose(1, 2)
    strides = rows * heads * width, width, heads * width, 1
    return x.new_empty_strided((batch, heads, rows, width), strides)


Argument: TypeAlias = Tensor | tuple["Argument", ...]
"""Arguments of kernels: tensors, and tuples of tensors as one argument."""


class Launcher:
    """Launches a kernel, and caches the compiled kernel for calls of the same kind.

    Triton inspects each argument and each constant of every call, which takes longer than a small
    kernel runs. The cache holds the last `CACHED_LAUNCHES` kinds of calls.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: OrderedDict[Any, tuple[Any, ...]] = OrderedDict()

    def __call__(
        self, grid: tuple[int, int], tensors: tuple[Argument, ...], numbers: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        """Arguments in the kernel's order; `options` are its constants and compile options."""
        device = _device(tensors[0])
        if torch.compiler.is_compiling() or device.type != "cuda":  # which is interpreted
            self.kernel[grid](*tensors, *numbers, **options)
            return
        index = device.index
        if index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(grid, tensors, numbers, options)
        addresses, flat = _addresses(tensors)
        aligned = reduce(or_, flat) % 16 == 0 or tuple([each % 16 == 0 for each in flat])
        kind = index, grid, _types(tensors), aligned, numbers, *options.values()
        found = self.compiled.get(kind)
        if found is None:
            compiled = fitted(lambda given: self.kernel[grid](*tensors, *numbers, **given), options)
            names = self.kernel.arg_names[len(tensors) + len(numbers) :]
            constants = (*numbers, *[options[name] for name in names])
            self.remember(kind, (compiled[(*grid, 1)], constants))
            return
        run, constants = found
        run(*addresses, *constants)  # Triton would look up each tensor's address again

    def remember(self, kind: Any, found: tuple[Any, ...]) -> None:
        """Caches a compiled kernel, and drops the oldest one beyond the limit."""
        self.compiled[kind] = found
        if len(self.compiled) > CACHED_LAUNCHES:
            self.compiled.popitem(last=False)


def fitted(launch: Callable[[dict[str, Any]], Any], options: dict[str, Any]) -> Any:
    """Launches with as many stages as fit the shared memory of the GPU."""
    stages = options.get("num_stages", 3)
    while True:
        try:
            return launch({**options, "num_stages": stages})
        except OutOfResources as error:
            if error.name != "shared memory" or stages == 1:
                raise
            stages -= 1


def _device(argument: Argument) -> torch.device:
    """Where the first tensor of an argument is."""
    while isinstance(argument, tuple):
        argument = argument[0]
    return argument.device


def _addresses(arguments: tuple[Argument, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The addresses of tensors, grouped as they are, and one after another."""
    if not isinstance(arguments[0], tuple):
        flat = tuple(map(Tensor.data_ptr, cast(tuple[Tensor, ...], arguments)))
        return flat, flat
    grouped = tuple([tuple(map(Tensor.data_ptr, cast(Any, group))) for group in arguments])
    return grouped, sum(grouped, ())


def _types(arguments: tuple[Argument, ...]) -> tuple[Any, ...]:
    """The types of tensors, one after another."""
    flat: Any = sum(arguments, ()) if isinstance(arguments[0], tuple) else arguments
    return tuple(map(_DTYPE, flat))


_DTYPE = attrgetter("dtype")
