"""A look-up task in which the number of equally good candidates is known.

    python benchmarks/lookup.py [--seeds 0 1 2] [--steps 600] [--out FILE] [--figure FILE]

A small BERT with BABN attention reads a query key and then eight pairs of a key and a value. The
pairs contain the query key 1, 2 or 4 times with different values, and the label is one of these at
random. Measures attention at the output position and the predictions by the number of
candidates, and the same for an untrained model, for another key that is repeated, and for pairs in
another order. Writes the numbers and a figure.
"""

import argparse
import json
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import babn
from babn import plots
from babn.errors import BabnWarning
from babn.files import replace_file
from babn.plots.figures import COLOURS, GREY, drawing, new_figure
from babn_paper.experiments.run_folder import machine, versions

ROOT = Path(__file__).parents[1]
PAIRS, KEYS, VALUES = 8, 12, 12
COUNTS = (1, 2, 4)
"""How often a key is repeated."""

BERT = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "initializer_range": 0.1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
RATE, BATCH = 5e-3, 48
TESTED, SAMPLES = 200, 20
"""Sequences for each number of candidates, and samples of attention."""

MEASURES = {
    "weight_entropy": "entropy of the\nmean weights [nats]",
    "relative_std": "std/mean of the\ncandidates' weights",
    "entropy": "predictive entropy\n[nats]",
    "mutual_information": "mutual information\n[nats]",
}


@dataclass(frozen=True)
class Sequences:
    """Key-value pairs, the answering position before them.

    Attributes:
        keys: The queried key, then the key of each pair.
        values: 0 at the answering position, then the value of each pair plus 1.
        answer: The value of one of the candidates.
    """

    keys: Int[Tensor, "sequence 1+pair"]
    values: Int[Tensor, "sequence 1+pair"]
    answer: Int[Tensor, "sequence"]

    @property
    def candidates(self) -> Bool[Tensor, "sequence 1+pair"]:
        """The pairs with the queried key."""
        same = self.keys == self.keys[:, :1]
        same[:, 0] = False
        return same

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the model reads: keys as tokens, values as types of token."""
        return {"input_ids": self.keys, "token_type_ids": self.values}

    def shuffled(self, order: Int[Tensor, "pair"]) -> "Sequences":
        """The pairs in another order."""
        order = torch.cat([torch.zeros(1, dtype=torch.long), order + 1])
        return replace(self, keys=self.keys[:, order], values=self.values[:, order])


def draw(count: int, candidates: int, repeats: int, generator: torch.Generator) -> Sequences:
    """Sequences with some candidates and another key repeated; all other keys are different."""
    keys = _permutations(count, KEYS, generator)
    place = torch.arange(PAIRS)
    other = torch.where(place < candidates + repeats, 1, place - candidates - repeats + 2)
    paired = keys[:, torch.where(place < candidates, 0, other)]
    values = _permutations(count, VALUES, generator)[:, :PAIRS]
    order = _permutations(count, PAIRS, generator)
    queried = keys[:, :1]
    return Sequences(
        torch.cat([queried, paired.gather(1, order)], 1),
        torch.cat([torch.zeros_like(queried), values.gather(1, order) + 1], 1),
        values[:, 0],
    )


def _permutations(count: int, size: int, generator: torch.Generator) -> Int[Tensor, "count size"]:
    return torch.rand(count, size, generator=generator).argsort(1)


def untrained(seed: int) -> nn.Module:
    """The converted model before training."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=KEYS,
        type_vocab_size=VALUES + 1,
        max_position_embeddings=PAIRS + 1,
        num_labels=VALUES,
        pad_token_id=None,
        **BERT,
    )
    return babn.convert(BertForSequenceClassification(config), babn.BeliefConfig()).eval()


