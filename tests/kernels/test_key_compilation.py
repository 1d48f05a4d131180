"""The kernels for one variable per key compile for a Hopper GPU and fit its registers."""

import importlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
import triton
from ahead_of_time import HOPPER, resources
from triton.compiler import ASTSource

from babn.kernels import key_attention, key_noise

pytestmark = pytest.mark.slow


def types_of(kernel: str, half: str) -> dict[str, Any]:
    """The types of a kernel's arguments, without its constants."""
    x, f, i = f"*{half}", "*fp32", "i32"
    network = {"NET": (f, f, f, f)}
    qkv = {"Q": x, "K": x, "V": x, "BIAS": f}
    backward = {**qkv, "LSE": f, "DELTA": f, "DOUT": x}
    sizes, slopes = {"sizes": (i,) * 4}, {"scale": "fp32", "slope": "fp32"}
    drawn = {"K": x, "U": f, "SEEN": "*u8", "LOG_SHAPE": f, **network}
    numbers = {"sizes": (i,) * 3, "numbers": ("fp32", "fp32")}
    return {
        "attend_forward": {**qkv, "OUT": x, "LSE": f, **_strides(4), **sizes, "scale": "fp32"},
        "attend_backward_keys": {
            **backward, "DK": x, "DV": x, "DBIAS": f, **_strides(6), **sizes, **slopes,
        },
        "attend_backward_queries": {
            **backward, "OUT": x, "DQ": x, **_strides(6), **sizes, **slopes,
        },
        "draw_forward": {
            **drawn, "TYPICAL": f, "SUMS": f, "BIAS": f, "SCALE": f, "LOC": f, "LOGITS": f,
            "STATS": f, **numbers, "strides": (i, i, i),
        },
        "sum_keys": {"K": x, "SEEN": "*u8", "SUMS": f, "sizes": (i,) * 3, "strides": (i,) * 3},
        "sum_slopes": {
            "K": x, "U": f, "SEEN": "*u8", "SCALE": f, "STATS": f, "DBIAS": f, "DSCALE": f,
            "DLOC": f, "SUMS": f, "sizes": (i,) * 3, "strides": (i,) * 3, "level": "fp32",
        },
        "draw_backward": {
            **drawn, "SCALE": f, "STATS": f, "DBIAS": f, "DSCALE": f, "DLOC": f, "DLOGITS": f,
            "SUMS": f, "DK": x, "PARTS": f, **numbers, **_strides(2),
        },
    }[kernel]  # fmt: skip


def _strides(tensors: int) -> dict[str, Any]:
    return {"strides": (("i32",) * 3,) * tensors}


def compiled(module: str, name: str, half: str, options: dict[str, Any]) -> dict[str, int]:
    """Registers, spilled bytes and shared memory of a kernel; run where nothing is interpreted."""
    kernel = getattr(importlib.import_module(f"babn.kernels.{module}"), name)
    types, how = types_of(name, half), {}
    for option in ("num_warps", "num_stages"):
        how[option] = options.get(option, {"num_warps": 4, "num_stages": 3}[option])
    constants = {key: value for key, value in options.items() if key in kernel.arg_names}
    signature = {key: types.get(key, "constexpr") for key in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(signature)
               if str(signature[n]).startswith("*")}  # fmt: skip
    source = ASTSource(kernel, signature, constants, aligned)
    made = triton.compile(source, target=HOPPER, options=how)
    return resources(made.asm["cubin"]) | {"shared": made.metadata.shared}


@pytest.fixture(scope="module")
def compile_kernel() -> Iterator[Callable[..., dict[str, int]]]:
    """Compiles in another process, where kernels are not interpreted."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda *arguments: pool.submit(compiled, *arguments).result()


ATTENTION = {
    "attend_forward": "forward",
    "attend_backward_keys": "keys",
    "attend_backward_queries": "queries",
}


@pytest.mark.parametrize(("size", "causal"), [(64, False), (64, True), (32, True), (128, False)])
@pytest.mark.parametrize("kernel", ATTENTION)
def test_attention_fits_its_registers(
    kernel: str, size: int, causal: bool, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    q = torch.empty(1, 1, 512, size, dtype=torch.bfloat16)
    options = key_attention.options_of(ATTENTION[kernel], q, 512, causal)
    found = compile_kernel("key_attention", kernel, "bf16", options)
    assert found["stack"] <= 192, found  # depends on Triton's version
    assert found["shared"] <= 227 * 1024, found


@pytest.mark.parametrize(
    ("half", "size"), [("bf16", 64), ("fp16", 32), ("fp32", 64), ("bf16", 256)]
)
@pytest.mark.parametrize("kernel", ["sum_keys", "draw_forward", "sum_slopes", "draw_backward"])
def test_draws_fit_their_registers(
    kernel: str, half: str, size: int, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    network = key_noise.Network(torch.empty(10, size), *(torch.empty(10) for _ in range(3)))
    noise = key_noise.DrawSettings(2.0, 1.0, False, False, True, True)
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    key = torch.empty(1, 1, 512, size, dtype=kinds[half])
    options = key_noise.options_of(key, network, True, noise)
    found = compile_kernel("key_noise", kernel, half, options)
    assert found["stack"] <= 64, found
