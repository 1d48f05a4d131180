"""Draws the picture of the viewer in the README, with the demo's encoder and Chromium.

make test-browser    # installs playwright; needs Chromium and the pretrained MiniLM
python tools/viewer_picture.py
"""

import io
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import sync_playwright

import babn
from babn.data import intents
from babn.demo.classifier import intent_classifier

TARGET = Path(__file__).parents[1] / "docs/figures/viewer.png"
TEXT = "can I spare 300 for my brother"
COLOURS = 128
"""Size of the palette, which keeps the file small."""


def page() -> babn.View:
    """The page that the example in the README saves."""
    model, tokenizer = intent_classifier()
    dev = intents.in_scope("dev")
    babn.convert(model)
    babn.tune_noise(model, dev.texts, dev.labels, tokenizer=tokenizer)
    return babn.view(model, TEXT, tokenizer=tokenizer, name="MiniLM")


def picture(html: Path, width: int = 1100, height: int = 760) -> Image.Image:
    """The upper part of a page, as a light browser window shows it."""
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        window = browser.new_page(
            viewport={"width": width, "height": height},
            device_scale_factor=1.5,
            color_scheme="light",
        )
        window.goto(html.as_uri())
        window.wait_for_selector("body[data-painted]")
        shot = window.screenshot()
        browser.close()
    return Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS)


def main() -> None:
    """Writes the picture."""
    with TemporaryDirectory() as folder:
        picture(page().save(Path(folder) / "view.html")).save(TARGET, optimize=True)
    print(f"{TARGET}, {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
