"""Shows where the time of a training step goes, on the CPU and on the GPU.

    python tools/step_profile.py [--length 2048] [--methods softmax keys] [--form eager]

Prints for each method the wall time, the time in which the GPU works, its longest kernels, and the
operations that take most time on the CPU. Needs a CUDA device.
"""

import argparse
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile

from babn.benchmark.results import NAMES, Form, Row, Size
from babn.benchmark.suite import GPU, make_step

STEPS, SHOWN = 10, 15


def show(method: str, form: Form, length: int) -> None:
    """Profiles the steps of a method."""
    row = Row("train", NAMES[method], form, Size(length, GPU[length]))
    step = make_step(row, torch.device("cuda"))
    times = []
    for _ in range(2 * STEPS):
        began = time.perf_counter()
        step()
        launched = time.perf_counter() - began
        torch.cuda.synchronize()
        times.append((1e3 * (time.perf_counter() - began), 1e3 * launched))
    wall, launched = (statistics.median(each) for each in zip(*times[STEPS:], strict=True))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    rows = seen.key_averages()
    busy = sum(row.self_device_time_total for row in rows) / 1e3
    print(f"\n{method}, {length} tokens, {form}: {wall:.1f} ms")
    print(f"launched in {launched:.1f} ms, GPU busy {busy:.1f} ms")
    for title, key in (("GPU", "self_device_time_total"), ("CPU", "self_cpu_time_total")):
        print(f"  {title} ms, calls")
        for row in sorted(rows, key=lambda row: -getattr(row, key))[:SHOWN]:
            print(f"  {getattr(row, key) / 1e3:9.3f} {row.count:6} {row.key[:90]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2048, choices=GPU)
    parser.add_argument("--methods", nargs="+", default=["softmax", "keys"], choices=NAMES)
    parser.add_argument("--form", default="eager", choices=["eager", "compiled"])
    args = parser.parse_args()
    for method in args.methods:
        show(method, args.form, args.length)


if __name__ == "__main__":
    main()
