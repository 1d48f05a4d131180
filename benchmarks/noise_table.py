"""Compares noise tuned after training with deterministic models, MC dropout and ensembles.

    python benchmarks/noise_table.py --model FOLDER --data FOLDER --task cola --seed 0 --out DIR

Fine-tunes an encoder with softmax attention and once more with BABN's default, fits the amount of
noise and the temperature (TS) of each method on 600 held-out training texts by one criterion
(lowest NLL at a loss of at most 0.3 points of accuracy), and evaluates on GLUE's development data.
Out-of-domain texts come from another data set of the same form.
"""

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from from_scratch import environment
from from_scratch import train as train_model
from map_measures import map_content
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import babn

TASKS = {
    "mrpc": (
        ("sentence1", "sentence2"),
        {"0": 0, "1": 1},
        "train",
        ("qqp", "question1", "question2"),
    ),
    "cola": (("sentence",), {"0": 0, "1": 1}, "train", ("sst2", "sentence")),
    "sst2": (("sentence",), {"0": 0, "1": 1}, "train", ("cola", "sentence")),
    "qnli": (
        ("question", "sentence"),
        {"entailment": 0, "not_entailment": 1},
        "train_reconstructed",
        ("rte", "sentence1", "sentence2"),
    ),
}
TUNED, TRAINED, TESTED, FOREIGN = 600, 4000, 1500, 500
"""Texts for fitting noise, for training, for testing, and from another domain, at most."""

SAMPLES, TOKENS = 20, 128
RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
DROP = 0.003
MEMORY = 4.0
"""Gigabytes for one pass, since several of these run beside each other."""

Data = dict[str, Any]