def trained(seed: int, steps: int) -> nn.Module:
    """The model after `steps` batches of new sequences."""
    model = untrained(seed).train()
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * steps), 1 - step / steps)
    )
    for _ in range(steps):
        repeats = COUNTS[int(torch.randint(len(COUNTS), (), generator=generator))]
        parts = [draw(BATCH // len(COUNTS), c, repeats, generator) for c in COUNTS]
        inputs = {name: torch.cat([p.inputs[name] for p in parts]) for name in parts[0].inputs}
        loss = model(**inputs, labels=torch.cat([part.answer for part in parts])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def weight_on_candidates(model: nn.Module, seen: Sequences) -> Float[Tensor, "head"]:
    """How much each head's answering position looks at the candidates."""
    weights = babn.attention_maps(model, seen.inputs)[-1].mean[:, :, 0]
    return (weights * seen.candidates[:, None]).sum(-1).mean(0)


def lookup_heads(model: nn.Module) -> list[int]:
    """Heads that look at a single candidate more than at all else; all heads if none does."""
    weight = weight_on_candidates(model, held_out(1, 1))
    return (weight > 0.5).nonzero().flatten().tolist() or list(range(len(weight)))


def held_out(candidates: int, repeats: int) -> Sequences:
    """The same sequences for every model."""
    return draw(TESTED, candidates, repeats, torch.Generator().manual_seed(1000))


def measure(model: nn.Module, seen: Sequences) -> dict[str, float]:
    """Attention at the answering position in the look-up heads, and predictions; means over all."""
    heads = lookup_heads(model)
    layer = babn.attention_maps(model, seen.inputs)[-1]
    weights, spread = (x[:, heads, 0].double() for x in (layer.mean, layer.relative_std))
    candidates = seen.candidates[:, None].expand_as(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BabnWarning)  # untrained models have hardly any noise
        found = babn.predict(model, seen.inputs, samples=SAMPLES, seed=0, antithetic=False)
    predicted = found.probs.argmax(-1, keepdim=True) + 1
    return {
        "heads": heads,
        "weight": float((weights * candidates).sum(-1).mean()),
        "weight_entropy": float(-torch.xlogy(weights, weights).sum(-1).mean()),
        "relative_std": float(spread[candidates].mean()),
        "entropy": float(found.entropy.mean()),
        "mutual_information": float(found.mutual_information.mean()),
        "accuracy": float(((seen.values == predicted) & seen.candidates).any(1).double().mean()),
    }


def by_count(model: nn.Module) -> dict[str, list[dict[str, float]]]:
    """The measures by how often the queried key and how often another key is there."""
    return {
        "candidates": [measure(model, held_out(count, 1)) for count in COUNTS],
        "another key": [measure(model, held_out(1, count)) for count in COUNTS],
    }


def shuffle_agreement(model: nn.Module, candidates: int, seed: int = 0) -> dict[str, float]:
    """Measures of pairs in another order, and how far the candidates' uncertainty moves along."""
    order = torch.randperm(PAIRS, generator=torch.Generator().manual_seed(seed))
    seen = held_out(candidates, 1)
    moved = seen.shuffled(order)
    heads = lookup_heads(model)
    before, after = (
        babn.attention_maps(model, each.inputs)[-1].relative_std[:, heads, 0, 1:].double().log()
        for each in (seen, moved)
    )
    both = torch.stack([before[:, :, order].flatten(), after.flatten()])
    return {**measure(model, moved), "correlation": float(torch.corrcoef(both)[0, 1])}


@drawing
def figure(results: dict[str, Any]) -> Any:
    """Each measure by the number of candidates, beside the controls."""
    canvas = new_figure((plots.DOUBLE, 2.4))
    panels = canvas.subplots(1, len(MEASURES))
    for panel, (name, title) in zip(panels, MEASURES.items(), strict=True):
        lines(panel, results, name)
        panel.set_title(title)
        panel.set(xlabel="occurrences of the key", xscale="log", ylim=(0, None))
        panel.set_xticks(COUNTS, [str(count) for count in COUNTS])
        panel.minorticks_off()
    handles, labels = panels[2].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=4)
    return canvas


def lines(panel: Any, results: dict[str, Any], name: str) -> None:
    """One line for each model and kind of key."""
    runs = list(results["trained"].values())
    if name == "entropy":
        least = torch.tensor(COUNTS).log().tolist()
        panel.plot(COUNTS, least, color="0.8", linewidth=4, label="entropy of the answer")
    for index, run in enumerate(runs):
        for kind, colour, text in (
            ("candidates", COLOURS[0], "queried key"),
            ("another key", COLOURS[1], "another key"),
        ):
            label = f"{text}, {len(runs)} trainings" if index == 0 else None
            values = [one[name] for one in run[kind]]
            panel.plot(COUNTS, values, "o-", color=colour, markersize=3, clip_on=False, label=label)
    values = [one[name] for one in results["untrained"]["candidates"]]
    panel.plot(
        COUNTS,
        values,
        "s--",
        color=GREY,
        markersize=3,
        clip_on=False,
        label="queried key, untrained",
    )


def table(results: dict[str, Any]) -> list[str]:
    """All measures as text."""
    shown = ("weight", *MEASURES, "accuracy")
    lines = [f"{'':<24}{'count':>6}" + "".join(f"{name:>20}" for name in shown)]
    runs = {"untrained": results["untrained"]}
    runs |= {f"seed {seed}": run for seed, run in results["trained"].items()}
    for name, run in runs.items():
        for kind in ("candidates", "another key"):
            for count, one in zip(COUNTS, run[kind], strict=True):
                cells = "".join(f"{one[each]:>20.4f}" for each in shown)
                lines.append(f"{name + ' ' + kind:<24}{count:>6}" + cells)
    return lines


def run(seeds: list[int], steps: int) -> dict[str, Any]:
    """Trains and measures with every seed."""
    found: dict[str, Any] = {"untrained": by_count(untrained(seeds[0])), "trained": {}}
    for seed in seeds:
        began = time.perf_counter()
        model = trained(seed, steps)
        seconds = time.perf_counter() - began
        moved = {str(count): shuffle_agreement(model, count) for count in COUNTS}
        found["trained"][str(seed)] = {**by_count(model), "shuffled": moved, "seconds": seconds}
        print(f"seed {seed}: {seconds:.0f} s of training", flush=True)
    return found


def main() -> None:
    """Writes the numbers and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/lookup.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs/figures/lookup.png")
    parser.add_argument("--redraw", action="store_true", help="only draw what --out holds")
    args = parser.parse_args()
    if args.redraw:
        results = json.loads(args.out.read_text())["results"]
    else:
        results = run(args.seeds, args.steps)
        settings = {"seeds": args.seeds, "steps": args.steps, "rate": RATE, "batch": BATCH, **BERT}
        settings["config"] = babn.BeliefConfig().to_dict()
        head = {"settings": settings, "versions": versions(), "machine": machine()}
        text = json.dumps({**head, "results": results}, indent=1)
        replace_file(args.out, lambda partial: partial.write_text(text + "\n"))
    plots.save(figure(results), args.figure)
    print(*table(results), sep="\n")


if __name__ == "__main__":
    main()
