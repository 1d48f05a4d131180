"""Compiles kernels for a GPU that need not be there; run where kernels are not interpreted."""

import ast
import importlib
import inspect
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from babn.kernels.flags import Flags
from babn.kernels.prior import MlpFlags

HOPPER = GPUTarget("cuda", 90, 32)

TENSORS = {"MASK": "*u8", "SEEDS": "*i64"}
IN_FLOAT32 = {
    "STATS", "KL", "DKL", "PRIOR_PART", "DPRIOR", "NETWORK", "SUMS", "MAP", "BIAS",
}  # fmt: skip
NUMBERS = {"attend_forward": 7, "attend_backward_rows": 6}


def groups(kernel: Any) -> dict[str, list[str]]:
    """The arguments of a kernel that are tuples, and the names of their elements in its source."""
    unpacked = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(kernel.fn)))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Name)
    ]
    return {
        node.value.id: [name.id for name in node.targets[0].elts]
        for node in unpacked
        if node.value.id in kernel.arg_names
    }


def type_of(name: str, options: dict[str, Any], dtype: str) -> Any:
    """The type of an argument or of an element of one, inferred from its name."""
    if name.endswith("_strides"):
        return ("i32",) * 4
    if name.isupper():
        return TENSORS.get(name, "*fp32" if name in IN_FLOAT32 else f"*{dtype}")
    return "fp32" if name == "factor" else "i32"


def signature(kernel: Any, options: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The types of a kernel's arguments."""
    types: dict[str, Any] = {}
    grouped = groups(kernel)
    for name in kernel.arg_names:
        if name in options:
            types[name] = "constexpr"
        elif name == "numbers":
            types[name] = ("fp32",) * NUMBERS[kernel.__name__]
        elif name in grouped:
            types[name] = tuple(type_of(each, options, dtype) for each in grouped[name])
        else:
            types[name] = type_of(name, options, dtype)
    return types


def alignments(kernel: Any, types: dict[str, Any]) -> dict[tuple[int, ...], Any]:
    """Addresses, strides and sizes are multiples of 16, as Triton finds them in usual calls."""
    grouped = groups(kernel)

    def aligned(name: str, kind: Any, place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if isinstance(kind, tuple):
            names = grouped.get(name, [name] * len(kind))
            for i, (each, inner) in enumerate(zip(names, kind, strict=True)):
                yield from aligned(each, inner, (*place, i))
        elif kind.startswith("*") or name in ("n", "m", "pair_count") or name.endswith("_strides"):
            yield place

    places = [p for i, n in enumerate(kernel.arg_names) for p in aligned(n, types[n], (i,))]
    return {place: [["tt.divisibility", 16]] for place in places}


def compiled(
    module: str, name: str, options: dict[str, Any], dtype: str, warps: int, registers: int = 0,
    stages: int = 3,
) -> dict[str, int]:  # fmt: skip
    """Registers, bytes of spilled ones and of shared memory of a kernel, compiled for Hopper."""
    made = built(module, name, options, dtype, warps, registers, stages)
    return resources(made.asm["cubin"]) | {"shared": made.metadata.shared}


def machine_code(
    module: str, name: str, options: dict[str, Any], dtype: str, warps: int, registers: int = 0
) -> bytes:
    """A kernel compiled for Hopper."""
    code: bytes = built(module, name, options, dtype, warps, registers).asm["cubin"]
    return code


def built(
    module: str, name: str, options: dict[str, Any], dtype: str, warps: int, registers: int = 0,
    stages: int = 3,
) -> Any:  # fmt: skip
    """A kernel compiled for Hopper, and what Triton knows about it."""
    kernel = getattr(importlib.import_module(f"babn.kernels.{module}"), name)
    if "C" in kernel.arg_names:
        flags = MlpFlags if module == "prior" else Flags
        names = {field.name for field in fields(flags)}
        options = {"C": flags(**{key: x for key, x in options.items() if key in names})}
    wanted = {key: value for key, value in options.items() if key in kernel.arg_names}
    types = signature(kernel, wanted, dtype)
    source = ASTSource(kernel, types, wanted, alignments(kernel, types))
    how = {"num_warps": warps, "num_stages": stages}
    how |= {"maxnreg": registers} if registers else {}
    return triton.compile(source, target=HOPPER, options=how)


def resources(binary: bytes) -> dict[str, int]:
    """What `cuobjdump` says about a binary."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    file = Path(subprocess.check_output(["mktemp"], text=True).strip())
    file.write_bytes(binary)
    shown = subprocess.check_output([tool, "-res-usage", file], text=True, stderr=subprocess.STDOUT)
    file.unlink()
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found is not None, shown
    return {"registers": int(found[1]), "stack": int(found[2])}
