"""HTML and SVG elements; text and attributes are escaped, so that no text can become markup."""

from html import escape


class Markup(str):
    """Text that is markup already."""


def element(tag: str, *children: str, **attributes: str | float) -> Markup:
    """An element with its children.

    Args:
        tag: Name of the element.
        *children: Markup, which is kept, or plain text, which is escaped.
        **attributes: An underscore in a name stands for a hyphen; a trailing one is dropped.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for name, value in attributes.items()
    )
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Elements and texts one after the other."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.5g}"
