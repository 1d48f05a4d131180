"""`babn report`."""

from pathlib import Path
from typing import Annotated


def report(
    runs: list[Path],
    *,
    out: Path = Path("babn-report"),
    title: Annotated[str, "TEXT"] = "Uncertainty report",
    baseline: str | None = None,
    part: str | None = None,
    force: bool = False,
) -> None:
    """Collect saved predictions into one page, with tables as Markdown, LaTeX and CSV.

    Compares all methods found, with confidence intervals from resampled examples and paired tests
    over seeds, and draws reliability diagrams, risk-coverage curves and entropy histograms.

    Args:
        runs: Folders with folders that Evaluation.save wrote, anywhere inside, such as those of
            `babn train`: runs/table1/mrpc-*.
        out: Folder to write the page, the tables and the figures to.
        title: Heading of the page.
        baseline: Method that the others are compared with; by default the first.
        part: Part of the data to compare predictions for, such as dev or test; needed if the runs
            have several.
        force: Write into a folder that holds other files.
    """
    import babn

    page = babn.report(runs, out, title=title, baseline=baseline, part=part, force=force)
    print(f"Wrote {page}, with its tables and figures beside it. Open it in a browser.")
