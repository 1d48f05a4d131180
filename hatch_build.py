"""Build hook: the description and the addresses of the project on a package index.

The README links to files of the repository, which an index does not have. With the environment
variable `REPOSITORY` they become links into that repository, at the tag of the version; without it,
plain text.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2106.05251"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")
"""A Markdown link or image whose target is a file of the repository."""


class IndexMetadata(MetadataHookInterface):
    """Sets the README and the URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the dynamic fields."""
        repository = os.environ.get("REPOSITORY", "").rstrip("/")
        version = re.search(r'"(.+)"', self._read("src/babn/__init__.py").split("__version__")[1])
        assert version is not None
        text = absolute(self._read("README.md"), repository, f"v{version[1]}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {"Paper": PAPER, **addresses(repository)}

    def _read(self, name: str) -> str:
        return (Path(self.root) / name).read_text(encoding="utf-8")


def addresses(repository: str) -> dict[str, str]:
    """The project's URLs in a repository."""
    if not repository:
        return {}
    files = f"{repository}/blob/main"
    return {
        "Repository": repository,
        "Documentation": f"{files}/docs/index.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def absolute(text: str, repository: str, tag: str) -> str:
    """Markdown whose links to files are absolute, or plain text without a repository."""

    def link(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if not repository:
            return "" if image else label
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/{tag}/{target})"

    return LINK.sub(link, text)
