"""One report of many tables."""

from pathlib import Path

from babn.evaluation.html_pages import written_by
from babn.evaluation.tables import Table
from babn_paper.experiments.result_pages import AUTHOR, Section, write_report

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000a49444154789c6300"
    "0100000500010d0a2db40000000049454e44ae426082"
)


def sections(folder: Path) -> list[Section]:
    picture = folder / "figure" / "look.png"
    picture.parent.mkdir()
    picture.write_bytes(PIXEL)
    table = Table(["task", "score"], [["<b>", "1.0"]], "in percent")
    return [
        Section("First", "babn reproduce first", "3 of 3 runs", table, ["Seeds: 0."]),
        Section("Second", "babn reproduce second", "1 of 2 runs").failed("no disk"),
        Section("Third", "babn reproduce third", "1 picture", pictures=[picture]),
    ]


def test_both_pages_have_every_section(tmp_path: Path) -> None:
    page = write_report(sections(tmp_path), tmp_path / "all", "babn reproduce all", quick=True)
    html, text = page.read_text(), (tmp_path / "all" / "RESULTS.md").read_text()
    for part in ("First", "Second", "1 of 2 runs; failed: no disk", "babn reproduce third"):
        assert part in html and part in text
    assert "smoke test" in html and "smoke test" in text
    assert "&lt;b&gt;" in html and "in percent" in text and "Seeds: 0." in text
    assert "data:image/png;base64," in html and "![](../figure/look.png)" in text
    assert written_by(page, AUTHOR)


def test_a_real_run_is_not_called_a_smoke_test(tmp_path: Path) -> None:
    page = write_report(sections(tmp_path), tmp_path / "all", "babn reproduce all", quick=False)
    assert "smoke test" not in page.read_text()
