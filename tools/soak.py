"""Trains, samples, generates, saves and loads in a loop, and checks that memory does not grow.

    python tools/soak.py [--minutes 60] [--out FILE]

A round converts tiny models, trains them for a few steps, predicts with samples, generates, saves
and loads whole models and adapters, reverts them, and takes an experiment through a crash,
`--resume` and its evaluation. Resources are measured after every round. The exit code is 1 if they
grow.

Growth is measured without the first quarter of the rounds, which is warm-up (caches, allocator,
lazy imports). Memory and objects are fitted by the median of the slopes between all pairs of
rounds, which is robust to outliers. Memory may grow by 2 %: fragmentation stays below that, while
keeping one tiny model (100 kB) per round exceeds it within minutes. Smaller leaks show in the
objects of the garbage collector, which are counted exactly: one more object in ten rounds is
allowed. Open files and threads may not be more at the end than after the warm-up.
"""

import argparse
import ctypes
import gc
import itertools
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import babn
from babn.files import replace_text
from babn.progress import Progress
from babn.text import quiet
from babn_paper.experiments.evaluation import evaluate
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import machine, versions

CONFIGS: tuple[babn.MethodConfig, ...] = (
    babn.BeliefConfig.pairs(max_length=16),
    babn.BamConfig(),
    babn.SoftmaxConfig(),
    babn.McDropoutConfig(),
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
LIBC = ctypes.CDLL(None)
KEPT = 240
"""Rounds whose numbers are written; the verdict uses all of them."""


@dataclass(frozen=True)
class Held:
    """Resources of the process after a round.

    Attributes:
        seconds: Time since the beginning.
        memory: Resident memory in bytes.
        gpu_memory: Allocated memory of the GPU in bytes.
        objects: Objects that the garbage collector knows, after it has run.
        files: Open file descriptors.
        threads: Threads of Python and of libraries.
    """

    seconds: float
    memory: int
    gpu_memory: int
    objects: int
    files: int
    threads: int


def main() -> None:
    """Runs the soak, prints the verdict and writes the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BABN_CACHE"] = f"{folder}/cache"
        with quiet():
            held = soak(60 * chosen.minutes, Path(folder))
    verdict = judge(held)
    for name, each in verdict.items():
        print(
            f"{name}: {each['growth']:+g} over {each['rounds']} rounds, allowed {each['allowed']:g}"
        )
    if chosen.out:
        about = {"command": " ".join(["python", *sys.argv]), "minutes": chosen.minutes}
        about |= {"machine": machine(), "versions": versions(), "rounds": len(held)}
        shown = [asdict(each) for each in held[:: max(1, len(held) // KEPT)]]
        text = json.dumps({**about, "verdict": verdict, "held": shown}, indent=1)
        replace_text(chosen.out, text + "\n")
    sys.exit(not all(each["passed"] for each in verdict.values()))


def soak(seconds: float, folder: Path) -> list[Held]:
    """Runs rounds until the time is over and returns the resources after each."""
    begin, shown, found = time.monotonic(), 0.0, []
    for number in itertools.count():
        one_round(number, folder)
        found.append(look(time.monotonic() - begin, number))
        passed = found[-1].seconds
        if passed - shown > 30:
            shown = passed
            print(f"{passed / 60:.1f} min, round {number}: {found[-1]}", flush=True)
        if passed >= seconds:
            return found


def one_round(number: int, folder: Path) -> None:
    """One round, with the attention methods in turn."""
    torch.manual_seed(number)
    config = CONFIGS[number % len(CONFIGS)]
    classifier(config, folder / "model")
    writer(config)
    experiment(config.name, number, folder / "run")


def classifier(config: babn.MethodConfig, folder: Path) -> None:
    """Converts, trains, evaluates, saves, loads and reverts a classifier."""
    made = hf.BertConfig(**SIZES, intermediate_size=64, max_position_embeddings=32)
    base = hf.BertForSequenceClassification(made).to(device())
    state = {name: x.clone() for name, x in base.state_dict().items()}
    model = babn.convert(base, config)
    train(model)
    batch = {"input_ids": tokens()}
    expected = babn.predict(model, batch, samples=3).sample_logits
    model.save_pretrained(folder)
    loaded = babn.load(folder).to(device())
    check(torch.equal(babn.predict(loaded, batch, samples=3).sample_logits, expected), "load")
    babn.save_adapter(model, folder / "belief")
    other = babn.load_adapter(babn.revert(loaded), folder / "belief")
    check(
        torch.equal(babn.predict(other, batch, samples=3).sample_logits, expected), "load_adapter"
    )
    plain = babn.revert(model)
    plain.load_state_dict(state)
    shutil.rmtree(folder)


def train(model: Any) -> None:
    """A few steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        ids = tokens()
        model(input_ids=ids, labels=ids[:, 0] % 2).loss.backward()
        optimizer.step()
    model.eval()


def writer(config: babn.MethodConfig) -> None:
    """Generates with a language model and reads its attention maps."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 32}
    made = hf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model = babn.convert(hf.GPT2LMHeadModel(made).to(device()).eval(), config)
    babn.generate(model, tokens(), samples=2, max_new_tokens=4, do_sample=False)
    babn.attention_maps(model, {"input_ids": tokens()})
    babn.revert(model)


class Crash(Progress):
    """Ends a run at its third step."""

    def __init__(self) -> None:
        self.left = 3

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Nothing to show."""

    def step(self, count: int, note: str = "") -> None:
        """Counts down."""
        self.left -= 1
        if not self.left:
            raise RuntimeError("crash")


def experiment(method: str, seed: int, folder: Path) -> None:
    """Crashes a run, resumes it from its checkpoint and evaluates it again."""
    made = Experiment(
        task="mrpc", model="small", data="builtin", method=method, seed=seed, steps=4, batch_size=4,
        max_length=16, samples=2, checkpoint_every=1,
    )  # fmt: skip
    try:
        run(made, folder, progress=Crash())
    except RuntimeError:
        results = run(made, folder, resume=True)
    again = evaluate(folder)
    check(again["measures"] == results["measures"], "evaluate")
    shutil.rmtree(folder)


def check(same: bool, what: str) -> None:
    """Raises if a loaded model differs from the saved one."""
    if not same:
        raise SystemExit(f"soak: {what} gave other numbers")


def tokens() -> torch.Tensor:
    """A batch of random tokens of a fixed size."""
    return torch.randint(3, 50, (4, 12), device=device())


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def look(seconds: float, notes: int) -> Held:
    """Current resources of the process, without the records of this script.

    First returns free memory to the system where the platform supports it, since fragmentation
    varies.
    """
    gc.collect()
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)
    own = Path("/proc/self")
    page = resource.getpagesize()
    return Held(
        seconds=round(seconds, 2),
        memory=int((own / "statm").read_text().split()[1]) * page,
        gpu_memory=torch.cuda.memory_allocated() if torch.cuda.is_available() else 0,
        objects=len(gc.get_objects()) - notes,
        files=len(list((own / "fd").iterdir())),
        threads=max(len(list((own / "task").iterdir())), threading.active_count()),
    )


