"""Trains BABN as published beside ours, BAM and softmax, and finds where raw scores collapse.

    python benchmarks/paper_as_written.py --model FOLDER --data FOLDER --task mrpc --out DIR

Fine-tunes an encoder with each of `METHODS` on up to 4000 texts of a GLUE task and evaluates on its
development data, at the posterior mean and by samples. `paper` is `BeliefConfig.paper()`: raw
scores, one variable per query and key, the KL summed over an example and annealed from 0 to 1 over
the first half of training. Its variants change one thing each. A second process may add methods
to the file of the same task and seed.
"""

import json
import random
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import noise_table
import torch
import torch.nn.functional as F
from noise_table import Data, batches, half_precision, sorted_rows
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import babn
from babn.conversion.override import overriding
from babn.conversion.state import belief_states

PAIR = ("sentence1", "sentence2")
ENTAILMENT = {"entailment": 0, "not_entailment": 1}
BINARY = {"0": 0, "1": 1}
TASKS: dict[str, tuple[tuple[str, ...], dict[str, int] | None, str]] = {
    "mrpc": (PAIR, BINARY, "train"),
    "cola": (("sentence",), BINARY, "train"),
    "rte": (PAIR, ENTAILMENT, "train"),
    "stsb": (PAIR, None, "train"),
    "sst2": (("sentence",), BINARY, "train"),
    "qnli": (("question", "sentence"), ENTAILMENT, "train_reconstructed"),
}
"""Columns, classes (`None` for a number from 0 to 5) and training file of each task."""

TRAINED, TESTED, SAMPLES, POINTS = 4000, 1500, 10, 20
"""Texts for training and testing at most, samples of attention, points of the training curve."""

ANNEALED = babn.KLAnnealing(schedule="linear", warmup=0.5)


@dataclass(frozen=True)
class Method:
    """An attention method and how its new parameters and its KL are trained.

    Attributes:
        config: The settings of attention; `None` for the model as it is.
        annealing: Schedule of the KL weight, which ends at `config.kl_weight`.
        rate: Learning rate of the new parameters, as a multiple of the others'.
    """

    config: babn.MethodConfig | None
    annealing: babn.KLAnnealing = ANNEALED
    rate: float = 1.0


def paper(annealing: babn.KLAnnealing = ANNEALED, rate: float = 1.0, **settings: Any) -> Method:
    """A variant of the method as published."""
    return Method(babn.BeliefConfig.paper(**settings), annealing, rate)


WEIGHTS = 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 1e-14, 0.0
"""Weights of the summed KL."""

MEANS = 1.0, 0.1, 0.01, 1e-3, 1e-4
"""Weights of the mean KL."""

METHODS: dict[str, Method] = {
    "softmax": Method(None),
    "bam": Method(babn.BamConfig()),
    "paper": paper(),
    "default": Method(babn.BeliefConfig()),
    "released": Method(babn.BeliefConfig.released_settings()),
    "pairs": Method(babn.BeliefConfig.pairs()),
    "paper, no annealing": paper(replace(ANNEALED, schedule="constant")),
    "paper, annealed to the end": paper(replace(ANNEALED, warmup=1.0)),
    "paper, rate x10": paper(rate=10.0),
    "paper, rate x100": paper(rate=100.0),
    "paper, rho 4": paper(rho=4.0),
    "paper, consistent mean": paper(noise="truncated"),
    "paper, beta 1e-6": paper(beta=1e-6),
    "paper, beta 1e-12": paper(beta=1e-12),
    "paper, normalised scores": paper(scores="normalized"),
    **{f"paper, KL weight {w:g}": paper(kl_weight=w) for w in WEIGHTS},
    **{f"paper, beta 1e-12, KL weight {w:g}": paper(beta=1e-12, kl_weight=w) for w in WEIGHTS},
    **{
        f"paper, normalised scores, KL weight {w:g}": paper(scores="normalized", kl_weight=w)
        for w in WEIGHTS
    },
    "paper, KL weight 1e-06, rate x10": paper(rate=10.0, kl_weight=1e-6),
    "paper, KL weight 1e-06, rate x100": paper(rate=100.0, kl_weight=1e-6),
    **{f"paper, mean KL, weight {w:g}": paper(kl_reduction="mean", kl_weight=w) for w in MEANS},
}
"""`paper` is the method as published, `default` ours; the KL weight is the one after annealing."""

MAIN = ("softmax", "bam", "paper", "default")


