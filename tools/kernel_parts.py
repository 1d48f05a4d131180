"""Times the parts of fused attention and finds the fastest tiles; needs a CUDA device.

    python tools/kernel_parts.py [--batch 32] [--length 512] [--tiles] [--out FILE]

Times every part of one ALBERT-base layer by itself. With --tiles it times each kernel with other
tiles, after it has compiled all of them on all cores.
"""

import argparse
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton

from babn.kernels import heads as head_kernels
from babn.kernels import launch
from babn.kernels import upward_heads as upward_kernels
from babn.kernels.launch import TILES, Tile
from babn.kernels.op import weibull_attention
from babn.kernels.softmax import softmax_weights

HEADS, SIZE = 12, 64
NUMBERS = {
    "BABN": (SIZE**-0.5, 12.0, 0.0, 1e-6, 1.0, 1.0, True, True, True, True, True),
    "BABN sigma=0": (SIZE**-0.5, 12.0, 0.0, 0.0, 1.0, 1.0, True, True, True, True, True),
    "BABN mean": (SIZE**-0.5, 12.0, 0.0, 1e-6, 1.0, 1.0, True, False, True, True, False),
    "BAM": (SIZE**-0.5, 0.0, 10.0, 0.0, 1.0, 1.0, True, True, False, False, True),
}
FORWARD = ((64, 16, 4), (64, 32, 4), (64, 64, 4), (64, 64, 8), (128, 32, 4), (128, 32, 8),
           (128, 64, 8), (32, 32, 4), (32, 64, 4), (16, 64, 4))  # fmt: skip
ROWS = ((64, 16, 4), (64, 32, 4), (64, 32, 8), (64, 64, 8), (128, 16, 4), (128, 16, 8),
        (128, 32, 8), (32, 16, 4), (32, 32, 4), (32, 64, 4), (16, 32, 4))  # fmt: skip
COLUMNS = ((64, 64, 4), (64, 128, 4), (64, 128, 8), (128, 64, 4), (128, 64, 8), (32, 64, 4),
           (128, 128, 8), (32, 128, 4))  # fmt: skip
KERNELS = {
    "attend_forward": "forward",
    "attend_backward_rows": "rows",
    "attend_backward_columns": "columns",
    "attend_backward_queries": "queries",
    "lift_heads": "heads",
    "lift_heads_backward": "heads backward",
}