def read(path: Path, columns: tuple[str, ...], classes: dict[str, int] | None) -> list[tuple]:
    """Texts and labels of a tab-separated file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head = file.readline().rstrip("\n").split("\t")
        rows = [dict(zip(head, line.rstrip("\n").split("\t"), strict=False)) for line in file]
    label = (lambda row: classes[row["label"]]) if classes else lambda row: 0
    return [(tuple(row[name] for name in columns), label(row)) for row in rows]


def load_data(folder: Path, task: str, tokenizer: Any, limit: int) -> dict[str, Data]:
    """Training, tuning, test and out-of-domain texts as tokens."""
    columns, classes, train, (other, *other_columns) = TASKS[task]
    rows = read(folder / task / f"{train}.tsv.gz", columns, classes)
    tested = read(folder / task / "dev.tsv.gz", columns, classes)
    foreign = read(folder / other / "dev.tsv.gz", tuple(other_columns), None)
    for each in (rows, tested, foreign):
        random.Random(0).shuffle(each)
    parts = {
        "tune": rows[:TUNED],
        "train": rows[TUNED : TUNED + TRAINED],
        "test": tested[:TESTED],
        "foreign": foreign[:FOREIGN],
    }
    return {name: encode(part[:limit], tokenizer) for name, part in parts.items()}


def encode(rows: list[tuple], tokenizer: Any) -> Data:
    """Tokens of texts and their labels."""
    texts = [list(side) for side in zip(*(texts for texts, _ in rows), strict=True)]
    tokens = tokenizer(*texts, truncation=True, max_length=TOKENS)
    return {"tokens": tokens, "labels": torch.tensor([label for _, label in rows])}


def batches(data: Data, rows: list[int], size: int, tokenizer: Any, device: str) -> list[Data]:
    """Padded batches of some rows, in their order."""
    found = []
    for start in range(0, len(rows), size):
        chosen = rows[start : start + size]
        part = {name: [values[i] for i in chosen] for name, values in data["tokens"].items()}
        padded = tokenizer.pad(part, return_tensors="pt")
        batch = {name: value.to(device) for name, value in padded.items()}
        found.append({**batch, "labels": data["labels"][chosen].to(device)})
    return found


def train(model: nn.Module, data: Data, tokenizer: Any, seed: int, args: Any) -> float:
    """Fine-tunes a model, and returns the time in seconds."""
    torch.manual_seed(seed)
    used = len(data["labels"]) // 32 * 32

    def epoch() -> list[Data]:
        order = torch.randperm(len(data["labels"])).tolist()
        return batches(data, order[:used], 32, tokenizer, args.device)

    began = time.perf_counter()
    train_model(model, epoch, args.epochs * used // 32, args.lr)
    return time.perf_counter() - began


def half_precision(like: Tensor) -> torch.autocast:
    """Autocast to bfloat16 on GPUs."""
    return torch.autocast(like.device.type, torch.bfloat16, enabled=like.is_cuda)


def sampled(model: nn.Module, parts: list[Data], samples: int, **how: Any) -> Tensor:
    """Logits of each sample for all rows of sorted batches."""
    found = []
    for batch in parts:
        with half_precision(batch["labels"]):
            each = babn.predict(model, batch, samples, antithetic=False, memory=MEMORY, **how)
        found.append(each.sample_logits.float().cpu())
    return torch.cat(found, 1)


def labels(parts: list[Data]) -> Tensor:
    """The labels of all rows."""
    return torch.cat([batch["labels"].cpu() for batch in parts])


def labels_of(sets: dict[str, list[Data]]) -> dict[str, Tensor]:
    """The labels of every set."""
    return {name: labels(parts) for name, parts in sets.items()}


def measures(logits: dict[str, Tensor], truths: dict[str, Tensor]) -> dict[str, float]:
    """Everything that the table shows of one method."""
    truth = truths["test"]
    found, foreign = babn.Prediction(logits["test"]), babn.Prediction(logits["foreign"])
    wrong = found.probs.argmax(-1) != truth
    scores = {"entropy": found.entropy, "mi": found.mutual_information}
    others = {"entropy": foreign.entropy, "mi": foreign.mutual_information}
    return {
        "accuracy": babn.metrics.accuracy(found.probs, truth),
        "nll": babn.metrics.nll(found.probs, truth),
        "ece": babn.metrics.ece(found.probs, truth),
        **{f"error_{n}": babn.metrics.auroc(s[~wrong], s[wrong]) for n, s in scores.items()},
        **{f"foreign_{n}": babn.metrics.auroc(scores[n], others[n]) for n in scores},
        "mi": float(found.mutual_information.mean()),
        "disagreement": float(
            (found.sample_probs.argmax(-1) != found.probs.argmax(-1)).double().mean()
        ),
    }


def tempered(logits: dict[str, Tensor], truths: dict[str, Tensor]) -> dict[str, float]:
    """Measures after temperature scaling on the texts for tuning."""
    temperature = babn.fit_temperature(babn.Prediction(logits["tune"]), truths["tune"])
    scaled = {name: x / temperature for name, x in logits.items()}
    return {**measures(scaled, truths), "temperature": temperature}


def mc_dropout(model: nn.Module, sets: dict[str, list[Data]]) -> dict[str, dict[str, float]]:
    """MC dropout, its rate chosen as `tune_noise` chooses levels, without and with TS."""
    truths = labels_of(sets)

    def trial(rate: float) -> tuple[float, float, float]:
        set_dropout(model, rate)
        logits = sampled(model, sets["tune"], SAMPLES if rate else 1, dropout=rate > 0)
        found = babn.Prediction(logits)
        scaled = found.tempered(babn.fit_temperature(found, truths["tune"]))
        nlls = (babn.metrics.nll(each.probs, truths["tune"]) for each in (found, scaled))
        return babn.metrics.accuracy(found.probs, truths["tune"]), *nlls

    def result(index: int, measured: Any) -> dict[str, float]:
        allowed = [r for r, found in trials.items() if found[0] >= trials[0.0][0] - DROP - 1e-9]
        rate = min(allowed, key=lambda rate: trials[rate][index])
        set_dropout(model, rate)
        began = time.perf_counter()
        logits = logits_of(model, sets, SAMPLES if rate else 1, dropout=rate > 0)
        seconds = time.perf_counter() - began
        return {**measured(logits, truths), "level": rate, "seconds": seconds}

    trials = {rate: trial(rate) for rate in (0.0, *RATES)}
    return {"MC dropout": result(1, measures), "MC dropout + TS": result(2, tempered)}


def set_dropout(model: nn.Module, rate: float) -> None:
    """One rate for all dropout of a model."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate


def logits_of(
    model: nn.Module, sets: dict[str, list[Data]], samples: int, **how: Any
) -> dict[str, Tensor]:
    """Logits on every set."""
    return {name: sampled(model, parts, samples, **how) for name, parts in sets.items()}


