"""Tables of results fit a terminal, and no number is torn apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from babn.evaluation.tables import Table
from babn_paper.cli._terminal import fitted
from babn_paper.experiments.grids import table_grid
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_pages import main_table

WIDE = "100.0 ± 0.1 / 83.1 ± 2.9"


def shown(table: Table, width: int) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(fitted(table, width))
    return capture.get()


def table(label: str, cell: str, numbers: int) -> Table:
    columns = ["task", "attention", "paper", *(f"score {i}" for i in range(numbers)), "seeds"]
    rows = [
        ["MRPC", label, "–", *[cell] * numbers, "3"],
        ["RTE", "BAM", "–", *["–"] * numbers, "2"],
    ]
    return Table(columns, rows)


@given(
    st.integers(48, 200),
    st.integers(0, 6),
    st.integers(0, 9),
    st.sampled_from(["80.8 ± 1.6", WIDE]),
)
def test_lines_fit_and_numbers_stay_whole(width: int, words: int, numbers: int, cell: str) -> None:
    label = ", ".join(["softmax", *["label_smoothing=0.1"] * words])
    lines = shown(table(label, cell, numbers), width).splitlines()
    assert max(map(len, lines)) <= width
    tokens = {token for line in lines for token in line.split() if "±" in token}
    assert tokens <= {"80.8±1.6", "100.0±0.1", "83.1±2.9"}


def test_long_names_leave_room_for_numbers() -> None:
    text = shown(table("BABN, settings.rho=12.0, settings.kl_weight=0.0003", "80.8 ± 1.6", 4), 80)
    assert text.count("80.8±1.6") == 4
    assert "settings.rho=12.0," in text and "settings.kl_weight=0.0003" in text


def test_the_last_numbers_go_first_but_not_the_number_of_seeds() -> None:
    text = shown(table("BABN", "80.8 ± 1.6", 9), 60)
    assert 1 <= text.count("80.8±1.6") < 9
    assert "seeds" in text


@pytest.mark.parametrize(("width", "lines"), [(120, 4), (50, 5)])
def test_pairs_of_numbers_take_two_lines_where_they_must(width: int, lines: int) -> None:
    found = shown(table("BABN", WIDE, 2), width)
    assert len(found.splitlines()) == lines
    assert ("100.0±0.1 / 83.1±2.9" in found) == (width == 120)


def test_columns_without_numbers_are_left_out() -> None:
    assert "paper" not in shown(table("BABN", "80.8 ± 1.6", 2), 100)


def test_a_table_without_rows_is_its_head() -> None:
    assert shown(Table(["task", "attention", "score"], []), 80).split()[:2] == ["task", "attention"]


@pytest.mark.parametrize("name", ["table1", "table2", "table4", "table5", "ablation", "efficiency"])
def test_tables_that_were_not_run_show_the_papers_numbers_in_80_columns(name: str) -> None:
    jobs = table_grid(name, [0]).jobs({})
    records = [Record(job.folder.parent.name, job.experiment.to_dict(), {}, {}) for job in jobs]
    text = shown(main_table(records), 80).replace(" ", "").replace("±", " ± ")
    first = [next(iter(job.experiment.paper.values()), "") for job in jobs]
    # Cells with label smoothing have the calibration alone, which is further to the right.
    wanted = [n for n, job in zip(first, jobs, strict=True) if not job.experiment.label_smoothing]
    assert [number for number in wanted if number not in text] == []
