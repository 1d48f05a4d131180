"""The report."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from small_evaluations import evaluation

import babn
from babn.evaluation import html_report
from babn.evaluation.comparison import compare
from babn.evaluation.html_pages import TargetError
from babn.evaluation.html_report import report

pytestmark = pytest.mark.thorough


def runs() -> list[babn.Evaluation]:
    return [
        evaluation(method, seed, samples, outside=True)
        for method, samples in (("softmax", 1), ("BABN <b>", 4))
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> Iterator[None]:
    """Compares methods with 50 resamples instead of 500; no verdict here needs more."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(html_report, "compare", partial(compare, resamples=50))
        yield


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(runs(), tmp_path_factory.mktemp("report") / "out", title="Toy & more")


def test_a_report_holds_tables_figures_and_details(page: Path) -> None:
    text = page.read_text()
    assert "<title>Toy &amp; more</title>" in text and "BABN &lt;b&gt;" in text
    assert "<b>" not in text and text.count("<svg") == 3 and "http-equiv" not in text
    assert "task: toy" in text and "no clear difference" in text
    names = {path.name for path in page.parent.iterdir()}
    tables = {
        f"{n}.{s}"
        for n in ("numbers", "differences", "decisions", "outside")
        for s in ("md", "tex", "csv")
    }
    figures = {"reliability.pdf", "risk-coverage.pdf", "entropy.pdf"}
    assert names == {"report.html"} | tables | figures


def test_saved_runs_are_found_in_folders(tmp_path: Path) -> None:
    for each in runs():
        each.save(tmp_path / "runs" / each.method[:4] / str(each.seed))
    page = report(tmp_path / "runs", tmp_path / "out")
    assert "Seeds: 2 of each." in page.read_text()


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TargetError, match="did not write"):
        report(runs(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    few = runs()[:1]
    report(few, tmp_path, force=True)
    report(few, tmp_path)  # its own page may be written again
    assert (tmp_path / "thesis.tex").exists()


def test_a_report_has_no_external_references(page: Path) -> None:
    text = page.read_text()
    assert "src=" not in text and "@import" not in text and "<link" not in text
