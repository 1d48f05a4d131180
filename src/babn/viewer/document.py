"""Writes the viewer's page: one self-contained HTML file that runs no script but its own."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import nn

from babn import __version__
from babn.evaluation.html_pages import TargetError, marker, written_by
from babn.viewer.column import column
from babn.viewer.packing import BYTES
from babn.viewer.texts import MOST_TOKENS, Text, TextError, Tokenizer

AUTHOR = "babn view"
"""Author in the page, by which `babn view` recognises its own files."""

UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
"""JSON escapes of characters that could end a script element."""


@dataclass(frozen=True, repr=False)
class View:
    """A page that notebooks show below the cell that returns it.

    Attributes:
        html: The page, one self-contained HTML document.
        height: Height in a notebook, in pixels.
    """

    html: str
    height: int = 900

    def save(self, file: str | Path) -> Path:
        """Writes the page to a file, which any browser opens."""
        Path(file).write_text(self.html, encoding="utf-8")
        return Path(file)

    def _repr_html_(self) -> str:
        """The page in a sandboxed frame, which isolates it from the notebook."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" width="100%" '
            f'height="{self.height}" style="border: 0" title="Attention and its uncertainty">'
            "</iframe>"
        )

    def __repr__(self) -> str:
        return f"<View, {len(self.html) / 1e3:,.0f} kB: shown by a notebook, or .save('view.html')>"


def view(
    model: nn.Module,
    texts: Text | Sequence[Text],
    *,
    tokenizer: Tokenizer,
    name: str | None = None,
    samples: int = 10,
    seed: int = 0,
    height: int = 900,
) -> View:
    """Shows the attention of a model and its uncertainty: in a notebook, or as a saved page.

    Args:
        model: A converted transformers model.
        texts: A text, or a list of two to compare; a tuple is a pair of texts in one input, such as
            a premise and a hypothesis.
        tokenizer: Its tokenizer.
        name: Name of the model; by default its class.
        samples: Number of attention samples of the class probabilities.
        seed: Seed of the samples.
        height: Height in a notebook, in pixels.
    """
    shown = [texts] if isinstance(texts, str | tuple) else list(texts)
    found = columns(model, tokenizer, shown, samples=samples, seed=seed)
    html = page({"columns": found, "model": name or type(model).__name__, "seed": seed})
    return View(html, height)


def columns(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    *,
    samples: int = 10,
    seed: int = 0,
    most: int = MOST_TOKENS,
) -> list[dict[str, Any]]:
    """The columns of one or two texts."""
    check_texts(len(texts))
    settings = {"samples": samples, "seed": seed, "budget": BYTES // len(texts), "most": most}
    return [column(model, tokenizer, text, **settings) for text in texts]


def check_texts(number: int) -> None:
    """Validates the number of texts."""
    if number not in (1, 2):
        raise TextError(f"{number} texts cannot be shown. Give one or two.")


def check_target(file: Path) -> None:
    """Validates that a file is new or was written by `babn view`.

    Called before the model runs, so that the error comes early.
    """
    if file.is_dir():
        raise TargetError(f"--out {file} is a folder. Give the name of a file.")
    if file.exists() and not written_by(file, AUTHOR):
        raise TargetError(f"--out {file} was not written by babn view. Give another name.")
    if not file.parent.is_dir():
        raise TargetError(f"--out {file}: the folder {file.parent} does not exist. Make it first.")


def page(data: Mapping[str, Any], connect: str = "'none'") -> str:
    """Returns the page with its data embedded.

    Args:
        data: The data that the script shows.
        connect: The `connect-src` of the Content-Security-Policy.
    """
    values = {
        "POLICY": policy(connect),
        "MARKER": marker(AUTHOR),
        "STYLE": _packaged("page.css"),
        "DATA": script_json({"version": __version__, **data}),
        "SCRIPT": _packaged("page.js"),
    }
    # In one pass, so that the values themselves are not searched.
    return re.sub(r"{{([A-Z]+)}}", lambda match: values[match[1]], _packaged("page.html"))


def policy(connect: str = "'none'") -> str:
    """The Content-Security-Policy: only this style and this script."""
    style, script = (_hash(_packaged(f"page.{name}")) for name in ("css", "js"))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def script_json(data: Any) -> str:
    """JSON that is safe inside a script element: plain ASCII without angle brackets."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.translate(UNSAFE)


def _packaged(name: str) -> str:
    return files("babn.viewer").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
