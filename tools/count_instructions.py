"""Instructions per query-key pair in the kernels' loops, counted in their machine code for Hopper.

    python tools/count_instructions.py [--out FILE]

Needs no GPU: Triton compiles ahead of time and includes the disassembler. A multiprocessor's
four schedulers issue one instruction for 32 lanes each in a cycle; special functions (logarithms,
exponentials, reciprocals) take eight cycles of a scheduler's unit. The instructions of all pairs
are thus a lower bound of the time of a kernel, whatever the memory traffic.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))
from ahead_of_time import machine_code
from test_compilation import DEFAULT, KERNELS, VARIANTS, tile_of

from babn.kernels.flags import TILES

MEASURED = {
    "BABN keys": {},
    "BABN heads": VARIANTS["heads"],
    "BABN mean": VARIANTS["mean"],
    "BAM": VARIANTS["bam"],
}
BACKWARD = ("rows", "columns")
PASSES = {
    "BABN keys": ("forward", *BACKWARD),
    "BABN heads": ("forward", *BACKWARD),
    "BABN mean": ("forward",),
    "BAM": ("forward", *BACKWARD),
}
"""Kernels of a training step, or of a pass at the posterior mean."""

UNITS = 132 * 4
"""Schedulers of an H200."""

GIGAHERTZ = 1.755
SPECIAL = 8
"""Cycles for which a special function of 32 lanes keeps its unit busy."""

LABEL = re.compile(r"\s*(\.L_x_\d+):")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);")
JUMP = re.compile(r"BRA.*?`\((\.L_x_\d+)\)")
PREDICATE = re.compile(r"^@!?U?P\d+\s+")


def disassembled(binary: bytes) -> str:
    """The machine code as text."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.check_output([tool, "-c", file.name], text=True, stderr=subprocess.PIPE)


def loops(text: str) -> list[list[str]]:
    """The names of the instructions of each loop, that is between a label and a jump back to it."""
    names: list[str] = []
    labels: dict[str, int] = {}
    found = []
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(names)
        elif instruction := INSTRUCTION.match(line):
            words = PREDICATE.sub("", instruction[1].strip())
            names.append(words.split()[0].split(".")[0])
            jump = JUMP.search(words)
            if jump and jump[1] in labels:
                found.append(names[labels[jump[1]] :])
    return found


def counted(kernel: str, variant: dict[str, Any]) -> list[dict[str, float]]:
    """For each loop over keys: instructions and special functions per pair, and their time."""
    options = {**DEFAULT, **variant}
    tile = TILES[tile_of(kernel, options)]
    options |= {"BLOCK_M": tile.queries, "BLOCK_N": tile.keys}
    binary = machine_code(*KERNELS[kernel], options, "bf16", tile.warps, tile.registers)
    held = tile.queries * tile.keys / (32 * tile.warps)
    found = []
    for body in loops(disassembled(binary)):
        kinds = Counter(body)
        if kinds["HGMMA"]:  # others do not run over keys
            cycles = max(len(body), SPECIAL * kinds["MUFU"]) / held
            found.append({
                "instructions": len(body) / held,
                "special": kinds["MUFU"] / held,
                "ms_per_100M_pairs": 1e8 / 32 * cycles / UNITS / GIGAHERTZ / 1e6,
            })  # fmt: skip
    return found


def main() -> None:
    """Prints and writes the counts of every kernel for every method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    for name, variant in MEASURED.items():
        for kernel in PASSES[name]:
            found[f"{name}, {kernel}"] = counted(kernel, variant)
            for loop in found[f"{name}, {kernel}"]:
                print(f"{name:11} {kernel:8}", *(f"{k} {v:6.2f}" for k, v in loop.items()))
    if args.out:
        results = {"triton": triton.__version__, "gigahertz": GIGAHERTZ, "kernels": found}
        args.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