def tuned(
    model: nn.Module, sets: dict[str, list[Data]], temperature: bool = True
) -> dict[str, float]:
    """Fits a converted model's noise, and evaluates it."""
    babn.set_temperature(model, 1.0)
    with half_precision(sets["tune"][0]["labels"]):
        found = babn.tune_noise(
            model,
            sets["tune"],
            samples=SAMPLES,
            temperature=temperature,
            max_accuracy_drop=DROP,
            memory=MEMORY,
            progress=False,
        ).chosen
    began = time.perf_counter()
    logits = logits_of(model, sets, SAMPLES)
    seconds = time.perf_counter() - began
    chosen = {"level": found.level, "temperature": found.temperature, "seconds": seconds}
    return {**measures(logits, labels_of(sets)), **chosen}


def content(model: nn.Module, data: Data, device: str) -> list[dict[str, Any]]:
    """How far uncertainty maps are about the input at noise level 1, on texts of 24 tokens."""
    long = [i for i, ids in enumerate(data["tokens"]["input_ids"]) if len(ids) == 24][:32]
    if len(long) < 16:
        return []
    babn.set_noise_level(model, 1.0)
    ids = torch.tensor([data["tokens"]["input_ids"][i] for i in long], device=device)
    return [vars(one) for one in map_content(model, {"input_ids": ids})]


def prepare(
    args: Any, load: Callable[..., dict[str, Data]]
) -> tuple[Any, dict[str, Data], dict[str, list[Data]]]:
    """The tokenizer, the data, and batches of the sets that models are evaluated on."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    data = load(args.data, args.task, tokenizer, args.limit)
    sets = {
        name: batches(data[name], sorted_rows(data[name]), 64, tokenizer, args.device)
        for name in ("tune", "test", "foreign")
    }
    return tokenizer, data, sets


def fresh(args: Any) -> nn.Module:
    """The pretrained encoder with a new classifier."""
    torch.manual_seed(args.seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=2, dtype=torch.float32
    )
    return model.to(args.device)


def run(args: Any) -> None:
    """One task and seed."""
    tokenizer, data, sets = prepare(args, load_data)
    found: dict[str, Any] = {}
    model = fresh(args)
    seconds = {"softmax": train(model, data["train"], tokenizer, args.seed, args)}
    babn.convert(model, babn.SoftmaxConfig())
    logits_of(model, sets, 1)
    began = time.perf_counter()
    logits, truths = logits_of(model, sets, 1), labels_of(sets)
    passed = time.perf_counter() - began
    found["deterministic"] = {**measures(logits, truths), "seconds": passed}
    found["deterministic + TS"] = {**tempered(logits, truths), "seconds": passed}
    found |= mc_dropout(model, sets)
    set_dropout(model, 0.1)
    babn.revert(model)
    babn.convert(model, babn.BamConfig(k=1.0))
    found["per pair + TS, not trained"] = tuned(model, sets)
    babn.revert(model)
    babn.convert(model)
    found["BABN, not trained"] = tuned(model, sets, temperature=False)
    found["BABN + TS, not trained"] = tuned(model, sets)
    maps = {"not trained": content(model, data["train"], args.device)}
    model = fresh(args)
    babn.convert(model)
    seconds["BABN"] = train(model, data["train"], tokenizer, args.seed, args)
    found["BABN, trained"] = tuned(model, sets, temperature=False)
    found["BABN + TS, trained"] = tuned(model, sets)
    maps["trained"] = content(model, data["train"], args.device)
    write(
        args,
        seconds=seconds,
        methods=found,
        content=maps,
        logits={name: x.squeeze(0).half().tolist() for name, x in logits.items()},
        labels={name: x.tolist() for name, x in truths.items()},
    )


def write(args: Any, **found: Any) -> None:
    """Writes the results of a task and seed."""
    result = {
        "task": args.task,
        "seed": args.seed,
        "model": args.model.name,
        "settings": {"lr": args.lr, "epochs": args.epochs},
        **environment(args.device),
        **found,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.model.name}-{args.task}-{args.seed}.json").write_text(json.dumps(result))
    print(args.task, args.seed, flush=True)


def sorted_rows(data: Data) -> list[int]:
    """Rows by length, so that batches need little padding."""
    ids = data["tokens"]["input_ids"]
    return sorted(range(len(ids)), key=lambda i: len(ids[i]))


def arguments(tasks: Iterable[str]) -> argparse.ArgumentParser:
    """The command line of one task and seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", choices=list(tasks), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--limit", type=int, default=TRAINED, help="texts of each set, for a trial")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    torch.set_num_threads(max(torch.get_num_threads() // 2, 1))
    run(arguments(TASKS).parse_args())
