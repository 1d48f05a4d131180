"""A browser for the tests that drive the page."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import progress

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FIRST = "#attention=1&layer=1&head=mean&show=mean"
"""The address of the first layer's mean weights."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; the test fails without it, since its marker requires it."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page from a file; asserts afterwards that there were no errors and no requests."""
    trouble: list[str] = []
    contexts = []

    def open_page(html: str, at: str = FIRST, **settings: Any) -> Any:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        progress(page, trouble)
        page.on("request", lambda request: note_request(request, file, trouble))
        page.goto(file.as_uri() + at)
        page.wait_for_selector("body[data-painted]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def note_request(request: Any, file: Path, trouble: list[str]) -> None:
    if request.url.partition("#")[0] != file.as_uri() and not request.url.startswith("data:"):
        trouble.append(f"request {request.url}")
