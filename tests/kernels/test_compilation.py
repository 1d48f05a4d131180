"""Kernels compile for a Hopper GPU, which need not be there, and fit its registers."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from ahead_of_time import compiled

from babn.kernels.heads import PAIRS, PAIRS_WARPS, SUMMED_PAIRS, SUMMED_WARPS
from babn.kernels.launch import (
    CONSTANT,
    CONTEXTUAL,
    FIXED,
    KEYWISE,
    LIFTED,
    PACKED,
    PAIRWISE,
    ROUNDED,
    ROWWISE,
    TILES,
    head_sizes,
    tile_options,
)
from babn.kernels.limits import LARGEST_WHOLE_HEAD, WHOLE
from babn.kernels.prior import KEYS, REGISTERS, SUMMED_KEYS, WARPS
from babn.kernels.upward_heads import STEPS
from babn.kernels.upward_keys import blocks_for

pytestmark = pytest.mark.slow

SMALL_GPU = 99 * 1024
"""Shared memory that a program may have on the smallest GPUs with kernels, in bytes."""

DEFAULT = {
    "D": 64, "DV": 64, "BD": 64, "BDV": 64, "SHAPE": LIFTED, "LIFT": True, "NORMALIZED": True,
    "SAMPLE": True, "TRUNCATED": True, "OWN_MOMENT": True, "PRIORS": CONTEXTUAL,
    "MASKED": 0, "BIASED": False, "IEEE": False, "FULL": True,
    "HEADS": 12, "BH": 16, "TAKEN": STEPS, "LAST": False, "WIDE": False,
    "POSITIVE": False, "LIFTS": PACKED, "BALANCED": False, "WHOLE": False,
    "LARGE_K": True, "BT": SUMMED_KEYS,
}  # fmt: skip
KERNELS = {
    "forward": ("forward", "attend_forward"),
    "rows": ("backward", "attend_backward_rows"),
    "columns": ("backward", "attend_backward_columns"),
    "whole": ("backward", "attend_backward_columns"),
    "queries": ("backward", "attend_backward_queries"),
    "softmax": ("softmax", "write_softmax"),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "masked": {"MASKED": PAIRWISE, "FULL": False, "PRIORS": ROWWISE, "BIASED": True},
    "padded": {"MASKED": KEYWISE, "FULL": False},
    "heads": {"POSITIVE": True},
    "bam": {
        "SHAPE": FIXED,
        "LIFT": False,
        "LIFTS": 0,
        "TRUNCATED": False,
        "OWN_MOMENT": False,
        "BALANCED": True,
    },
    "raw": {"NORMALIZED": False, "PRIORS": CONSTANT},
    "mean": {"SAMPLE": False, "PRIORS": 0},
    "small-heads": {"D": 24, "DV": 24, "BD": 32, "BDV": 32},
    "large-heads": {"D": 256, "DV": 256, "BD": 256, "BDV": 256},
}
VARIANTS["bam-large-heads"] = VARIANTS["bam"] | VARIANTS["large-heads"]


def tile_of(kernel: str, options: dict[str, Any]) -> str:
    """The tile that a kernel has with some options."""
    if kernel == "forward" and options["POSITIVE"]:
        return "forward over heads"
    return "rows without lift" if kernel == "rows" and not options["LIFTS"] else kernel


@pytest.fixture(scope="module")
def compile_kernel() -> Iterator[Callable[..., dict[str, int]]]:
    """Compiles in another process, where kernels are not interpreted."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda *args: pool.submit(compiled, *args).result()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_default_fits_the_registers(
    kernel: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    tile = TILES[kernel]
    options = {**DEFAULT, "BM": tile.queries, "BN": tile.keys, "WHOLE": kernel == "whole"}
    found = compile_kernel(*KERNELS[kernel], options, "bf16", tile.warps, tile.registers)
    # A few registers may be put aside; how many depends on Triton's version.
    assert found["stack"] <= 192, found