def read(folder: Path, task: str, split: str) -> list[tuple]:
    """Texts of a task with their labels."""
    columns, classes, train = TASKS[task]
    path = folder / task / f"{train if split == 'train' else split}.tsv.gz"
    if classes is not None:
        return noise_table.read(path, columns, classes)
    rows = noise_table.read(path, (*columns, "score"), None)
    return [(texts[:-1], float(texts[-1])) for texts, _ in rows]


def load_data(args: Any, tokenizer: Any) -> dict[str, Data]:
    """Training and test texts as tokens, in a fixed order."""
    noise_table.TOKENS = args.tokens
    found = {}
    for split, most in (("train", TRAINED), ("dev", TESTED)):
        rows = read(args.data, args.task, split)
        random.Random(0).shuffle(rows)
        found[split] = noise_table.encode(rows[: min(most, args.limit)], tokenizer)
    return found


def fresh(args: Any, method: Method) -> nn.Module:
    """The pretrained model with a new head, converted."""
    torch.manual_seed(args.seed)
    outputs = 1 if TASKS[args.task][1] is None else 2
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=outputs, dtype=torch.float32
    ).to(args.device)
    config = method.config
    if isinstance(config, babn.BeliefConfig) and config.noise_over == "pairs":
        config = replace(config, max_length=args.tokens)
    return model if config is None else babn.convert(model, config)


