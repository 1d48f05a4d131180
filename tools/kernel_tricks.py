"""Times unusual parts of the kernels with and without them.

    python tools/kernel_tricks.py [--parts registers rows PTX programs launch] [--out FILE]

Needs a CUDA device. Milliseconds are of one ALBERT-base layer in bfloat16 with 32 texts of 512
tokens: limits of registers, tiles of the kernel for rows (here also with 128 tokens and with
padding), approximate PTX instructions, and programs that share the gradients of maps over heads.
Microseconds are of the host for a launch.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from babn.kernels import special

WITHOUT_PTX = "--without-ptx" in sys.argv
if WITHOUT_PTX:  # before other modules import the functions
    special.log2 = tl.log2

    @triton.jit
    def reciprocal(x):  # type: ignore[no-untyped-def]
        """One over x."""
        return 1.0 / x

    special.reciprocal = reciprocal

import kernel_parts  # noqa: E402

from babn.kernels import flags, heads, key_attention  # noqa: E402
from babn.kernels.flags import Tile  # noqa: E402

BATCH, SHORT, LENGTH = 32, 128, 512
METHODS = {
    "forward": ("BABN", LENGTH, False),
    "forward over heads": ("BABN", LENGTH, True),
    "rows without logits": ("BAM", LENGTH, False),
}
"""For kernels whose registers are limited, a call of each: method, length, and maps over heads."""

ROWS = [Tile(64, 16, 4), Tile(64, 16, 4, 168), Tile(64, 32, 4), Tile(64, 32, 4, 168)]


def with_tile(name: str, tile: Tile, *call: Any) -> float:
    """Milliseconds of a kernel with a tile, in a call of `kernel_parts.attention`."""
    before, flags.TILES[name] = flags.TILES[name], tile
    flags._call_options.cache_clear()
    method, *others = call
    try:
        run = kernel_parts.attention(method, BATCH, *others)
        return kernel_parts.kernel_times(run)[name.split()[0]]
    finally:
        flags.TILES[name] = before
        flags._call_options.cache_clear()


def registers() -> dict[str, dict[str, float]]:
    """Each kernel with its limit of registers and without."""
    return {
        name: {
            f"at most {flags.TILES[name].registers}": with_tile(name, flags.TILES[name], *call),
            "no limit": with_tile(name, flags.TILES[name]._replace(registers=0), *call),
        }
        for name, call in METHODS.items()
    }


def rows() -> dict[str, dict[str, float]]:
    """The kernel for rows with several tiles, by length and kind of call."""
    found = {}
    for length, over_heads, padded in product((SHORT, LENGTH), (False, True), (False, True)):
        name = "rows" if length == SHORT or over_heads or padded else "rows of long texts"
        maps, kind = "heads" if over_heads else "keys", ", padded" if padded else ""
        found[f"{length} tokens, maps over {maps}{kind}"] = {
            "x".join(map(str, tile)): with_tile(name, tile, "BABN", length, over_heads, padded)
            for tile in ROWS
        }
    return found


def kernels() -> dict[str, float]:
    """The kernels for noise over pairs as they are in this process."""
    return kernel_parts.kernel_times(kernel_parts.attention("BABN", BATCH, LENGTH))


def ptx() -> dict[str, dict[str, float]]:
    """The kernels with and without PTX."""
    without = subprocess.check_output([sys.executable, __file__, "--without-ptx"], text=True)
    return {"with": kernels(), "without": json.loads(without.splitlines()[-1])}


def programs() -> dict[str, float]:
    """Gradients of maps over heads by number of programs; `all` has one for each block of pairs."""
    found = {}
    before = heads.PROGRAMS
    for count in (462, 924, before, 2 * before, 10**9):
        heads.PROGRAMS = count
        run = kernel_parts.attention("BABN", BATCH, LENGTH, over_heads=True)
        times = kernel_parts.kernel_times(run)
        found["all" if count == 10**9 else str(count)] = times["heads backward"]
    heads.PROGRAMS = before
    return found


def launches() -> dict[str, float]:
    """Microseconds of the host for a launch, by Triton and by `Launcher`."""
    q, k, v = (torch.randn(1, 12, 16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    bias = torch.zeros(1, 12, 16, device="cuda")
    options = key_attention.options_of("forward", 16, 16, 64, 2, False, "ieee")
    launcher = key_attention.launch_forward

    def by_triton(grid: Any, tensors: Any, numbers: Any, options: Any, types: Any) -> None:
        launcher.kernel[grid](*tensors, *numbers, **options)

    def microseconds() -> float:
        def call() -> None:
            key_attention.attend(q, k, v, bias, 0.125, options)

        return host_time(call)

    found = {"Launcher": microseconds()}
    key_attention.launch_forward = by_triton  # type: ignore[assignment]
    found["Triton"] = microseconds()
    key_attention.launch_forward = launcher
    return found


def host_time(call: Callable[[], None], repeats: int = 1000) -> float:
    """Microseconds of a call without waiting for the GPU, least of five runs."""
    times = []
    for _ in range(5):
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append(1e6 * (time.perf_counter() - start) / repeats)
    return min(times)


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "registers": registers,
    "rows": rows,
    "PTX": ptx,
    "programs": programs,
    "launch": launches,
}


def main() -> None:
    """Prints the times, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, help="file to which the results are added")
    parser.add_argument("--without-ptx", action="store_true", help="time kernels without PTX only")
    args = parser.parse_args()
    if args.without_ptx:
        print(json.dumps(kernels()))
        return
    known = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    found = known | {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        **{name: PARTS[name]() for name in args.parts},
    }
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
