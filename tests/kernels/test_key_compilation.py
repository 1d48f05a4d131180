"""The kernels for one variable per key compile for a Hopper GPU and fit its registers."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict

import pytest
import torch
from ahead_of_time import compiled

from babn.kernels import key_attention, key_draw
from babn.kernels.settings import KeySettings

pytestmark = pytest.mark.slow


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
    flags, options = key_attention.compiled_for(ATTENTION[kernel], q, 512, causal)
    found = compile_kernel("key_attention", kernel, asdict(flags), "bf16", options["num_warps"])
    assert found["stack"] <= 192, found  # depends on Triton's version
    assert found["shared"] <= 227 * 1024, found


DRAWS = {
    "sum_keys": "key_draw",
    "draw_forward": "key_draw",
    "sum_slopes": "key_draw_backward",
    "draw_backward": "key_draw_backward",
}


@pytest.mark.parametrize(
    ("half", "size"), [("bf16", 64), ("fp16", 32), ("fp32", 64), ("bf16", 256)]
)
@pytest.mark.parametrize("kernel", DRAWS)
def test_draws_fit_their_registers(
    kernel: str, half: str, size: int, compile_kernel: Callable[..., dict[str, int]]
) -> None:
    settings = KeySettings(
        own=0, scale=1.0, causal=False, rho=2.0, level=1.0, truncated=False, own_moment=False,
        centred=True, with_kl=True,
    )  # fmt: skip
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    key = torch.empty(1, 1, 512, size, dtype=kinds[half])
    flags = key_draw.flags_of(key, torch.empty(10, size), True, settings)
    found = compile_kernel(DRAWS[kernel], kernel, asdict(flags), half, key_draw.WARPS)
    assert found["stack"] <= 64, found