def train(model: nn.Module, method: Method, data: Data, tokenizer: Any, args: Any) -> list[Any]:
    """Fine-tunes with AdamW; returns step, NLL and KL of an example at some steps.

    Training stops where a loss is not finite.
    """
    torch.manual_seed(args.seed)
    count = len(data["labels"]) // args.batch
    total = args.epochs * count
    optimizer = optimizer_of(model, method, args)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * total), 1 - step / total)
    )
    step, curve, every = 0, [], max(total // POINTS, 1)
    model.train()
    for _ in range(args.epochs):
        order = torch.randperm(len(data["labels"])).tolist()[: count * args.batch]
        for batch in batches(data, order, args.batch, tokenizer, args.device):
            if method.config is not None:
                method.annealing.apply(model, step, total)
            with half_precision(batch["labels"]):
                output = model(**batch)
            output.loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if step % every == 0 or step == total - 1:
                curve.append(point(step, model, output, batch["labels"]))
                if not torch.isfinite(output.loss):
                    return curve
            step += 1
    return curve


def optimizer_of(model: nn.Module, method: Method, args: Any) -> torch.optim.Optimizer:
    """AdamW, with a rate of their own for the parameters that conversion added."""
    named = list(model.named_parameters())
    new = [p for name, p in named if "babn." in name]
    old = [p for name, p in named if "babn." not in name]
    groups = [{"params": old}, {"params": new, "lr": args.lr * method.rate, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=args.lr, weight_decay=0.01)


def point(step: int, model: nn.Module, output: Any, labels: Tensor) -> list[float]:
    """Step, NLL of an example, KL as the configuration reduces it, and its weight."""
    logits, kl = output.logits.detach().float(), getattr(output, "belief_kl", None)
    nll = (
        0.5 * F.mse_loss(logits.squeeze(-1), labels)
        if labels.is_floating_point()
        else (F.cross_entropy(logits, labels))
    )
    if kl is None:
        return [step, float(nll), 0.0, 0.0]
    return [step, float(nll), float(kl.detach()), babn.get_kl_weight(model)]


@torch.no_grad()
def evaluate(
    model: nn.Module, method: Method, parts: list[Data]
) -> dict[str, dict[str, float | bool]]:
    """Measures at the posterior mean and by samples, and those of the posterior itself."""
    model.eval()
    truth = torch.cat([batch["labels"].cpu() for batch in parts])
    mean = torch.cat([logits_of(model, batch) for batch in parts])
    found = {"mean": measures(mean.unsqueeze(0), truth)}
    if method.config is not None and torch.isfinite(mean).all():
        found["samples"] = measures(samples_of(model, parts), truth)
        found["posterior"] = posterior(model, parts[:: max(len(parts) // 4, 1)])
    return found


def logits_of(model: nn.Module, batch: Data) -> Tensor:
    """Logits at the posterior mean."""
    with half_precision(batch["labels"]):
        return model(**{n: x for n, x in batch.items() if n != "labels"}).logits.float().cpu()


def samples_of(model: nn.Module, parts: list[Data]) -> Tensor:
    """Logits of each sample."""
    found = []
    for batch in parts:
        with half_precision(batch["labels"]):
            each = babn.predict(model, batch, SAMPLES, antithetic=False, memory=noise_table.MEMORY)
        found.append(each.sample_logits.float().cpu())
    return torch.cat(found, 1)


def measures(logits: Tensor, truth: Tensor) -> dict[str, float | bool]:
    """What the tables show of one mode: logits of shape (sample, text, output)."""
    if not logits.isfinite().all():
        return {"collapsed": True, "finite": False}
    return (
        of_numbers(logits.mean(0).squeeze(-1), truth)
        if truth.is_floating_point()
        else (of_classes(babn.Prediction(logits).probs, truth))
    )


def of_classes(probs: Tensor, truth: Tensor) -> dict[str, float | bool]:
    """Accuracy, calibration, and whether the accuracy is that of the most frequent class."""
    accuracy = babn.metrics.accuracy(probs, truth)
    majority = float(truth.bincount().max() / len(truth))
    share = float(probs.argmax(-1).bincount().max() / len(truth))
    return {
        "accuracy": accuracy,
        "nll": babn.metrics.nll(probs, truth),
        "ece": babn.metrics.ece(probs, truth),
        "majority": majority,
        "one_class": share,
        "collapsed": share > 0.99 or accuracy <= majority + 0.005,
    }


def of_numbers(predicted: Tensor, truth: Tensor) -> dict[str, float | bool]:
    """Pearson's correlation as accuracy, and the NLL of unit variance without its constant."""
    pearson = float(torch.corrcoef(torch.stack([predicted, truth]))[0, 1].nan_to_num())
    nll = float(0.5 * (predicted - truth).square().mean())
    return {"accuracy": pearson, "nll": nll, "collapsed": pearson < 0.1}


def posterior(model: nn.Module, parts: list[Data]) -> dict[str, float]:
    """KL per variable, mean shape k, and the share of shapes at their floor."""
    kl, shapes = [], []
    for batch in parts:
        posteriors: list[Any] = []
        inputs = {n: x for n, x in batch.items() if n != "labels"}
        with overriding(model, mode="mean", record_kl=True, posteriors=posteriors):
            model(**inputs)
        for _, each in posteriors:
            counted = seen_of(each, batch["attention_mask"].bool())
            kl.append(each.kl()[counted].float().cpu())
            shapes.append(each.variables.k.expand_as(counted)[counted].float().cpu())
    k = torch.cat(shapes)
    return {
        "kl": float(torch.cat(kl).double().mean()),
        "k": float(k.double().mean()),
        "k_median": float(k.median()),
        "floor": float((k <= floor_of(model) * 1.0001).double().mean()),
    }


def seen_of(posterior: Any, tokens: Tensor) -> Tensor:
    """The variables of real tokens."""
    like = posterior.kl()
    counted = tokens[:, None, None, :].expand_as(like)
    return counted if like.shape[-2] == 1 else counted & tokens[:, None, :, None]


def floor_of(model: nn.Module) -> float:
    """The smallest shape that a posterior can have."""
    return float(getattr(belief_states(model)[0].config, "smallest_k", 0.0))


def run(args: Any) -> None:
    """One task and seed; writes after every method."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    data = load_data(args, tokenizer)
    args.length = statistics.mean(map(len, data["train"]["tokens"]["input_ids"]))
    parts = batches(data["dev"], sorted_rows(data["dev"]), 64, tokenizer, args.device)
    path = args.out / f"{args.model.name}-{args.task}-{args.seed}.json"
    for name in args.methods or METHODS:
        method, began = METHODS[name], time.perf_counter()
        model = fresh(args, method)
        curve = train(model, method, data["train"], tokenizer, args)
        seconds = time.perf_counter() - began
        found = {**evaluate(model, method, parts), "curve": curve, "seconds": seconds}
        write(path, args, name, found)
        shown = {n: round(float(x), 3) for n, x in found["mean"].items()}
        print(args.task, args.seed, name, f"{seconds:.0f} s", shown, flush=True)


def write(path: Path, args: Any, name: str, found: dict[str, Any]) -> None:
    """Adds a method to the file of the task and seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = (
        json.loads(path.read_text())
        if path.exists()
        else {
            "task": args.task,
            "seed": args.seed,
            "model": args.model.name,
            "length": args.length,
            "settings": {n: getattr(args, n) for n in ("lr", "epochs", "batch", "tokens", "limit")},
            **noise_table.environment(args.device),
            "methods": {},
        }
    )
    result["methods"][name] = found
    path.write_text(json.dumps(result))


def parse() -> Any:
    """The command line."""
    parser = noise_table.arguments(TASKS)
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, metavar="METHOD", help="of METHODS; by default all"
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a text at most")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(max(torch.get_num_threads() // 2, 1))
    run(parse())
