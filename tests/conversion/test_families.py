"""Architectures of transformers: each converts faithfully, or is refused with a babn error."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

HOME = Path(__file__).parents[2]
SCRIPT, PAGE = HOME / "tools/families.py", HOME / "docs/families.md"
SAMPLE = {
    "clip": "converts",
    "cohere2": "converts",  # sliding windows
    "data2vec-audio": "converts",
    "falcon_h1": "converts",  # attention beside state spaces
    "gemma3n_text": "converts",
    "glm4v_vision": "converts",  # patches of several images in a row
    "llama4_text": "converts",  # chunks
    "modernbert": "converts",
    "aimv2": "converts",  # its own SDPA and eager attention differ
    "git": "refused",  # its outputs differ from one attention to another
    "minimax_m3_vl": "refused",  # sparse attention
}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.filterwarnings("ignore")  # other people's models warn of many things
@pytest.mark.parametrize("family", SAMPLE)
def test_an_architecture(family: str, script: dict[str, Any]) -> None:
    verdict = script["judge"](family)

    assert verdict.verdict == SAMPLE[family], verdict


def verdicts(page: Path) -> dict[str, str]:
    """The verdict of each architecture on a page that the script has written."""
    found, title = {}, ""
    for line in page.read_text().splitlines():
        title = line[3:].lower() if line.startswith("## ") else title
        if title and (row := re.match(r"\| ([\w.-]+) \|", line)) and row[1] != "architecture":
            found[row[1]] = title
    return found


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_architecture_has_the_verdict_that_is_documented(tmp_path: Path) -> None:
    page = tmp_path / "families.md"

    subprocess.run([sys.executable, SCRIPT, "--out", page], check=True)

    assert verdicts(page) == verdicts(PAGE)


def test_no_architecture_changes() -> None:
    documented = list(verdicts(PAGE).values())

    assert documented.count("converts") > 300
    assert set(documented) == {"converts", "refused", "not built"}
