"""Pages of one file that need nothing but themselves."""

from importlib.resources import files
from pathlib import Path

from babn.errors import BabnError
from babn.evaluation.markup import Markup, element


class TargetError(BabnError, FileExistsError):
    """What is to be written would replace something else."""


def marker(author: str) -> Markup:
    """Tells a page that may be written over from one that someone else made."""
    return Markup(f'<meta name="generator" content="{author}">')


def document(title: str, body: Markup, author: str) -> str:
    """A whole page in the style that babn's pages share.

    Args:
        title: Of the window.
        body: What the page shows.
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
    """Refuses a folder that holds what `author` did not write."""
    if folder.exists() and not folder.is_dir():
        raise TargetError(f"{folder} is a file. Give the name of a folder.")
    strange = folder.is_dir() and any(folder.iterdir()) and not written_by(folder / page, author)
    if strange and not force:
        raise TargetError(
            f"{folder} holds files that {author} did not write. Give another folder, or --force "
            "(force=True) to write into this one."
        )
