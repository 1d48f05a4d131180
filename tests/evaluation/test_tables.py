"""Tables as Markdown, LaTeX, CSV and HTML."""

import csv
import io

from babn.evaluation.tables import Table

TABLE = Table(
    ["method", "ECE_10 (%)"],
    [["soft|max", "1.2\n± 0.1"], ["a, b & <i>", "0.9"]],
    "Some numbers.",
    frozenset({(1, 1)}),
)


def test_markdown_is_aligned_and_marks_the_best() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "| method     | ECE_10 (%) |"
    assert lines[1] == "| ---------- | ---------: |"
    assert lines[2] == "| soft\\|max  | 1.2 ± 0.1  |"
    assert lines[3] == "| a, b & <i> | **0.9**    |"


def test_a_column_can_be_left_out() -> None:
    table = Table(["a", "b", "c"], [["1", "2", "3"]], "all", frozenset({(0, 0), (0, 1), (0, 2)}))
    expected = Table(["a", "c"], [["1", "3"]], "all", frozenset({(0, 0), (0, 1)}))
    assert table.without("b") == expected


def test_latex_escapes_and_marks_the_best() -> None:
    text = TABLE.latex()
    assert r"ECE\_10 (\%)" in text and r"1.2 $\pm$ 0.1" in text
    assert r"a, b \& $<$i$>$ & \textbf{0.9} \\" in text
    assert text.startswith("% Some numbers.\n\\begin{tabular}{lr}")


def test_csv_can_be_read_again() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows == [list(TABLE.columns), ["soft|max", "1.2 ± 0.1"], ["a, b & <i>", "0.9"]]


def test_html_escapes_what_is_in_it() -> None:
    text = TABLE.html()
    assert "a, b &amp; &lt;i&gt;" in text and "<strong>0.9</strong>" in text
    assert "<td>1.2<br>± 0.1</td>" in text
    assert "<caption>Some numbers.</caption>" in text and "<i>" not in text