def judge(held: Sequence[Held]) -> dict[str, dict[str, Any]]:
    """Growth of each quantity after the warm-up, its limit, and whether it is within it."""
    rest = held[len(held) // 4 :]
    verdict = {}
    for name in (field.name for field in fields(Held) if field.name != "seconds"):
        series = [getattr(each, name) for each in rest]
        counted = name in ("files", "threads")
        growth = later_peak(series) if counted else median_slope(series) * len(series)
        allowed = {"files": 0, "threads": 0, "objects": 0.1 * len(series)}.get(
            name, 0.02 * statistics.median(series)
        )
        numbers = {"rounds": len(series), "growth": growth, "allowed": allowed}
        verdict[name] = {**numbers, "passed": growth <= allowed}
    return verdict


def later_peak(series: Sequence[int]) -> float:
    """Difference between the maxima of the last and the first third."""
    third = max(1, len(series) // 3)
    return max(series[-third:]) - max(series[:third])


def median_slope(series: Sequence[int], points: int = 400) -> float:
    """The Theil-Sen slope: median over all pairs of evenly spaced points."""
    places = range(0, len(series), max(1, len(series) // points))
    return statistics.median(_slopes(series, places)) if len(series) > 1 else 0.0


def _slopes(series: Sequence[int], places: Sequence[int]) -> Iterator[float]:
    for one, other in itertools.combinations(places, 2):
        yield (series[other] - series[one]) / (other - one)


if __name__ == "__main__":
    main()
