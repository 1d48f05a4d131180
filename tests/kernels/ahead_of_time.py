"""Compiles kernels for a GPU that need not be there; run where kernels are not interpreted."""

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)

LENGTHS = {"lift_strides": 3, "weight_strides": 2}
TENSORS = {"MASK": "*u8", "SEEDS": "*i64", "ROW_END": "*i32"}
SEVERAL = {"STATES", "GRADS"}
IN_PAIRS = {"U1", "U2", "DU1", "DU2", "DLIFT"}
IN_FLOAT32 = {
    "PRIOR", "REST", "LSE", "SCORE_LSE", "PRIOR_LSE", "SMALLEST", "KL", "DKL", "ROW_SUM",
    "PRIOR_SUM", "PRIOR_PART", "SLOPES", "W1", "B1", "W2", "B2",
    "SUMS", "WEIGHT", "BIAS",
}  # fmt: skip
NUMBERS = {
    "factor", "rho_ln2", "fixed_k", "sigma_ln2", "log_beta", "alpha_constant", "rest_constant",
}  # fmt: skip


DESCRIBED = {
    "step_over_keys": {"X": ("BM", "BK"), "WEIGHT": ("BN", "BK"), "OUT": ("BM", "BN")},
    "step_over_keys_backward": {
        "DLIFT": ("BM", "BK"),
        "LIFT_WEIGHT": ("BK", "BN"),
        "DNEXT": ("BM", "BK"),
        "NEXT_WEIGHT": ("BK", "BN"),
        "STATE": ("BM", "BN"),
        "OUT": ("BM", "BN"),
    },
}
"""Matrices of which a kernel takes blocks, and their sizes."""


def signature(kernel: Any, options: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The types of a kernel's arguments, told by their names."""
    types: dict[str, Any] = {}
    described = DESCRIBED.get(kernel.__name__, {})
    for name in kernel.arg_names:
        if name in options:
            types[name] = "constexpr"
        elif name in described:
            rows, columns = (options[size] for size in described[name])
            types[name] = f"tensordesc<{dtype}[{rows}, {columns}]>"
        elif name in SEVERAL:
            types[name] = (f"*{dtype}",) * options["TAKEN"]
        elif name.endswith("_strides"):
            types[name] = ("i32",) * LENGTHS.get(name, 4)
        elif name.isupper():
            packed = name in IN_PAIRS and dtype != "fp32"
            usual = "*i32" if packed else f"*{dtype}"
            types[name] = TENSORS.get(name, "*fp32" if name in IN_FLOAT32 else usual)
        else:
            types[name] = "fp32" if name in NUMBERS else "i32"
    return types


def alignments(kernel: Any, types: dict[str, Any]) -> dict[tuple[int, ...], Any]:
    """Addresses, strides and sizes are multiples of 16, as Triton finds them in usual calls."""
    aligned: list[tuple[int, ...]] = []
    for i, name in enumerate(kernel.arg_names):
        if isinstance(types[name], tuple):
            aligned += [(i, j) for j in range(len(types[name]))]
        elif types[name].startswith("*") or name in ("n", "m", "pair_count"):
            aligned.append((i,))
    return {place: [["tt.divisibility", 16]] for place in aligned}


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
