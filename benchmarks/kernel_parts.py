"""Where the time of fused attention goes, and which tiles are fastest; needs a CUDA device.

    python benchmarks/kernel_parts.py [--batch 32] [--length 512] [--tiles] [--out FILE]

Times every part of one ALBERT-base layer by itself, beside the bytes and operations that it cannot
do without. With --tiles it tries other tile sizes for each kernel.
"""

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import triton

from babn.kernels import launch
from babn.kernels.heads import head_map
from babn.kernels.launch import TILES, Tile
from babn.kernels.op import weibull_attention
from babn.kernels.top import softmax_weights

HEADS, SIZE = 12, 64
SETTINGS = {
    "BABN": (SIZE**-0.5, 12.0, 0.0, 1e-6, 1.0, 1.0, True, True, True, True, True, 0),
    "BABN sigma=0": (SIZE**-0.5, 12.0, 0.0, 0.0, 1.0, 1.0, True, True, True, True, True, 0),
    "BABN mean": (SIZE**-0.5, 12.0, 0.0, 1e-6, 1.0, 1.0, True, False, True, True, False, 0),
    "BAM": (SIZE**-0.5, 0.0, 10.0, 0.0, 1.0, 1.0, True, True, False, False, True, 0),
}


def milliseconds(run: Callable[[], object]) -> float:
    """Median time of a call on the GPU."""
    return float(triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median"))


def random(*shape: int, grad: bool = True) -> torch.Tensor:
    """Half-precision numbers on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).requires_grad_(grad)


def forward_and_backward(run: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Times of a call and of its gradients."""
    out = run()
    gradient = torch.randn_like(out)
    backward = milliseconds(lambda: out.backward(gradient, retain_graph=True))
    return milliseconds(run), backward


def attention(name: str, batch: int, n: int) -> Callable[[], torch.Tensor]:
    """A call of Weibull attention, its divergence added to the output so that it has gradients."""
    q, k, v = (random(batch, HEADS, n, SIZE) for _ in range(3))
    settings = SETTINGS[name]
    maps = (settings[1] > 0) + (settings[3] > 0)
    lift = random(batch, HEADS, n, maps * n) if maps else None
    prior = torch.randn(batch, HEADS, n, device="cuda").log_softmax(-1).requires_grad_()
    with_kl, sample = settings[10], settings[7]
    seeds = torch.zeros(1, dtype=torch.int64, device="cuda") if sample else None

    def run() -> torch.Tensor:
        out, kl, _, _ = weibull_attention(
            q, k, v, lift, prior if with_kl else None, None, None, seeds, *settings
        )
        return out + kl.mean().to(out.dtype) if with_kl else out

    return run


def parts(batch: int, n: int) -> dict[str, tuple[float, float]]:
    """Forward and backward time of each part."""
    q, k, v = (random(batch, HEADS, n, SIZE) for _ in range(3))
    h = F.softplus(random(batch, HEADS, n, n, grad=False)).requires_grad_()
    weight, bias = random(2 * n, n), random(2 * n)
    head_weight, head_bias = random(2 * HEADS, HEADS), random(2 * HEADS)
    runs = {
        "torch softmax attention": lambda: F.scaled_dot_product_attention(q, k, v),
        "first weights": lambda: softmax_weights(q, k, None, None, SIZE**-0.5),
        "map over keys": lambda: F.linear(h, weight[:n], bias[:n]),
        "both maps over keys": lambda: F.linear(h, weight, bias),
        "softplus": lambda: F.softplus(h),
        "map over heads with softplus": lambda: head_map(h, head_weight[:12], head_bias[:12], True),
        "both maps over heads": lambda: head_map(h, head_weight, head_bias, False),
        **{name: attention(name, batch, n) for name in SETTINGS},
    }
    return {name: forward_and_backward(run) for name, run in runs.items()}


def try_tiles(batch: int, n: int) -> dict[str, list[tuple[Tile, float]]]:
    """Times of the whole call with other tiles, the fastest first."""
    found: dict[str, list[tuple[Tile, float]]] = {}
    run = attention("BABN", batch, n)
    for kernel, place in {"forward": 0, "rows": 1, "columns": 1}.items():
        usual, times = TILES[kernel], []
        for queries, keys, warps in itertools.product((32, 64, 128), (16, 32, 64, 128), (4, 8)):
            launch.TILES[kernel] = Tile(queries, keys, warps)
            try:
                times.append((TILES[kernel], forward_and_backward(run)[place]))
            except triton.runtime.errors.OutOfResources:
                continue
        launch.TILES[kernel] = usual
        found[kernel] = sorted(times, key=lambda entry: entry[1])[:6]
    return found


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
    tiles = try_tiles(args.batch, args.length) if args.tiles else {}
    for kernel, times in tiles.items():
        print(kernel, *(f"{t.queries}x{t.keys}/{t.warps}: {ms:.3f}" for t, ms in times))
    if args.out:
        args.out.write_text(json.dumps({"parts": measured, "tiles": tiles}, indent=1))


if __name__ == "__main__":
    main()
