"""Launches of the kernels: operators, blocks, strides, and a bounded cache of compiled kernels."""

from collections import OrderedDict
from collections.abc import Callable
from functools import reduce
from operator import attrgetter, or_
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from babn.kernels.dispatch import constant_under_compile
from babn.kernels.settings import Precision

VERSION = 6
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


def precision(dtype: torch.dtype) -> Precision:
    """Matmul precision of a data type; that of float32 follows torch's setting."""
    return float32_products() if dtype == torch.float32 else "half"


@constant_under_compile
def float32_products() -> Literal["ieee", "tf32"]:
    """Triton's name of the matmul precision that torch sets for float32."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def traceable(cached: Any) -> Any:
    """The function inside a cache while torch.compile traces, which would warn of the cache."""
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


Types: TypeAlias = tuple[torch.dtype, ...]
"""What determines the types of the tensors of a launch; empty if they must be looked up."""


class Launcher:
    """Launches a kernel, and caches the compiled kernel for calls of the same kind.

    Triton inspects each argument and each constant of every call, which takes longer than a small
    kernel runs: a call of `key_attention.attend` takes 62 us by Triton and 38 us by this class. The
    cache holds the last `CACHED_LAUNCHES` kinds of calls.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: OrderedDict[Any, tuple[Any, ...]] = OrderedDict()

    def __call__(
        self, grid: tuple[int, int], tensors: tuple[Any, ...], numbers: tuple[Any, ...],
        options: dict[str, Any], types: Types = (),
    ) -> None:  # fmt: skip
        """Launches the kernel.

        Args:
            grid: Numbers of programs.
            tensors: The first arguments of the kernel: tensors, or tuples of tensors.
            numbers: The arguments after them.
            options: Constants and compile options.
            types: What determines the types of the tensors, which otherwise are looked up, in a
                quarter of the time of a launch.
        """
        grouped = isinstance(tensors[0], tuple)
        first = tensors[0][0] if grouped else tensors[0]
        if torch.compiler.is_compiling() or not first.is_cuda:  # which is interpreted
            self.kernel[grid](*tensors, *numbers, **options)
            return
        index = first.get_device()
        if index != torch._C._cuda_getDevice():  # which torch.cuda wraps in checks of CUDA
            with torch.cuda.device(index):
                return self(grid, tensors, numbers, options, types)
        groups = tensors if grouped else (tensors,)
        addresses: Any = [tuple(map(Tensor.data_ptr, group)) for group in groups]
        every = sum(addresses, ())
        aligned = reduce(or_, every) % 16 == 0 or tuple([each % 16 == 0 for each in every])
        types = types or tuple(map(_DTYPE, sum(groups, ())))
        kind = index, grid, types, aligned, numbers, *options.values()
        found = self.compiled.get(kind)
        if found is None:
            compiled = fitted(lambda given: self.kernel[grid](*tensors, *numbers, **given), options)
            names = self.kernel.arg_names[len(tensors) + len(numbers) :]
            constants = (*numbers, *[options[name] for name in names])
            self.remember(kind, (compiled[(*grid, 1)], constants))
            return
        run, constants = found
        # Triton would look up the stream, and each tensor's address again.
        stream = torch._C._cuda_getCurrentRawStream(index)
        run(*(addresses if grouped else every), *constants, stream=stream)

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


_DTYPE = attrgetter("dtype")
