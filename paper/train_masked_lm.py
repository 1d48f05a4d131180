"""Trains a masked language model from a pretrained encoder, for BAE attacks without a network.

    python paper/train_masked_lm.py minilm TEXT.txt.gz --out masked_lm --steps 3000

The weights of the encoder are trained further, and a new head shares its word embeddings. Texts are
cut into pieces of equal length. Writes the model, its tokenizer, and `training.json` with the
accuracy on masked tokens of held-out texts.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from babn.devices import default_device
from babn_paper.data_files import numbered_lines
from babn_paper.experiments.run_folder import environment
from babn_paper.pretrained import model_source

HELD_OUT = 256
"""Held-out pieces of text."""


def pieces(tokenizer: Any, file: Path, length: int, limit: int) -> Tensor:
    """Concatenated texts, cut into pieces with the special tokens of a sentence."""
    ids: list[int] = []
    inside = length - 2
    lines = (line for _, line in numbered_lines(file) if line)
    while len(ids) < limit * inside and (some := list(islice(lines, 10_000))):
        for found in tokenizer(some, add_special_tokens=False)["input_ids"]:
            ids += found
    count = min(limit, len(ids) // inside)
    cut = torch.tensor(ids[: count * inside]).view(count, inside)
    ends = [torch.full((count, 1), i) for i in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
    return torch.cat([ends[0], cut, ends[1]], 1)


def masked(ids: Tensor, tokenizer: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Devlin et al.'s masking: of 15 % of the tokens 80 % are hidden, 10 % exchanged, 10 % kept."""
    chance = torch.rand(ids.shape, generator=generator)
    chance[:, [0, -1]] = 1.0
    labels = ids.where(chance < 0.15, -100)
    other = torch.randint(len(tokenizer), ids.shape, generator=generator)
    hidden = torch.full_like(ids, tokenizer.mask_token_id)
    return ids.where(chance >= 0.135, other).where(chance >= 0.12, hidden), labels


def batches(ids: Tensor, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Batches of random pieces, reshuffled in every epoch."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(ids), generator=generator)
    for step in range(steps):
        places = torch.arange(step * size, (step + 1) * size) % len(ids)
        yield ids[order[places]]


def held_out(model: Any, ids: Tensor, tokenizer: Any, device: torch.device) -> dict[str, float]:
    """Loss and accuracy on masked tokens."""
    inputs, labels = masked(ids, tokenizer, torch.Generator().manual_seed(0))
    losses, right = [], []
    model.eval()
    for x, y in zip(inputs.to(device).split(64), labels.to(device).split(64), strict=True):
        with torch.no_grad():
            logits = model(x).logits.float()
        logits, y = logits[y >= 0], y[y >= 0]  # the masked tokens
        losses.append(torch.nn.functional.cross_entropy(logits, y, reduction="none"))
        right.append(logits.argmax(-1) == y)
    model.train()
    return {
        "loss": torch.cat(losses).mean().item(),
        "right": torch.cat(right).float().mean().item(),
    }


def main() -> None:
    """Trains and reports the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of an encoder, or minilm for the installed one")
    parser.add_argument("text", type=Path, help="one paragraph a line; .gz is read too")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} exists. Name another folder, or remove it.")

    from transformers import AutoModelForMaskedLM, AutoTokenizer

    source = model_source(args.model)
    torch.manual_seed(args.seed)
    device = default_device()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32).to(device)
    ids = pieces(tokenizer, args.text, args.length, args.steps * args.batch + HELD_OUT)
    train, test = ids[:-HELD_OUT], ids[-HELD_OUT:]
    optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.learning_rate, total_steps=args.steps, pct_start=0.1
    )
    generator = torch.Generator().manual_seed(args.seed)
    model.train()
    for step, batch in enumerate(batches(train, args.batch, args.steps, args.seed), 1):
        inputs, labels = masked(batch, tokenizer, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(inputs.to(device), labels=labels.to(device)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % max(1, args.steps // 10) == 0:
            found = held_out(model, test, tokenizer, device)
            print(f"step {step}: held out {found}", flush=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    arguments = {name: str(value) for name, value in vars(args).items()}
    about = {"arguments": arguments, "pieces": len(train), "held_out": found, **environment()}
    (args.out / "training.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
