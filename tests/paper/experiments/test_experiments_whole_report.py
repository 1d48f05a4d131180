"""One report of many tables."""

from pathlib import Path

from babn.evaluation.tables import Table
from babn_paper.experiments.result_pages import Section, write_report


def sections(folder: Path) -> list[Section]:
    picture = folder / "figure" / "look.png"
    table = Table(["task", "score"], [["<b>", "1.0"]], "in percent")
    return [
        Section("First", "babn reproduce first", "3 of 3 runs", table, ["Seeds: 0."]),
        Section("Second", "babn reproduce second", "1 of 2 runs").failed("no disk"),
        Section("Third", "babn reproduce third", "1 picture", pictures=[picture]),
    ]


def test_the_report_has_every_section(tmp_path: Path) -> None:
    page = write_report(sections(tmp_path), tmp_path / "all", "babn reproduce all", quick=True)
    text = page.read_text()
    for part in ("First", "Second", "1 of 2 runs; failed: no disk", "babn reproduce third"):
        assert part in text
    assert "smoke test" in text and "in percent" in text and "Seeds: 0." in text
    assert "![](../figure/look.png)" in text


def test_a_real_run_is_not_called_a_smoke_test(tmp_path: Path) -> None:
    page = write_report(sections(tmp_path), tmp_path / "all", "babn reproduce all", quick=False)
    assert "smoke test" not in page.read_text()
