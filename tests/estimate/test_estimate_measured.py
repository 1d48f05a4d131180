"""Formulas against measurements on a GPU in committed results of `babn bench`."""

import json
from pathlib import Path

import pytest

from babn.benchmark.results import rows_of
from babn.benchmark.steps import model_config
from babn.benchmark.suite import Row
from babn.estimate.estimates import Estimate, estimates
from babn.estimate.sizes import Workload, shape_of

pytestmark = pytest.mark.thorough

FILE = Path(__file__).parents[2] / "benchmarks/results/bench.json"
METHODS = {"BAM": "BAM", "BABN heads": "BABN per pair, heads", "BABN pairs": "BABN per pair, keys"}
STEPS = [row for row in rows_of(json.loads(FILE.read_text())) if row.task == "train" and row.cost]
CASES = [(row, base) for row in STEPS for base in STEPS
         if row.name in METHODS and base.name == "softmax" and base.size == row.size
         and base.form == row.form == "graphs"]  # fmt: skip


def estimated(row: Row) -> tuple[Estimate, Estimate]:
    work = Workload(batch=row.size.batch, length=row.size.length, train=True)
    found = {
        each.name: each for each in estimates(shape_of(model_config(row.size), "ALBERT"), work)
    }
    return found[METHODS[row.name]], found["softmax"]


def kept_then(row: Row) -> int:
    """Bytes of results of maps over heads, which the measured kernels kept if they were small."""
    size = row.size
    each = 2 * 2 * size.batch * size.heads * size.length**2
    return size.layers * each if row.name == "BABN heads" and each <= 2**25 else 0


@pytest.mark.parametrize(
    ("row", "base"), CASES, ids=[f"{row.name}, {row.size.length}" for row, _ in CASES]
)
def test_what_a_method_adds_is_about_what_was_measured(row: Row, base: Row) -> None:
    assert row.cost is not None and base.cost is not None
    own, softmax = estimated(row)
    added = own.memory.total - softmax.memory.total
    measured = row.cost.memory - base.cost.memory - kept_then(row)
    assert added == pytest.approx(measured, rel=0.2, abs=2**25)
    # At 2048 tokens softmax's own attention is farther from the GPU's peak than all else.
    ratio, tolerance = own.seconds / softmax.seconds, 0.15 if row.size.length <= 512 else 0.4
    assert ratio == pytest.approx(row.cost.busy / base.cost.busy, rel=tolerance)
    assert 0.45 < own.seconds / row.cost.busy < 1


def test_several_sizes_were_measured() -> None:
    assert {row.size.length for row, _ in CASES} >= {128, 512, 2048}
