"""Cost of each attention method in translation, relative to softmax in a model of the same size.

    python paper/translation_speed.py [--batch 64] [--length 40] [--size paper] [--decode]
                                           [--out FILE]

Times a training step (forward, backward, Adam) on random words, and with --decode beam search with
the posterior mean and with samples. On a CPU the methods take turns, so that other load on the
machine slows all of them equally.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import babn
from babn.benchmark.results import Cost
from babn.benchmark.timing import measure, measure_in_turns
from babn.devices import default_device
from babn.evaluation.tables import Table
from babn_paper.experiments.naming import attention_name
from babn_paper.experiments.run_folder import machine, versions
from babn_paper.models import TranslationConfig, TranslationModel, translate

SIZES: dict[str, dict[str, int]] = {
    "paper": {"vocab_size": 14_000},
    "small": {
        "vocab_size": 2_000,
        "embedding_size": 64,
        "encoder_size": 64,
        "decoder_size": 96,
        "attention_size": 64,
    },
}
METHODS = ("softmax", "va-enum", "va-sample", "bam", "belief")

Batch = dict[str, Tensor]


def make(method: str, size: str, length: int, device: torch.device) -> Any:
    """A model with random weights."""
    torch.manual_seed(0)
    latent = method.startswith("va-")
    config = TranslationConfig(**SIZES[size], attention=method if latent else "softmax")
    model = TranslationModel(config).to(device)
    if latent:
        return model
    more = {"max_length": length} if method == "belief" else {}
    return babn.convert(model, babn.MethodConfig.from_dict({"rule": method, **more}))


def words(batch: int, length: int, size: str, device: torch.device) -> Batch:
    """Sentences of random words, between half and all of the length."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(4, SIZES[size]["vocab_size"], (2, batch, length), generator=generator)
    ends = torch.randint(length // 2, length + 1, (2, batch, 1), generator=generator)
    inside = torch.arange(length) < ends
    source, target = drawn[0] * inside[0], drawn[1].masked_fill(~inside[1], -100)
    return {"input_ids": source.to(device), "labels": target.to(device)}


def training_step(model: Any, batch: Batch, precision: str) -> Callable[[], None]:
    """One step of training."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    device = batch["labels"].device.type

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = model.train()(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def decoding_step(
    model: Any, batch: Batch, precision: str, samples: int | None
) -> Callable[[], None]:
    """Beam search over sentences, to the length of the sources."""
    source = {"input_ids": batch["input_ids"]}
    length = source["input_ids"].shape[1]

    def step() -> None:
        with torch.autocast(
            source["input_ids"].device.type, torch.bfloat16, enabled=precision == "bfloat16"
        ):
            translate(model, source, 10, max_length=length, samples=samples)

    return step


def measure_all(steps: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, Cost]:
    """The cost of each step."""
    if not torch.cuda.is_available():
        found = measure_in_turns(list(steps.values()), repeats)
        return dict(zip(steps, found, strict=True))
    device = torch.device("cuda")
    return {name: measure(step, device, repeats) for name, step in steps.items()}


def main() -> None:
    """Measures, prints a table, and writes the numbers to a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--size", choices=SIZES, default="paper")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default=None)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--decode", action="store_true", help="time beam search as well")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    device = default_device()
    precision = chosen.precision or ("bfloat16" if device.type == "cuda" else "float32")
    batch = words(chosen.batch, chosen.length, chosen.size, device)
    models = {method: make(method, chosen.size, chosen.length, device) for method in METHODS}
    sizes = {method: sum(p.numel() for p in m.parameters()) for method, m in models.items()}
    training = {r: training_step(m, batch, precision) for r, m in models.items()}
    kinds = {"training": measure_all(training, chosen.repeats)}
    if chosen.decode:
        for kind, samples in (("mean", None), ("sampled", chosen.samples)):
            steps = {
                r: decoding_step(m, batch, precision, samples)
                for r, m in models.items()
                if samples is None or r != "softmax"
            }
            kinds[kind] = measure_all(steps, max(3, chosen.repeats // 5))
    targets = int((batch["labels"] >= 0).sum())
    print(f"{machine()}, {precision}, batch {chosen.batch}, length {chosen.length}")
    for kind, costs in kinds.items():
        count = targets if kind == "training" else chosen.batch * chosen.length
        print(f"\n{kind}\n{table(costs, sizes, count).markdown()}")
    if chosen.out:
        settings = {k: str(v) for k, v in vars(chosen).items()} | {"precision": precision}
        numbers = {
            kind: {method: asdict(replace(cost, kernels=[])) for method, cost in costs.items()}
            for kind, costs in kinds.items()
        }
        about = {"machine": machine(), "versions": versions(), "settings": settings}
        counts = {"parameters": sizes, "target_words": targets}
        text = json.dumps({**about, **counts, "costs": numbers})
        chosen.out.write_text(text + "\n", encoding="utf-8")


def table(costs: Mapping[str, Cost], sizes: Mapping[str, int], count: int) -> Table:
    """A row for each method, compared with softmax, or to the first if that is missing."""
    first = next(iter(costs.values())).seconds
    rows = [
        [
            attention_name(method),
            f"{sizes[method] / 1e6:.1f}M",
            f"{cost.seconds * 1e3:.1f} ± {cost.spread * 1e3:.1f}",
            f"{count / cost.seconds:,.0f}",
            f"{first / cost.seconds:.2f}",
        ]
        for method, cost in costs.items()
    ]
    return Table(["attention", "parameters", "ms", "words/s", "relative"], rows)


if __name__ == "__main__":
    main()
