"""Times the forms of attention with one factor per key: python tools/key_forms.py [--out FILE].

On a GPU in bfloat16 at 128 to 8192 tokens, forward and backward, whole, padded and causal; on a CPU
in float32 up to 512 tokens. Softmax is torch's attention without factors, and `kernel` that of
`babn.kernels.key_attention`. Each form is also compared with float32 on the same numbers. The
winner among torch's forms goes into `best_form` of `src/babn/kernels/sdpa.py`. `--tiles`
times the kernels with several tiles instead.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from babn.attention.inputs import Inputs
from babn.devices import default_device
from babn.kernels.sdpa import ALIGNED, FORMS, best_form, softmax_attention, with_columns

BATCHES = {128: 32, 512: 32, 2048: 4, 8192: 1}
HEADS, DIM = 12, 64
TILES = [(64, 64), (64, 128), (128, 64), (128, 128), (128, 32), (32, 128)]
WARPS = 4, 8

Call = Callable[[Inputs, Tensor], Tensor]


def calls() -> Iterator[tuple[str, Call]]:
    """Forms and their functions."""
    yield "softmax", lambda inputs, log_e: softmax_attention(inputs)
    for name, form in FORMS.items():
        yield name, lambda inputs, log_e, form=form: form(inputs, log_e, 0.0)
    yield "values", by_values
    if torch.cuda.is_available():
        yield "columns, cuDNN", by_cudnn
        yield "values, cuDNN", lambda inputs, log_e: with_cudnn(by_values, inputs, log_e)
        yield "kernel", by_kernel


class Kernel(torch.autograd.Function):
    """The kernels of `key_attention` with given log factors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_e: Tensor, causal: bool) -> Tensor:
        """The output of each example, query and head."""
        from babn.kernels.key_attention import attend

        ctx.options = options_of(q, k, causal)
        bias = (log_e / math.log(2)).squeeze(2)
        out, lse = attend(q, k, v, bias, DIM**-0.5, ctx.options["forward"])
        ctx.save_for_backward(q, k, v, bias, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries, keys, values and log factors."""
        from babn.kernels.key_attention import attend_backward

        dq, dk, dv, dbias = attend_backward(
            *ctx.saved_tensors, dout.contiguous(), DIM**-0.5, ctx.options
        )
        return dq, dk, dv, dbias.unsqueeze(2), None


def options_of(q: Tensor, k: Tensor, causal: bool = False) -> dict[str, dict[str, Any]]:
    """Options of the kernels by name."""
    from babn.kernels import key_attention
    from babn.kernels.launch import float32_products

    sizes = q.shape[2], k.shape[2], DIM, q.element_size(), causal, float32_products()
    return {name: key_attention.options_of(name, *sizes) for name in key_attention.KERNELS}


def by_kernel(inputs: Inputs, log_e: Tensor) -> Tensor:
    """The form by own kernels."""
    if inputs.mask is not None:
        log_e = log_e.masked_fill(~inputs.mask, -torch.inf)
    result: Tensor = Kernel.apply(inputs.query, inputs.key, inputs.value, log_e, inputs.causal)
    return result.transpose(1, 2)


def by_values(inputs: Inputs, log_e: Tensor) -> Tensor:
    """Softmax attention of values times factors, divided by that of the factors.

    Torch's fastest kernels need no bias for it, but values with eight more columns.
    """
    value = inputs.value
    factors = log_e.exp().expand(*value.shape[:2], 1, -1).transpose(2, 3)
    wide = torch.cat([value * factors, factors], -1).to(value.dtype)
    wide = F.pad(wide, (0, -wide.shape[-1] % ALIGNED))
    output = softmax_attention(replace(inputs, value=wide))
    size = value.shape[-1]
    return output[..., :size] / output[..., size : size + 1]


def by_cudnn(inputs: Inputs, log_e: Tensor) -> Tensor:
    """The form `wide` by cuDNN, which takes values that are narrower than queries and keys."""
    return with_cudnn(lambda *call: softmax_attention(with_columns(*call)), inputs, log_e)


def with_cudnn(form: Call, inputs: Inputs, log_e: Tensor) -> Tensor:
    """A form by cuDNN, or an error where that does not support it."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return form(inputs, log_e)


def tune(lengths: list[int], device: torch.device) -> list[dict[str, Any]]:
    """Milliseconds of each kernel with each tile; others keep theirs."""
    from babn.kernels import key_attention

    rows = []
    for length, name in product(lengths, key_attention.TILES):
        inputs, log_e = made(length, "whole", device)
        kept = key_attention.TILES[name]
        for (m, n), warps in product(TILES, WARPS):
            tile = key_attention.TILES[name] = m, n, warps
            try:
                found = kernel_time(inputs, log_e, name)
            except Exception as problem:  # tiles that do not fit
                print(f"{length} {name} {tile}: {str(problem).splitlines()[0][:60]}")
                continue
            rows.append({"length": length, "kernel": name, "tile": tile, "us": found})
        key_attention.TILES[name] = kept
        best = sorted((r for r in rows if (r["length"], r["kernel"]) == (length, name)),
                      key=lambda row: row["us"])  # fmt: skip
        for row in best[:4]:
            print(length, name, row["tile"], f"{row['us']:.1f} us", flush=True)
    return rows


def kernel_time(inputs: Inputs, log_e: Tensor, name: str) -> float:
    """Microseconds of the launches of one kernel, and for the backward pass of all of them."""
    from babn.kernels import key_attention

    with torch.no_grad():
        bias = (log_e / math.log(2)).squeeze(2)
        q, k = inputs.query, inputs.key
        options = options_of(q, k)
        arguments, scale = (q, k, inputs.value, bias), DIM**-0.5
        out, lse = key_attention.attend(*arguments, scale, options["forward"])
        if name == "forward":
            return launches(lambda: key_attention.attend(*arguments, scale, options["forward"]))
        return launches(
            lambda: key_attention.attend_backward(*arguments, out, lse, out, scale, options)
        )


def launches(call: Callable[[], Any], repeats: int = 20) -> float:
    """Microseconds on the GPU, without what Python takes."""
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / repeats


def made(length: int, kind: str, device: torch.device) -> tuple[Inputs, Tensor]:
    """A call of a layer, as projections make it, and log factors."""
    batch = BATCHES[length] if device.type == "cuda" else 2
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    shape = batch, length, HEADS, DIM
    tensors = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
    query, key, value = (x.requires_grad_().transpose(1, 2) for x in tensors)
    draws = torch.empty(batch, HEADS, 1, length, device=device).exponential_()
    log_e = (0.5 * draws.clamp(min=1e-30).log()).requires_grad_()
    mask = None
    if kind == "padded":
        seen = torch.arange(length, device=device) < length - length // 4
        mask = seen.expand(batch, 1, 1, length)
    inputs = Inputs(query, key, value, DIM**-0.5, mask=mask, causal=kind == "causal")
    return inputs, log_e


def timed(call: Call, inputs: Inputs, log_e: Tensor, repeats: int) -> dict[str, float]:
    """Milliseconds of forward and backward, peak memory in MiB beyond the arguments."""
    cuda = inputs.query.is_cuda
    target = torch.randn_like(inputs.query)

    def step() -> None:
        call(inputs, log_e).backward(target)

    for _ in range(3):
        step()
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() - before if cuda else 0
    return {"ms": 1e3 * statistics.median(times), "MiB": peak / 2**20}


def error(call: Call, inputs: Inputs, log_e: Tensor) -> float:
    """Largest difference from the weights in float32, relative to the standard deviation."""
    rows = slice(0, 1)
    wide = [x[rows].detach().float() for x in (inputs.query, inputs.key, inputs.value)]
    mask = None if inputs.mask is None else inputs.mask[rows]
    small = replace(inputs, query=wide[0], key=wide[1], value=wide[2], mask=mask)
    with torch.no_grad():
        scores = small.scores()
        phi = scores.phi + log_e[rows]
        if scores.mask is not None:
            phi = phi.masked_fill(~scores.mask, -torch.inf)
        expected = phi.softmax(-1) @ wide[2]
        found = call(inputs, log_e)[rows].float()
    return float((found - expected).abs().max() / expected.std())


def main() -> None:
    """Prints a line for each form, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lengths", type=int, nargs="*")
    parser.add_argument("--tiles", action="store_true", help="time tiles of the kernels instead")
    args = parser.parse_args()
    device = default_device()
    lengths = args.lengths or (list(BATCHES) if device.type == "cuda" else [128, 512])
    rows = tune(lengths, device) if args.tiles else compare(lengths, device)
    if args.out:
        args.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


def compare(lengths: list[int], device: torch.device) -> list[dict[str, Any]]:
    """Time, memory and error of each form."""
    rows = []
    for length, kind in product(lengths, ("whole", "padded", "causal")):
        inputs, log_e = made(length, kind, device)
        base = None
        print(f"{length} tokens, {kind}; best_form says {best_form(inputs, log_e)}")
        for name, call in calls():
            try:
                found = timed(call, inputs, log_e, 10 if device.type == "cuda" else 3)
            except RuntimeError as problem:  # which cuDNN does not support
                print(f"  {name}: {str(problem).splitlines()[0][:80]}")
                continue
            gap = error(call, inputs, log_e) if length <= 2048 else float("nan")
            base = base or found["ms"]
            times = f"{found['ms']:8.3f} ms  x{found['ms'] / base:5.2f}"
            print(f"  {name:<8} {times}  {found['MiB']:8.1f} MiB  error {gap:.1e}", flush=True)
            rows.append({"length": length, "kind": kind, "form": name, "error": gap, **found})
    return rows


if __name__ == "__main__":
    main()