@pytest.mark.parametrize("variant", ["heads", "bam", "mean"])
@pytest.mark.parametrize("kernel", ["forward", "rows"])
def test_so_do_other_rules(
    kernel: str, variant: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    options: dict[str, Any] = {**DEFAULT, **VARIANTS[variant]}
    tile = TILES[tile_of(kernel, options)]
    options |= {"BM": tile.queries, "BN": tile.keys}
    found = compile_kernel(*KERNELS[kernel], options, "bf16", tile.warps, tile.registers)
    assert found["stack"] <= 128, found


@pytest.mark.parametrize(
    ("module", "kernel", "pairs", "warps"),
    [
        ("heads", "map_heads", PAIRS, PAIRS_WARPS),
        ("heads", "map_heads_backward", SUMMED_PAIRS, SUMMED_WARPS),
        ("heads", "lift_heads", PAIRS, PAIRS_WARPS),
        ("heads", "lift_heads_backward", SUMMED_PAIRS, SUMMED_WARPS),
        ("upward_heads", "upward_heads", PAIRS, PAIRS_WARPS),
        ("upward_heads", "upward_heads_backward", SUMMED_PAIRS, SUMMED_WARPS),
    ],
)
def test_maps_over_heads_fit_the_registers(
    module: str, kernel: str, pairs: int, warps: int,
    compile_kernel: Callable[..., dict[str, int]],
) -> None:  # fmt: skip
    found = compile_kernel(module, kernel, {**DEFAULT, "BP": pairs}, "bf16", warps)
    assert found["stack"] == 0, found


@pytest.mark.parametrize("keys", [64, 128, 512])
@pytest.mark.parametrize("kernel", ["step_over_keys", "step_over_keys_backward"])
def test_products_over_keys_fit_the_registers(
    kernel: str, keys: int, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    blocks = blocks_for(keys)
    warps, stages = blocks["num_warps"], blocks["num_stages"]
    options = {**DEFAULT, **blocks, "MASKED": True}
    found = compile_kernel("upward_keys", kernel, options, "bf16", warps, 0, stages)
    assert found["stack"] == 0, found


@pytest.mark.parametrize(("kernel", "most"), [("read_keys", 0), ("read_keys_backward", REGISTERS)])
def test_the_priors_network_fits_the_registers(
    kernel: str, most: int, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    options = {**DEFAULT, "HIDDEN": 10, "BH": 16, "BN": KEYS}
    assert compile_kernel("prior", kernel, options, "bf16", WARPS, most)["stack"] <= 16


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", ["forward", "rows", "columns", "whole"])
def test_variants_compile(
    kernel: str, variant: str, dtype: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    options: dict[str, Any] = {**DEFAULT, **VARIANTS[variant]}
    tile = TILES[tile_of(kernel, options)]
    options |= {"BM": tile.queries, "BN": tile.keys}
    options["WHOLE"] = kernel == "whole"
    if dtype == "fp32":
        options |= {"IEEE": True, "LIFTS": min(options["LIFTS"], 2)}
    warps = tile.warps * (2 if options["D"] > 64 else 1)
    assert compile_kernel(*KERNELS[kernel], options, dtype, warps)["registers"] > 0


@pytest.mark.parametrize("kernel", ["forward", "rows", "columns"])
def test_products_of_float32_compile_with_fewer_digits(
    kernel: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    tile = TILES[kernel]
    options: dict[str, Any] = {**DEFAULT, "BM": tile.queries, "BN": tile.keys, "IEEE": ROUNDED}
    options["LIFTS"] = min(options["LIFTS"], 2)
    assert compile_kernel(*KERNELS[kernel], options, "fp32", tile.warps)["registers"] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [128, 256])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "whole"])
def test_large_heads_fit_the_shared_memory_of_small_gpus(
    kernel: str, size: int, dtype: torch.dtype, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    q = torch.empty(1, 1, 64, size, dtype=dtype)
    sizes = head_sizes(q, q)
    tile = tile_options(kernel, q, 64, None, None, sizes)
    lifts = PACKED if dtype == torch.bfloat16 else 2
    options = {**DEFAULT, **sizes, **tile, "LIFTS": lifts}
    short = "bf16" if dtype == torch.bfloat16 else "fp32"
    found = compile_kernel(*KERNELS[kernel], options, short, tile["num_warps"], 0, 1)
    assert found["shared"] <= SMALL_GPU, found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_block_of_all_keys_fits_the_shared_memory_of_small_gpus(
    dtype: torch.dtype, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    q = torch.empty(1, 1, WHOLE, LARGEST_WHOLE_HEAD // dtype.itemsize, dtype=dtype)
    tile = tile_options("whole", q, WHOLE, None, None, head_sizes(q, q))
    half = dtype == torch.bfloat16
    options = {**DEFAULT, **head_sizes(q, q), **tile, "LIFTS": PACKED if half else 2}
    options |= {"WHOLE": True, "IEEE": False if half else ROUNDED}
    short = "bf16" if half else "fp32"
    found = compile_kernel(*KERNELS["whole"], options, short, tile["num_warps"], 0, 1)
    assert found["shared"] <= SMALL_GPU, found


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kernel", ["read_keys", "read_keys_backward"])
def test_the_priors_network_fits_with_large_heads(
    kernel: str, dtype: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    keys = KEYS // 2 if dtype == "fp32" else KEYS
    options = {**DEFAULT, **VARIANTS["large-heads"], "HIDDEN": 10, "BH": 16, "BN": keys}
    found = compile_kernel("prior", kernel, options, dtype, WARPS, 0, 1)
    assert found["shared"] <= SMALL_GPU, found
