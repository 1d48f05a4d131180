"""Kernels compile for a Hopper GPU, which need not be there, and fit its registers."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
import torch
from ahead_of_time import compiled

from babn.kernels.flags import TILES, options_of
from babn.kernels.heads import PAIRS, PAIRS_WARPS, SUMMED_PAIRS, SUMMED_WARPS
from babn.kernels.launch import precision
from babn.kernels.prior import KEYS, SHARE, WARPS

pytestmark = pytest.mark.slow

SMALL_GPU = 99 * 1024
"""Shared memory that a program may have on the smallest GPUs with kernels, in bytes."""

UPWARD = {
    "SHAPE_TYPE": "upward", "HAS_SCALE": True, "IS_SAMPLE": True, "IS_TRUNCATED": True,
    "HAS_OWN_MOMENT": True, "PRIOR_TYPE": "keys", "LARGE_K": True,
    "NUM_LOGITS": 2,
}  # fmt: skip
DEFAULT = {
    **UPWARD, "HEAD_DIM": 64, "VALUE_DIM": 64, "BLOCK_D": 64, "BLOCK_DV": 64, "EVEN_MN": True,
    "MASK_TYPE": "none", "HAS_MASK": False, "HAS_BIAS": False, "PRECISION": "half",
    "IS_NORMALIZED": True, "HEADS": 12, "BLOCK_H": 16, "MAPS": 2, "HAS_SLOPE": False,
    "HAS_ADDED": False, "IS_POSITIVE": False, "IS_COMPLETE": False, "SHARE": SHARE, "HIDDEN": 10,
}  # fmt: skip
KERNELS = {
    "forward": ("forward", "attend_forward"),
    "rows": ("backward", "attend_backward_rows"),
    "columns": ("backward", "attend_backward_columns"),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "masked": {
        "MASK_TYPE": "pairs",
        "EVEN_MN": False,
        "PRIOR_TYPE": "rows",
        "HAS_BIAS": True,
    },
    "padded": {"MASK_TYPE": "keys", "EVEN_MN": False},
    "heads": {"IS_POSITIVE": True},
    "bam": {
        "SHAPE_TYPE": "fixed",
        "HAS_SCALE": False,
        "NUM_LOGITS": 0,
        "IS_TRUNCATED": False,
        "HAS_OWN_MOMENT": False,
        "IS_COMPLETE": True,
    },
    "raw": {"IS_NORMALIZED": False, "IS_COMPLETE": True, "PRIOR_TYPE": "constant"},
    "mean": {"IS_SAMPLE": False, "PRIOR_TYPE": "none"},
    "small-heads": {"HEAD_DIM": 24, "VALUE_DIM": 24, "BLOCK_D": 32, "BLOCK_DV": 32},
    "large-heads": {"HEAD_DIM": 256, "VALUE_DIM": 256, "BLOCK_D": 256, "BLOCK_DV": 256},
}
VARIANTS["bam-large-heads"] = VARIANTS["bam"] | VARIANTS["large-heads"]


def tile_of(kernel: str, options: dict[str, Any]) -> str:
    """The tile that a kernel has with some options."""
    if kernel == "forward" and options["IS_POSITIVE"]:
        return "forward over heads"
    if kernel != "rows":
        return kernel
    if not options["NUM_LOGITS"]:
        return "rows without logits"
    is_plain = options["MASK_TYPE"] == "none" and not options["IS_POSITIVE"]
    return "rows of long texts" if is_plain and options["BLOCK_D"] == 64 else "rows"


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
    options = {**DEFAULT, "BLOCK_M": tile.queries, "BLOCK_N": tile.keys}
    found = compile_kernel(*KERNELS[kernel], options, "bf16", tile.warps, tile.registers)
    # A few registers may be put aside; how many depends on Triton's version.
    assert found["stack"] <= 192, found


@pytest.mark.parametrize("variant", ["heads", "bam", "mean"])
@pytest.mark.parametrize("kernel", ["forward", "rows"])
def test_so_do_other_methods(
    kernel: str, variant: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    options: dict[str, Any] = {**DEFAULT, **VARIANTS[variant]}
    tile = TILES[tile_of(kernel, options)]
    options |= {"BLOCK_M": tile.queries, "BLOCK_N": tile.keys}
    found = compile_kernel(*KERNELS[kernel], options, "bf16", tile.warps, tile.registers)
    assert found["stack"] <= 192, found


@pytest.mark.parametrize(
    ("kernel", "pairs", "warps"),
    [("map_heads", PAIRS, PAIRS_WARPS), ("map_heads_backward", SUMMED_PAIRS, SUMMED_WARPS)],
)
@pytest.mark.parametrize("is_step", [False, True])
def test_maps_over_heads_fit_the_registers(
    kernel: str, pairs: int, warps: int, is_step: bool,
    compile_kernel: Callable[..., dict[str, int]],
) -> None:  # fmt: skip
    step = {"MAPS": 1, "HAS_SLOPE": True, "HAS_ADDED": True} if is_step else {}
    found = compile_kernel("heads", kernel, {**DEFAULT, **step, "BLOCK_P": pairs}, "bf16", warps)
    assert found["stack"] == 0, found


@pytest.mark.parametrize("kernel", ["read_keys", "read_keys_backward"])
def test_the_priors_network_fits_the_registers(
    kernel: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    found = compile_kernel("prior", kernel, {**DEFAULT, "BLOCK_N": KEYS}, "bf16", WARPS)
    assert found["stack"] == 0, found


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", ["forward", "rows", "columns"])
def test_variants_compile(
    kernel: str, variant: str, dtype: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    options: dict[str, Any] = {**DEFAULT, **VARIANTS[variant]}
    tile = TILES[tile_of(kernel, options)]
    options |= {"BLOCK_M": tile.queries, "BLOCK_N": tile.keys}
    if dtype == "fp32":
        options["PRECISION"] = "ieee"
    warps = tile.warps * (2 if options["HEAD_DIM"] > 64 else 1)
    assert compile_kernel(*KERNELS[kernel], options, dtype, warps)["registers"] > 0


@pytest.mark.parametrize("kernel", ["forward", "rows", "columns"])
def test_products_of_float32_compile_with_fewer_digits(
    kernel: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    tile = TILES[kernel]
    options: dict[str, Any] = {
        **DEFAULT,
        "BLOCK_M": tile.queries,
        "BLOCK_N": tile.keys,
        "PRECISION": "tf32",
    }
    assert compile_kernel(*KERNELS[kernel], options, "fp32", tile.warps)["registers"] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [128, 256])
@pytest.mark.parametrize("kernel", KERNELS)
def test_large_heads_fit_the_shared_memory_of_small_gpus(
    kernel: str, size: int, dtype: torch.dtype, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    how = options_of(
        kernel, None, 64, 64, size, size, dtype.itemsize, "none", False, precision(dtype)
    )
    options = {**DEFAULT, **asdict(how["C"]), **UPWARD}
    short = "bf16" if dtype == torch.bfloat16 else "fp32"
    found = compile_kernel(*KERNELS[kernel], options, short, how["num_warps"], 0, 1)
    assert found["shared"] <= SMALL_GPU, found


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kernel", ["read_keys", "read_keys_backward"])
def test_the_priors_network_fits_with_large_heads(
    kernel: str, dtype: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    keys = KEYS // 2 if dtype == "fp32" else KEYS
    options = {**DEFAULT, **VARIANTS["large-heads"], "BLOCK_N": keys}
    found = compile_kernel("prior", kernel, options, dtype, WARPS, 0, 1)
    assert found["shared"] <= SMALL_GPU, found