def milliseconds(run: Callable[[], object]) -> float:
    """Median time of a call on the GPU."""
    return float(triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median"))


def random(*shape: int, grad: bool = True, size: float = 1.0) -> torch.Tensor:
    """Half-precision numbers on the GPU."""
    drawn = torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * size
    return drawn.requires_grad_(grad)


def forward_and_backward(run: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Times of a call and of its gradients."""
    out = run()
    gradient = torch.randn_like(out)
    backward = milliseconds(lambda: out.backward(gradient, retain_graph=True))
    return milliseconds(run), backward


def attention(
    name: str, batch: int, n: int, upward: str = "keys", padded: bool = False
) -> Callable[[], torch.Tensor]:
    """A call of Weibull attention, with its KL added to the output so that it has gradients."""
    q, k, v = (random(batch, HEADS, n, SIZE) for _ in range(3))
    numbers = NUMBERS[name]
    maps = (numbers[1] > 0) + (numbers[3] > 0)
    lift: tuple[Any, ...] = (None, None, None)
    if maps and upward == "keys":
        lift = (random(batch, HEADS, n, maps * n, size=0.4), None, None)
    elif maps:
        h = F.softplus(random(batch, HEADS, n, n, grad=False)).requires_grad_()
        weight = torch.randn(maps * HEADS, HEADS, device="cuda") * 0.15
        lift = (h, weight.requires_grad_(), torch.zeros(maps * HEADS, device="cuda"))
    layers = [(10, SIZE), (10,), (1, 10), (1,)]
    network = [torch.randn(size, device="cuda", requires_grad=True) for size in layers]
    mask = torch.ones(batch, 1, 1, n, dtype=torch.bool, device="cuda") if padded else None
    with_kl, sample = numbers[10], numbers[7]
    seeds = torch.zeros(1, dtype=torch.int64, device="cuda") if sample else None
    rest = (*(network if with_kl else [None] * 4), mask, None, seeds)

    def run() -> torch.Tensor:
        out, kl, *_ = weibull_attention(q, k, v, *lift, *rest, *numbers)
        return out + kl.mean().to(out.dtype) if with_kl else out

    return run


def parts(batch: int, n: int) -> dict[str, tuple[float, float]]:
    """Forward and backward time of each part."""
    q, k, v = (random(batch, HEADS, n, SIZE) for _ in range(3))
    h = F.softplus(random(batch, HEADS, n, n, grad=False)).requires_grad_()
    weight, bias = random(2 * n, n), random(2 * n)
    runs = {
        "torch softmax attention": lambda: F.scaled_dot_product_attention(q, k, v),
        "first weights": lambda: softmax_weights(q, k, None, None, SIZE**-0.5),
        "map over keys": lambda: F.linear(h, weight[:n], bias[:n]),
        "both maps over keys": lambda: F.linear(h, weight, bias),
        "softplus": lambda: F.softplus(h),
        **{name: attention(name, batch, n) for name in NUMBERS},
        "BABN with maps over heads": attention("BABN", batch, n, upward="heads"),
        "BABN, padded": attention("BABN", batch, n, padded=True),
    }
    return {name: forward_and_backward(run) for name, run in runs.items()}


def path(batch: int, n: int, steps: int, pairs: int) -> tuple[float, float]:
    """Times of the upward path over heads through 12 layers, by steps per kernel."""
    upward_kernels.STEPS, upward_kernels.SUMMED_PAIRS = steps, pairs
    head_kernels.SUMMED_PAIRS = pairs
    first = random(batch, HEADS, n, SIZE), random(batch, HEADS, n, SIZE), None, None, SIZE**-0.5
    weights = (0.3 * torch.randn(12, HEADS, HEADS, device="cuda")).requires_grad_()
    biases = torch.zeros(12, HEADS, device="cuda", requires_grad=True)
    states = upward_kernels.upward_over_heads(*first, weights, biases)
    grads = [torch.randn_like(state) for state in states]
    leaves = [*first[:2], weights, biases]
    back = milliseconds(lambda: torch.autograd.grad(states, leaves, grads, retain_graph=True))
    with torch.no_grad():
        return milliseconds(lambda: upward_kernels.upward_over_heads(*first, weights, biases)), back


def kernel_times(run: Callable[[], torch.Tensor]) -> dict[str, float]:
    """Milliseconds of each of our kernels in a call and its backward pass."""
    out = run()
    gradient = torch.randn_like(out)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            run().backward(gradient)
        torch.cuda.synchronize()
    rows = {row.key: row for row in profile.key_averages()}
    times = {KERNELS[key]: rows[key].self_device_time_total / rows[key].count for key in KERNELS
             if key in rows}  # fmt: skip
    return {kernel: time / 1e3 for kernel, time in times.items()}


def candidates() -> dict[str, list[tuple[int, ...]]]:
    """Tiles to try for each kernel."""
    tiles = {"forward": FORWARD, "rows": ROWS, "columns": COLUMNS, "queries": COLUMNS}
    found: dict[str, list[tuple[int, ...]]] = {
        kernel: [(*tile, 3, most) for tile, most in itertools.product(each, (0, 128, 168))]
        for kernel, each in tiles.items()
    }
    found["heads"] = list(itertools.product((64, 128, 256, 512), (1, 4)))
    found["heads backward"] = list(itertools.product((32, 64, 128), (1, 2)))
    return found


def use(kernel: str, tile: tuple[int, ...]) -> None:
    """Sets the tile of a kernel."""
    if kernel == "heads":
        head_kernels.PAIRS, head_kernels.PAIRS_WARPS = tile
    elif kernel == "heads backward":
        head_kernels.SUMMED_PAIRS, head_kernels.SUMMED_WARPS = tile
    else:
        launch.TILES[kernel] = Tile(*tile)


def usual(kernel: str) -> tuple[int, ...]:
    """The current tile."""
    if kernel == "heads":
        return head_kernels.PAIRS, head_kernels.PAIRS_WARPS
    if kernel == "heads backward":
        return head_kernels.SUMMED_PAIRS, head_kernels.SUMMED_WARPS
    return TILES[kernel]


def time_with(kernel: str, tile: tuple[int, ...], batch: int, n: int) -> float | None:
    """Milliseconds of a kernel with a tile; `None` if it does not fit."""
    before = usual(kernel)
    use(kernel, tile)
    try:
        upward = "heads" if kernel.startswith("heads") else "keys"
        return kernel_times(attention("BABN", batch, n, upward))[kernel]
    except triton.runtime.errors.OutOfResources:
        return None
    finally:
        use(kernel, before)


def try_tiles(batch: int, n: int) -> dict[str, list[tuple[tuple[int, ...], float]]]:
    """The fastest tiles of each kernel."""
    everything = [(kernel, tile) for kernel, tiles in candidates().items() for tile in tiles]
    with ProcessPoolExecutor(14, get_context("spawn")) as pool:
        for kernel, tile in everything:
            pool.submit(time_with, kernel, tile, 16, n)
    found: dict[str, list[tuple[tuple[int, ...], float]]] = {}
    for kernel, tile in everything:
        time = time_with(kernel, tile, batch, n)
        if time is not None:
            found.setdefault(kernel, []).append((tile, time))
    return {kernel: sorted(times, key=lambda entry: entry[1]) for kernel, times in found.items()}


def main() -> None:
    """Prints the parts, and the fastest tiles if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device")
    pairs = args.batch * HEADS * args.length**2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(
        f"{pairs / 1e6:.0f} million pairs; one half-precision tensor of them {pairs * 2e-9:.2f} GB"
    )
    measured = parts(args.batch, args.length)
    for name, (forward, backward) in measured.items():
        print(f"{name:<30} forward {forward:7.3f} ms   backward {backward:7.3f} ms")
    for upward in ("keys", "heads"):
        times = kernel_times(attention("BABN", args.batch, args.length, upward))
        print(upward, *(f"{kernel} {time:.3f}" for kernel, time in times.items()))
    for steps, share in itertools.product((2, 3, 4, 6, 12), (32, 64)):
        forward, backward = path(args.batch, args.length, steps, share)
        print(f"path, {steps} steps, {share} pairs: {forward:.3f} + {backward:.3f} ms")
    tiles = try_tiles(args.batch, args.length) if args.tiles else {}
    for kernel, found in tiles.items():
        print(kernel, *(f"{'x'.join(map(str, tile))}: {time:.3f}" for tile, time in found[:8]))
    if args.out:
        args.out.write_text(json.dumps({"parts": measured, "tiles": tiles}, indent=1))


if __name__ == "__main__":
    main()
