"""Measures how many Weibull shapes of BABN as published sit at their floor, and what that changes.

    python benchmarks/floor_of_k.py --model FOLDER --data FOLDER --out benchmarks/results/floor.json

At conversion, before any training, on 64 texts of MRPC's development data: with rho 1.5 and with
rho 0, the paper's ablation, for several floors. A shape at the floor has no gradient.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import paper_as_written
import torch
from noise_table import batches, sorted_rows
from transformers import AutoTokenizer

import babn

FLOORS, RHOS, TEXTS = (0.1, 0.05, 0.01), (1.5, 0.0), 64


def measure(args: Any, rho: float, scores: Any, floor: float) -> dict[str, Any]:
    """Share of shapes at the floor, their median and the KL per pair."""
    config = babn.BeliefConfig.paper(rho=rho, scores=scores, smallest_k=floor)
    model = paper_as_written.fresh(args, paper_as_written.Method(config)).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    data = paper_as_written.load_data(args, tokenizer)["dev"]
    parts = batches(data, sorted_rows(data), 32, tokenizer, "cpu")
    with torch.no_grad():
        found = paper_as_written.posterior(model, parts)
    return {"rho": rho, "scores": scores, "smallest_k": floor, **found}


def parse() -> Any:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    fixed = {"task": "mrpc", "seed": 0, "tokens": 64, "limit": TEXTS, "device": "cpu"}
    parser.set_defaults(**fixed)
    return parser.parse_args()


def main() -> None:
    """Measures every combination and writes the file."""
    args = parse()
    cases = [(rho, s, f) for rho in RHOS for s in ("raw", "normalized") for f in FLOORS]
    rows = [measure(args, *case) for case in cases]
    args.out.write_text(json.dumps({"model": args.model.name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
