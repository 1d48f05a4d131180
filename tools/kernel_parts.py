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

import torch
import torch.nn.functional as F
import triton

from babn.attention.inputs import Inputs
from babn.kernels import flags
from babn.kernels import heads as head_kernels
from babn.kernels.flags import Tile
from babn.kernels.op import weibull_attention
from babn.kernels.pair_inputs import softmax_weights
from babn.kernels.settings import Settings

HEADS, SIZE, SCALE = 12, 64, 64**-0.5
SETTINGS = {
    "BABN": Settings(SCALE, 12.0, 0.0, 1e-6, 1.0, 1.0, True, True, True, True, True),
    "BABN sigma=0": Settings(SCALE, 12.0, 0.0, 0.0, 1.0, 1.0, True, True, True, True, True),
    "BABN mean": Settings(SCALE, 12.0, 0.0, 1e-6, 1.0, 1.0, True, False, True, True, False),
    "BAM": Settings(SCALE, 0.0, 10.0, 0.0, 1.0, 1.0, True, True, False, False, True),
}
QUERIES_KEYS_WARPS = ((64, 16, 4), (64, 32, 4), (64, 32, 8), (64, 64, 4), (64, 64, 8), (128, 32, 8),
                      (128, 64, 8), (32, 32, 4), (32, 64, 4))  # fmt: skip
KERNELS = {
    "attend_forward": "forward",
    "attend_backward_rows": "rows",
    "attend_backward_columns": "columns",
    "map_heads": "heads",
    "map_heads_backward": "heads backward",
    "read_keys": "prior",
    "read_keys_backward": "prior backward",
}


def milliseconds(run: Callable[[], object]) -> float:
    """Median time of a call on the GPU."""
    return float(triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median"))


def random(*shape: int) -> torch.Tensor:
    """Half-precision numbers on the GPU, as large as logits of maps before training."""
    x = 0.3 * torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    return x.requires_grad_()


def forward_and_backward(run: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Times of a call and of its gradients."""
    out = run()
    gradient = torch.randn_like(out)
    backward = milliseconds(lambda: out.backward(gradient, retain_graph=True))
    return milliseconds(run), backward


def attention(
    name: str, batch: int, n: int, over_heads: bool = False, padded: bool = False
) -> Callable[[], torch.Tensor]:
    """A call of Weibull attention, with its KL added to the output so that it has gradients."""
    settings = SETTINGS[name]
    q, k, v = (random(batch, HEADS, n, SIZE) for _ in range(3))
    maps = (settings.rho > 0) + (settings.sigma > 0)
    upward: tuple[torch.Tensor | None, ...] = (None, None)
    if over_heads:
        joint = torch.randn(maps * HEADS, HEADS + 1, device="cuda", requires_grad=True)
        upward = random(batch, HEADS, n, n), joint
    elif maps:
        upward = random(batch, HEADS, n, maps * n), None
    network = torch.randn(10 * (SIZE + 2) + 1, device="cuda", requires_grad=True)
    mask = torch.ones(batch, 1, 1, n, dtype=torch.bool, device="cuda") if padded else None
    seeds = torch.zeros(1, dtype=torch.int64, device="cuda") if settings.sample else None
    prior = network if settings.with_kl else None
    numbers = tuple(map(float, settings))

    def run() -> torch.Tensor:
        out, kl = weibull_attention(q, k, v, *upward, prior, mask, None, seeds, numbers)
        return out + kl.mean().to(out.dtype) if settings.with_kl else out

    return run


def upward_path(batch: int, n: int) -> Callable[[], torch.Tensor]:
    """The upward path over heads of 12 layers."""
    top = random(batch, HEADS, n, n)
    maps = (0.3 * torch.randn(12, HEADS, HEADS + 1, device="cuda")).requires_grad_()
    return lambda: torch.stack(head_kernels.upward_over_heads(top, maps)).mean(0)


def parts(batch: int, n: int) -> dict[str, tuple[float, float]]:
    """Forward and backward time of each part."""
    q, k, v = (random(batch, HEADS, n, SIZE) for _ in range(3))
    h, weight, bias = random(batch, HEADS, n, n), random(2 * n, n), random(2 * n)
    runs = {
        "torch softmax attention": lambda: F.scaled_dot_product_attention(q, k, v),
        "first weights": lambda: softmax_weights(Inputs(q, k, v, SCALE)),
        "map over keys": lambda: F.linear(h, weight[:n], bias[:n]),
        "both maps over keys": lambda: F.linear(h, weight, bias),
        "softplus": lambda: F.softplus(h),
        "upward path over heads": upward_path(batch, n),
        **{name: attention(name, batch, n) for name in SETTINGS},
        "BABN with maps over heads": attention("BABN", batch, n, over_heads=True),
        "BABN, padded": attention("BABN", batch, n, padded=True),
    }
    return {name: forward_and_backward(run) for name, run in runs.items()}


def kernel_times(run: Callable[[], torch.Tensor]) -> dict[str, float]:
    """Milliseconds of each Triton kernel in a call and its backward pass."""
    gradient = torch.randn_like(run())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            run().backward(gradient)
        torch.cuda.synchronize()
    rows = {row.key: row for row in profile.key_averages()}
    return {
        name: rows[key].self_device_time_total / rows[key].count / 1e3
        for key, name in KERNELS.items()
        if key in rows
    }


def time_with(kernel: str, tile: Tile, batch: int, n: int) -> float | None:
    """Milliseconds of a kernel with a tile; `None` if it does not fit."""
    before = flags.TILES[kernel]
    flags.TILES[kernel] = tile
    flags._call_options.cache_clear()
    try:
        return kernel_times(attention("BABN", batch, n))[kernel]
    except triton.runtime.errors.OutOfResources:
        return None
    finally:
        flags.TILES[kernel] = before
        flags._call_options.cache_clear()


def try_tiles(batch: int, n: int) -> dict[str, list[tuple[Tile, float]]]:
    """The fastest tiles of each kernel."""
    tiles = [
        Tile(*size, registers=most)
        for size, most in itertools.product(QUERIES_KEYS_WARPS, (0, 128, 168))
    ]
    everything = list(itertools.product(("forward", "rows", "columns"), tiles))
    with ProcessPoolExecutor(14, get_context("spawn")) as pool:
        for kernel, tile in everything:
            pool.submit(time_with, kernel, tile, 16, n)
    found: dict[str, list[tuple[Tile, float]]] = {}
    for kernel, tile in everything:
        time = time_with(kernel, tile, batch, n)
        if time is not None:
            found.setdefault(kernel, []).append((tile, time))
    return {kernel: sorted(times, key=lambda entry: entry[1]) for kernel, times in found.items()}


def main() -> None:
    """Prints the parts, and the fastest tiles on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    measured = parts(args.batch, args.length)
    for name, (forward, backward) in measured.items():
        print(f"{name:<30} forward {forward:7.3f} ms   backward {backward:7.3f} ms")
    for over_heads in (False, True):
        times = kernel_times(attention("BABN", args.batch, args.length, over_heads))
        print("heads" if over_heads else "keys", *(f"{k} {time:.3f}" for k, time in times.items()))
    tiles = try_tiles(args.batch, args.length) if args.tiles else {}
    for kernel, found in tiles.items():
        print(kernel, *(f"{'x'.join(map(str, tile))}: {time:.3f}" for tile, time in found[:8]))
    if args.out:
        args.out.write_text(json.dumps({"parts": measured, "tiles": tiles}, indent=1))


if __name__ == "__main__":
    main()
