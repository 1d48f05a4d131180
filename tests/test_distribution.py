"""The wheel and the sdist: what they hold, how they render, and that the wheel works alone."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import babn

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://example.org/babn"


def run(*command: object, **environment: str) -> str:
    """What a command prints outside the repository."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT.anchor,
        env={**kept, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    run(*command, REPOSITORY=REPOSITORY, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    return folder


def wheel(folder: Path) -> Path:
    return next(folder.glob("*.whl"))


def test_both_files_have_the_version_and_render_on_an_index(built: Path) -> None:
    files = sorted(built.iterdir())
    names = {f"babn-{babn.__version__}-py3-none-any.whl", f"babn-{babn.__version__}.tar.gz"}
    assert {file.name for file in files} == names
    path = os.environ.get("PYTHONPATH", "")
    output = run(sys.executable, "-m", "twine", "check", "--strict", *files, PYTHONPATH=path)
    assert output.count("PASSED") == 2


def test_links_of_the_description_are_absolute(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert links and all(link.startswith(("https://", "#")) for link in links)
    assert f"{REPOSITORY}/blob/v{babn.__version__}/docs/index.md" in links
    assert f"Repository, {REPOSITORY}" in metadata.get_all("Project-URL")
    assert metadata["Author"] == "The babn contributors"


def test_the_sdist_has_the_packages_and_no_results(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/babn/py.typed", "src/babn_paper/py.typed", "LICENSE", "NOTICE"} <= names
    assert not [name for name in names if "results/" in name or name.startswith("tests/")]


def test_the_wheel_works_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel(built)]
    run(sys.executable, "-m", "pip", "--python", python, *install)
    assert run(python, "-c", "import babn; print(babn.__version__)").strip() == babn.__version__
    # The packages it depends on; an editable install of babn beside them is not seen from here.
    others = sysconfig.get_path("purelib")
    code = "import babn, babn.viewer.document as d; print(babn.__file__); d.page({'columns': []})"
    assert str(tmp_path) in run(python, "-c", code, PYTHONPATH=others)
    shown = run(tmp_path / "bin" / "babn", "--help", PYTHONPATH=others)
    assert "demo" in shown and "reproduce" in shown


def test_the_version_is_the_same_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    first = re.search(
        r"^## \[(.+?)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert first is not None
    assert babn.__version__ == cited == first[1]
