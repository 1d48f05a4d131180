"""Times the forms of attention with one factor per key: python tools/key_forms.py [--out FILE].

On a GPU in bfloat16 at 128 to 8192 tokens, forward and backward, whole, padded and causal; on a CPU
in float32 up to 512 tokens. Softmax is torch's attention without factors, and `flex` is compiled
FlexAttention with a bias on keys. Each form is also compared with float32 on the same numbers. The
winner goes into `best_form` of `src/babn/attention/key_forms.py`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from babn.attention.inputs import Inputs, repeat_heads
from babn.attention.key_forms import ALIGNED, FORMS, best_form
from babn.attention.softmax import softmax_attention

BATCHES = {128: 32, 512: 32, 2048: 4, 8192: 1}
HEADS, DIM = 12, 64
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}

LARGEST_LOG = 60.0
"""Bound of the log factors in `by_values`, so that no factor underflows."""

Call = Callable[[Inputs, Tensor], Tensor]


def calls() -> Iterator[tuple[str, str, Call]]:
    """Form, backend (torch's choice if empty) and function."""
    yield "softmax", "", lambda inputs, log_e: softmax_attention(inputs)
    for name, form in FORMS.items():
        yield name, "", lambda inputs, log_e, form=form: form(inputs, log_e, 0.0)
    yield "values", "", by_values
    if torch.cuda.is_available():
        yield "flex", "", flex
        for backend in BACKENDS:
            yield "softmax", backend, lambda inputs, log_e: softmax_attention(inputs)
            yield "wide", backend, lambda inputs, log_e: FORMS["wide"](inputs, log_e, 0.0)
            yield "values", backend, by_values


def by_values(inputs: Inputs, log_e: Tensor) -> Tensor:
    r"""Multiplies the values by their factors: $P(Ev) / PE$ with $P$ the softmax weights.

    A column of the values holds the factors, and its result the normaliser.
    """
    heads = inputs.query.shape[1]
    key, value = (repeat_heads(x, heads) for x in (inputs.key, inputs.value))
    e = log_e.clamp(-LARGEST_LOG, LARGEST_LOG).exp().to(value.dtype).transpose(2, 3)
    size = value.shape[-1]
    padding = -(size + 1) % ALIGNED
    columns = F.pad(e.expand(*value.shape[:3], 1), (0, padding))
    value = torch.cat([value * e, columns], -1)
    output = softmax_attention(replace(inputs, key=key, value=value))
    return output[..., :size] / output[..., size : size + 1]


def flex(inputs: Inputs, log_e: Tensor) -> Tensor:
    """Compiled FlexAttention, causal or not; it takes no mask here."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if inputs.mask is not None:
        raise RuntimeError("not measured with a mask")
    bias, length = log_e.squeeze(2), inputs.key.shape[2]
    block = None
    if inputs.causal:
        key = length, inputs.query.device
        if key not in _blocks:
            _blocks[key] = create_block_mask(
                lambda b, h, q, k: q >= k, None, None, length, length, inputs.query.device
            )
        block = _blocks[key]
    run: Any = _compiled.setdefault("flex", torch.compile(flex_attention, dynamic=False))
    return run(
        inputs.query,
        inputs.key,
        inputs.value,
        score_mod=lambda score, b, h, q, k: score + bias[b, h, k],
        block_mask=block,
        scale=inputs.scale,
    )


_blocks: dict[Any, Any] = {}
_compiled: dict[str, Any] = {}


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
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lengths = args.lengths or (list(BATCHES) if device.type == "cuda" else [128, 512])
    rows = []
    for length in lengths:
        for kind in ("whole", "padded", "causal"):
            inputs, log_e = made(length, kind, device)
            base = None
            print(f"{length} tokens, {kind}; best_form says {best_form(inputs, log_e)}")
            for name, backend, call in calls():
                chosen = sdpa_kernel(BACKENDS[backend]) if backend else nullcontext()
                try:
                    with chosen:
                        found = timed(call, inputs, log_e, 10 if device.type == "cuda" else 3)
                        gap = error(call, inputs, log_e) if length <= 2048 else float("nan")
                except Exception as problem:
                    print(f"  {name:<8} {backend:<10} {str(problem).splitlines()[0][:70]}")
                    continue
                base = base or found["ms"]
                times = f"{found['ms']:8.3f} ms  x{found['ms'] / base:5.2f}"
                print(
                    f"  {name:<8} {backend:<10} {times}  {found['MiB']:8.1f} MiB  error {gap:.1e}"
                )
                rows.append({"length": length, "kind": kind, "form": name, "backend": backend,
                             "error": gap, **found})  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
