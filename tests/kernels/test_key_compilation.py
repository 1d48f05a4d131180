"""The kernels for one variable per key compile for a Hopper GPU and fit its registers."""

import importlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import triton
from ahead_of_time import HOPPER, resources
from triton.compiler import ASTSource

from babn.kernels import key_attention, key_draw, key_kl
from babn.kernels.key_inputs import KeyNoise

pytestmark = pytest.mark.slow


IN_HALF = {"Q", "K", "V", "OUT", "DOUT", "DQ", "DK", "DV"}
REAL = {"scale", "slope", "rho", "level", "log_beta"}


def type_of(name: str, half: str, module: str) -> str:
    """The type of a kernel's argument, by its name."""
    if name == "SEEN":
        return "*i1" if module == "key_kl" else "*u8"
    if name.isupper():
        return f"*{half}" if name in IN_HALF else "*fp32"
    return "fp32" if name in REAL else "i32"


def compiled(module: str, name: str, half: str, options: dict[str, Any]) -> dict[str, int]:
    """Registers, spilled bytes and shared memory of a kernel; run where nothing is interpreted."""
    kernel = getattr(importlib.import_module(f"babn.kernels.{module}"), name)
    how = {"num_warps": options["num_warps"], "num_stages": options.get("num_stages", 3)}
    constants = {key: value for key, value in options.items() if key in kernel.arg_names}
    signature = {
        key: "constexpr" if key in constants else type_of(key, half, module)
        for key in kernel.arg_names
    }
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


ATTENTION = [
    ("attend_forward", "forward", 512),
    ("attend_backward_keys", "keys", 512),
    ("attend_backward_keys", "keys", 128),  # with all keys in one block
    ("attend_backward_queries", "queries", 512),
]


@pytest.mark.parametrize(("size", "causal"), [(64, False), (64, True), (32, True), (128, False)])
@pytest.mark.parametrize(("kernel", "name", "length"), ATTENTION)
def test_attention_fits_its_registers(
    kernel: str, name: str, length: int, size: int, causal: bool,
    compile_kernel: Callable[..., dict[str, int]],
) -> None:  # fmt: skip
    options = key_attention.options_of(name, length, length, size, 2, causal, "ieee")
    found = compile_kernel("key_attention", kernel, "bf16", options)
    assert found["stack"] <= 192, found  # depends on Triton's version
    assert found["shared"] <= 227 * 1024, found


DRAWS = {
    "sum_keys": "draw",
    "draw_forward": "draw",
    "sum_slopes": "draw_backward",
    "draw_backward": "draw_backward",
}
"""The direction of each kernel."""


@pytest.mark.parametrize(
    ("half", "size"), [("bf16", 64), ("fp16", 32), ("fp32", 64), ("bf16", 256)]
)
@pytest.mark.parametrize("kernel", DRAWS)
def test_draws_fit_their_registers(
    kernel: str, half: str, size: int, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    noise = KeyNoise(2.0, 1.0, False, False, True, True)
    width, parameters = 4 if half == "fp32" else 2, 10 * (size + 2) + 2
    name = DRAWS[kernel]
    options = key_draw.options_of(name, 512, size, width, parameters, True, noise, "ieee")
    found = compile_kernel(f"key_{name}", kernel, half, options)
    assert found["stack"] <= 96, found  # backward: 88 with two warps, faster than four


@pytest.mark.parametrize("kernel", ["kl_forward", "kl_backward"])
def test_the_kl_fits_its_registers(
    kernel: str, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    options = {"HAS_MASK": True, "HAS_OWN_MOMENT": True} | key_kl.options_of(8192)
    found = compile_kernel("key_kl", kernel, "fp32", options)
    assert found["stack"] == 0, found
