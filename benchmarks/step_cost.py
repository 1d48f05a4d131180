"""What a training step costs under each rule, compared side by side.

    python benchmarks/step_cost.py [--length 128] [--batch 8] [--layers 4] [--steps 5]

Times alternate between the rules, so that a busy machine slows all of them alike; trust the ratio
column. Random weights in the shape of ALBERT-base; softmax is the unconverted model.
"""

import argparse
import platform
import statistics
import time

import torch
import transformers
from torch import nn

import babn

RULES = {
    "softmax": None,
    "bam": babn.BamConfig(),
    "belief, heads": babn.BeliefConfig(upward="heads"),
    "belief, keys": babn.BeliefConfig(),
}


def make_model(rule: babn.RuleConfig | None, layers: int) -> nn.Module:
    """An ALBERT with random weights, converted by `rule`."""
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        num_hidden_layers=layers, num_attention_heads=12, hidden_size=768, intermediate_size=3072
    )
    model = transformers.AlbertForSequenceClassification(config).train()
    return model if rule is None else babn.convert(model, rule)


def step_seconds(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> float:
    """Seconds of one training step."""
    start = time.perf_counter()
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if batch["labels"].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"length": 128, "batch": 8, "layers": 4, "steps": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    models = {name: make_model(rule, args.layers).to(device) for name, rule in RULES.items()}
    optimizers = {name: torch.optim.AdamW(m.parameters(), lr=1e-5) for name, m in models.items()}
    tokens = torch.randint(10, 1000, (args.batch, args.length), device=device)
    batch = {
        "input_ids": tokens,
        "labels": torch.zeros(args.batch, dtype=torch.long, device=device),
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(args.steps + 1):
        for name, model in models.items():
            times[name].append(step_seconds(model, optimizers[name], batch))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    print(
        f"torch {torch.__version__}, {device}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads; batch {args.batch}, {args.length} tokens, "
        f"{args.layers} layers, float32, eager"
    )
    for name, median in medians.items():
        print(f"{name:<15} {median:8.3f} s/step  {median / medians['softmax']:5.2f} x softmax")


if __name__ == "__main__":
    main()
