"""Divides the work of a comparison among processes that share a folder.

Every process goes through the same list of units in the same order, and does those that no other
process has claimed; `side_by_side.sh` starts several. Trained models are shared in a folder of
weights.
"""

import gc
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from babn_paper.method_comparison.comparison_runs import compare_methods
from babn_paper.method_comparison.interface import Method
from babn_paper.method_comparison.method_catalogue import TS
from babn_paper.method_comparison.trained_models import Batches, Models, Problem, Variant, plain

Unit = tuple[str, Callable[[], object]]
"""A name, by which it is claimed, and what is to be done."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a method with a seed.

    Attributes:
        name: The method.
        seed: The seed.
        trainings: Variants and seeds of the models that it uses.
        do: Fits, evaluates and writes results.
    """

    name: str
    seed: int
    trainings: Sequence[tuple[Variant, int]]
    do: Callable[[], object]


LAG = 16
"""Trainings that are begun after those of a method before it is evaluated, so that no process waits
for another as long as there are no more of them than this."""


def claim(path: Path) -> bool:
    """Creates a file; false if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


class SharedModels(Models):
    """Models in a folder of weights; each is trained by one process, for which others wait."""

    def __init__(self, problem: Problem, folder: Path | None = None) -> None:
        super().__init__(problem, folder)
        self.timed = folder is None  # processes that share a folder slow each other down

    def get(self, variant: Variant, seed: int) -> nn.Module:
        """A new copy of the trained model, in evaluation mode."""
        path = self._path(variant, seed)
        if path is None:
            return super().get(variant, seed)
        claimed = path.with_suffix(".claim")
        while not path.is_file() and not claim(claimed):
            time.sleep(0.2)
        try:
            return super().get(variant, seed)
        finally:
            if not path.is_file():  # so that others try it
                claimed.unlink(missing_ok=True)


def work(units: Iterable[Unit], folder: Path) -> None:
    """Does every unit that no other process has claimed; a failure is reported, not raised.

    Args:
        units: The units.
        folder: Where they are claimed, and `errors.txt` gets the tracebacks of failures.
    """
    for name, do in units:
        if not claim(folder / "claims" / plain(name)):
            continue
        began = time.perf_counter()
        try:
            do()
        except Exception as error:
            with (folder / "errors.txt").open("a") as file:
                file.write(f"{name}\n{traceback.format_exc()}\n")
            print(f"FAILED {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        else:
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
        release_memory()


def release_memory() -> None:
    """Gives back the memory of a GPU, which torch keeps for later and other processes need.

    A trained model is in a reference cycle with its trainer, so it is collected first.
    """
    gc.collect()
    torch.cuda.empty_cache()


def evaluations(
    models: Models,
    methods: Sequence[Method],
    seeds: Sequence[int],
    tests: Mapping[str, Batches],
    folder: Path,
) -> Iterator[Evaluation]:
    """The evaluations whose results are not there yet.

    A method and the same with temperature scaling are one evaluation.

    Args:
        models: The models that methods are fitted to.
        methods: The methods, the most important ones first.
        seeds: Seeds of the trainings.
        tests: Batches by the name of the test set.
        folder: Gets the results.
    """
    for name, own in _pairs(methods).items():
        for seed in seeds:
            if not all((folder / f"{plain(each.name)}-{seed}.json").is_file() for each in own):
                do = partial(compare_methods, models, own, [seed], tests, folder)
                yield Evaluation(name, seed, own[0].trainings(seed), do)


def schedule(models: Models, due: Iterable[Evaluation]) -> Iterator[Unit]:
    """Units of trainings and of evaluations, the first evaluations first."""
    waiting = deque[tuple[int, Unit]]()
    trainings: dict[tuple[str, int], Variant] = {}
    for each in due:
        trainings |= {(variant.name, seed): variant for variant, seed in each.trainings}
        waiting.append((len(trainings) + LAG, (f"{each.name} {each.seed}", each.do)))
    for begun, ((name, seed), variant) in enumerate(trainings.items()):
        while waiting[0][0] <= begun:
            yield waiting.popleft()[1]
        yield f"train {name} {seed}", partial(models.get, variant, seed)
    yield from (unit for _, unit in waiting)


def _pairs(methods: Sequence[Method]) -> dict[str, list[Method]]:
    """Methods without and with temperature scaling, by name."""
    found: dict[str, list[Method]] = {}
    for method in methods:
        found.setdefault(method.name.removesuffix(TS), []).append(method)
    return found
