"""The documentation site, built as `make site` does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.thorough


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Strict: broken links and anchors, pages outside the menu and unknown names are errors."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = re.findall(r": ([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pages) > 20
    for page in pages:
        folder = tmp_path if page == "index" else tmp_path / page
        assert "<article" in (folder / "index.html").read_text(encoding="utf-8"), page
    # The reference is made of docstrings, which a plain page does not show.
    assert "Attributes:" in (tmp_path / "api" / "babn" / "index.html").read_text(encoding="utf-8")
