"""Self-contained HTML pages, made of elements that escape their text and attributes."""

from html import escape
from importlib.resources import files
from pathlib import Path

from babn.errors import BabnError


class TargetError(BabnError, FileExistsError):
    """The output would replace files that babn did not write."""


class Markup(str):
    """Text that is markup already and is not escaped."""


def element(tag: str, *children: str, **attributes: str) -> Markup:
    """An HTML element with its children.

    Args:
        tag: Name of the element.
        *children: Markup, which is kept, or plain text, which is escaped.
        **attributes: Its attributes; `class_` stands for `class`.
    """
    written = "".join(
        f' {name.rstrip("_")}="{escape(value)}"' for name, value in attributes.items()
    )
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Concatenates elements and plain texts."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def marker(author: str) -> Markup:
    """The element by which `author` recognises its own pages."""
    return Markup(f'<meta name="generator" content="{author}">')


def document(title: str, body: Markup, author: str) -> str:
    """A whole page in the style that babn's pages share.

    Args:
        title: Title of the window.
        body: Content of the page.
        author: The command or function that writes it.
    """
    style = files("babn.evaluation").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{marker(author)}\n{element('title', title)}\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n{element('main', body)}\n</body>\n</html>\n"
    )


def written_by(path: Path, author: str) -> bool:
    """Whether a file is a page that `author` wrote."""
    return path.is_file() and marker(author) in path.read_text(encoding="utf-8", errors="replace")


def check_target(folder: Path, page: str, author: str, force: bool) -> None:
    """Validates that a folder is new, empty, or written by `author`."""
    if folder.exists() and not folder.is_dir():
        raise TargetError(f"{folder} is a file. Give the name of a folder.")
    strange = folder.is_dir() and any(folder.iterdir()) and not written_by(folder / page, author)
    if strange and not force:
        raise TargetError(
            f"{folder} holds files that {author} did not write. Give another folder, or --force "
            "(force=True) to write into this one."
        )
