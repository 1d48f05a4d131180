"""`babn view` and `babn serve` on a saved model."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import TEXT, classifier, data_of, save, tokenizer
from typer.testing import CliRunner

import babn
from babn.cli._app import app
from babn.evaluation.html_pages import marker
from babn.viewer.document import AUTHOR

pytestmark = pytest.mark.thorough


def run(*arguments: Any) -> tuple[int, str]:
    """Exit code and output of a command line."""
    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})
    result = runner.invoke(app(), [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "tiny", classifier())


def test_view_writes_a_page_and_writes_it_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    for text in (TEXT, "we lent money"):
        code, output = run("view", folder, "--text", text, "--samples", 3, "--out", out)
        assert code == 0, output
        assert "Open it in a browser" in output
        column = data_of(out.read_text())["columns"][0]
        assert column["text"] == [text]
        assert len(column["prediction"]["samples"]) == 3


def test_view_compares_texts_and_pairs(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    two = ("--text", "a", "--text", "b")
    assert run("view", folder, *two, "--pair", "c", "--pair", "the", "--out", out)[0] == 0
    assert [c["text"] for c in data_of(out.read_text())["columns"]] == [["a", "c"], ["b", "the"]]
    code, output = run("view", folder, *two, "--text", "c", "--out", out)
    assert (code, "3 texts cannot be shown" in output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give one with --text"),
        (("--text", "a", "--pair", "b", "--pair", "c"), "--pair is given 2 times"),
        (("--text", " "), "The text is empty"),
        (("--text", "a", "--samples", "0"), "samples=0 is invalid"),
        (("--text", "river " * 100), "at most 96 are shown"),
        (("--text", "a", "--out", "/nowhere/page.html"), "does not exist"),
    ],
)
def test_view_refuses_in_one_line(
    folder: Path, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    out = () if "--out" in arguments else ("--out", tmp_path / "page.html")
    code, output = run("view", folder, *arguments, *out)
    assert code == 2
    assert output.startswith("error: ") and message in output
    assert not list(tmp_path.iterdir())


def test_view_keeps_files_that_it_did_not_write(folder: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.html"
    thesis.write_text("years of work")
    code, output = run("view", folder, "--text", "a", "--out", thesis)
    assert (code, thesis.read_text()) == (2, "years of work")
    assert "was not written by babn view" in output
    assert marker(AUTHOR) not in thesis.read_text()
    assert "is a folder" in run("view", folder, "--text", "a", "--out", tmp_path)[1]


@pytest.mark.parametrize("command", ["view", "serve"])
def test_unusable_folders_are_refused_with_the_remedy(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    further = ("--text", "a") if command == "view" else ("--port", 0)
    plain = save(tmp_path / "plain", babn.revert(classifier()))
    mute = save(tmp_path / "mute", classifier(), with_tokenizer=False)
    (tmp_path / "empty").mkdir()
    for folder, remedy in [
        (plain, "babn.convert"),
        (mute, "tokenizer.save_pretrained"),
        (tmp_path / "empty", "config.json does not exist"),
        (tmp_path / "nowhere", "does not exist. Give a folder"),
    ]:
        code, output = run(command, folder, *further)
        assert code == 2
        assert output.startswith("error: ") and remedy in output


def test_serve_on_a_busy_port_names_the_remedy(folder: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        code, output = run("serve", folder, "--port", busy.getsockname()[1])
    assert code == 2
    assert output.startswith("error: Cannot listen on 127.0.0.1") and "--port" in output


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_serve_warns_if_other_machines_have_access(
    folder: Path, host: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("babn.viewer.server.serve", lambda app, listening: listening.close())
    code, output = run("serve", folder, "--host", host, "--port", 0)
    assert code == 0
    assert ("There is no password" in output) is warned
    assert f"Open http://{host}:" in output and output.endswith("stopped")


@pytest.mark.parametrize("option", ["--max-tokens", "--samples"])
@pytest.mark.parametrize("value", [0, -5])
def test_serve_refuses_counts_below_one(folder: Path, option: str, value: int) -> None:
    code, output = run("serve", folder, "--port", 0, option, value)
    assert code == 2
    name = option.strip("-").replace("-", "_")
    assert output.startswith(f"error: {name}={value} is invalid")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_serve_names_the_extra_that_is_missing(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == package or name == "babn.viewer.server":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("babn.viewer.server", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    code, output = run("serve", folder)
    assert code == 2
    assert f"babn serve needs {package}" in output and "pip install 'babn[serve]'" in output


def test_the_tokenizer_survives_saving(folder: Path) -> None:
    from babn.viewer.texts import open_model

    _, loaded = open_model(folder)
    assert loaded(TEXT)["input_ids"] == tokenizer()(TEXT)["input_ids"]
