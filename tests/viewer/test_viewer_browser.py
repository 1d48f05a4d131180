"""The page in a real browser."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from test_viewer_page import HOSTILE
from tiny import (
    TEXT,
    batch_of,
    classifier,
    html_of,
    language_model,
    progress,
    random_weights,
    save,
    tokenizer,
    translator,
)

import babn
from babn.prediction.attention_maps import AttentionMap
from babn.viewer.document import page as make_page
from babn.viewer.packing import largest, pack, share, with_average

pytestmark = pytest.mark.browser

RESPONSE_MS = 1000
"""A change of layer, head or word on 512 tokens must be on the screen by then."""

BYTE = 0.4
"""Percentage points by which rounding to one byte may change a weight."""

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def model() -> Any:
    return classifier()


def painted(page: Any, chosen: str) -> None:
    """Waits until the page shows chain, layer, head, mode and sample."""
    page.wait_for_selector(f'body[data-painted="{chosen}"]')


def value(text: str) -> float:
    """A number without its percent sign."""
    return float(text.split()[0])


def numbers(page: Any, column: int = 0, of: str = "queries") -> list[float]:
    """The numbers under the words."""
    found = page.locator(f"#columns > section:nth-child({column + 1}) .{of} .number")
    return [value(text) for text in found.all_inner_texts()]


def near(shown: list[float], expected: torch.Tensor, tolerance: float) -> bool:
    assert len(shown) == len(expected)
    return all(abs(a - b) <= tolerance for a, b in zip(shown, expected.tolist(), strict=True))


def test_hovered_words_show_the_numbers_of_attention(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT))
    expected = babn.attention_maps(model, batch_of(model))[0]
    for query in (2, 4):
        page.locator(".queries .word").nth(query).hover()
        mean = 100 * expected.mean[0].mean(0)[query]
        assert near(numbers(page), mean, BYTE + 0.5)
        top = int(mean.argmax())
        cells = page.locator("tbody tr").first.locator("th, td").all_inner_texts()
        assert cells[0] == page.locator(".queries .token").nth(top).inner_text()
        assert abs(value(cells[1]) - mean[top]) <= BYTE + 0.05
        assert abs(float(cells[2]) - expected.relative_std[0].mean(0)[query, top]) <= 0.01
    assert "“bank” attends most to" not in page.locator(".sentence").inner_text()
    page.mouse.move(0, 0)
    assert page.locator(".queries .word.here").get_attribute("data-index") == "0"


def test_samples_without_noise_are_explained(opened: Open) -> None:
    model = classifier()
    babn.set_noise_level(model, 0)
    shown = opened(html_of(model, TEXT)).locator(".prediction").inner_text()
    assert "little or no attention noise" in shown and "Each dot" not in shown
    babn.set_noise_level(model, 1)
    assert "Each dot" in opened(html_of(model, TEXT)).locator(".prediction").inner_text()


def test_everything_is_reached_by_the_keyboard(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT))
    expected = babn.attention_maps(model, batch_of(model))[2]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "layer"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "head"
    page.keyboard.press("ArrowDown")
    painted(page, "0,2,1,mean,0")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    painted(page, "0,2,1,std,0")
    page.keyboard.press("Tab")
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft"):
        page.keyboard.press(key)
    focused = page.evaluate("Number(document.activeElement.dataset.index)")
    assert focused == 4
    assert near(numbers(page), expected.relative_std[0, 0, 4], 0.01)
    assert page.locator("[role=option][tabindex='0']").count() == 1
    assert page.locator("[role=option][aria-selected=true]").get_attribute("data-index") == "4"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_samples_are_chosen_with_the_slider(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT))
    assert not page.locator("#sample").is_visible()
    page.locator("[value=sample]").check()
    painted(page, "0,0,0,sample,0")
    first = numbers(page)
    page.locator("#sample").focus()
    page.keyboard.press("ArrowRight")
    painted(page, "0,0,0,sample,1")
    assert numbers(page) != first
    assert page.locator("#sample-number").inner_text() == "2"
    assert page.locator(".dot.now").count() == 3
    assert page.locator("thead .draw").inner_text() == "sample 2"


def test_predictions_are_shown_with_their_spread(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT))
    found = babn.predict(model, batch_of(model), seed=0)
    order = found.probs[0].argsort(descending=True).tolist()
    names = ["yes", "<b>no</b>", "perhaps"]
    assert page.locator(".bars .name").all_inner_texts() == [names[i] for i in order]
    shown = [f"{100 * found.probs[0, i]:.0f} % ± {100 * found.std[0, i]:.1f}" for i in order]
    assert page.locator(".bars .value").all_inner_texts() == shown
    assert page.locator(".bars .dot").count() == found.sample_probs[:, 0].numel()
    assert f"Entropy {found.entropy[0]:.3f} nats" in page.locator(".unsure").inner_text()


def test_heat_map_has_a_cell_for_each_pair_and_shows_its_numbers(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT))
    canvas = page.locator(".map canvas")
    assert canvas.evaluate("c => [c.width, c.height]") == [6, 6]
    side = canvas.evaluate("c => c.offsetWidth") / 6
    mean = 100 * babn.attention_maps(model, batch_of(model))[0].mean[0].mean(0)
    alphas = canvas.evaluate(
        "c => [...c.getContext('2d').getImageData(0, 0, 6, 6).data].filter((_, i) => i % 4 == 3)"
    )
    assert alphas.index(max(alphas)) == int(mean.argmax())
    canvas.hover(position={"x": 3.5 * side, "y": 2.5 * side})
    read = re.search(r"“river” to “bank”: mean ([\d.]+)\s%", page.locator(".cell").inner_text())
    assert read is not None
    assert abs(float(read[1]) - mean[2, 3]) <= BYTE + 0.05
    canvas.click(position={"x": 3.5 * side, "y": 2.5 * side})
    assert page.locator(".queries .word.here .token").inner_text() == "river"


def test_two_texts_stand_side_by_side_under_one_set_of_controls(opened: Open, model: Any) -> None:
    page = opened(html_of(model, [TEXT, "we lent money"]))
    boxes = [page.locator("#columns > section").nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    page.locator("#layer").select_option(index=2)
    page.locator("#head").select_option(index=3)
    painted(page, "0,2,3,mean,0")
    assert page.locator(".place").all_inner_texts() == ["Layer 3 of 3, head 3 of 4"] * 2
    for i, text in enumerate((TEXT, "we lent money")):
        page.locator(f"#columns > section:nth-child({i + 1}) .queries .word").nth(1).click()
        mean = babn.attention_maps(model, batch_of(model, text))[2].mean[0, 2, 1]
        assert near(numbers(page, i), 100 * mean, BYTE + 0.5)


def test_cross_attention_shows_both_texts(opened: Open) -> None:
    page = opened(html_of(translator(), (TEXT, "we lent a sum")))
    titles = page.locator("#chain option").all_inner_texts()
    chosen = titles.index("Cross-attention, decoder to encoder")
    page.locator("#chain").select_option(index=chosen)
    painted(page, f"{chosen},0,0,mean,0")
    page.locator(".queries .word").nth(1).hover()
    assert page.locator(".keys .token").all_inner_texts()[1:5] == TEXT.split()
    assert abs(sum(numbers(page, of="keys")) - 100) < 6 * (BYTE + 0.5)
    assert page.locator(".prediction").is_hidden()


def test_causal_attention_looks_back_only(opened: Open) -> None:
    page = opened(html_of(language_model(), TEXT))
    page.locator(".queries .word").nth(2).hover()
    assert numbers(page)[3:] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_execute_nothing(opened: Open, model: Any, text: str) -> None:
    page = opened(html_of(model, (text, text), name=text))
    for mode in ("std", "sample"):
        page.locator(f"[value={mode}]").check()
    page.locator(".queries .word").nth(1).hover()
    assert page.locator("#columns img, #columns script, #columns b").count() == 0
    shown = page.locator("blockquote span").first.evaluate("e => e.textContent")
    assert shown == text.replace("\ud800", "\ufffd")


def test_policy_stops_scripts_from_elsewhere(browser: Any, tmp_path: Path, model: Any) -> None:
    html = html_of(model, TEXT).replace("</main>", "<script>alert(1)</script></main>")
    (tmp_path / "page.html").write_text(html)
    trouble: list[str] = []
    page = browser.new_page()
    progress(page, trouble)
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("body[data-painted]")
    page.close()
    assert len(trouble) == 1 and "Content Security Policy" in trouble[0]


def test_page_opens_on_the_layer_that_varies_most(opened: Open, model: Any) -> None:
    maps = babn.attention_maps(model, batch_of(model))
    layer = max(range(3), key=lambda i: float((maps[i].mean * maps[i].relative_std).sum(-1).mean()))
    page = opened(html_of(model, TEXT), at="")
    painted(page, f"0,{layer},0,std,0")
    certain = babn.convert(babn.revert(classifier()), babn.SoftmaxConfig())
    assert opened(html_of(certain, TEXT), at="").locator("[value=mean]").is_checked()


def test_address_keeps_the_selection(opened: Open, model: Any) -> None:
    html = html_of(model, TEXT)
    page = opened(html)
    page.locator("#layer").select_option(index=2)
    page.locator("[value=sample]").check()
    page.locator(".queries .word").nth(3).click()
    page.wait_for_url(re.compile("token=4"))
    link = page.evaluate("location.hash")
    other = opened(html, at=link)
    painted(other, "0,2,0,sample,0")
    assert other.locator(".word.here .token").inner_text() == "bank"
    other.evaluate("location.hash = '#layer=2&head=3&show=std'")
    painted(other, "0,1,3,std,0")
    painted(opened(html, at="#layer=99&head=-1&show=toString&token=1e9"), "0,2,0,std,0")


def test_all_heads_of_a_layer_are_a_grid(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT), at="#layer=2&show=std")
    tiles = page.locator(".tile")
    assert tiles.all_inner_texts() == [f"head {i}" for i in range(1, 5)]
    spread = babn.attention_maps(model, batch_of(model))[1].relative_std[0]
    pixels = "c => [...c.getContext('2d').getImageData(0, 0, 6, 6).data]"
    darkest = [max(tile.locator("canvas").evaluate(pixels)[3::4]) for tile in tiles.all()]
    assert darkest[int(spread.amax((1, 2)).argmax())] == 255
    tiles.nth(2).click()
    painted(page, "0,1,3,std,0")
    assert page.locator("#head").input_value() == "3"
    assert page.locator(".tile[aria-pressed=true]").inner_text() == "head 3"
    tiles.nth(2).click()
    painted(page, "0,1,0,std,0")


def test_cards_of_two_texts_are_aligned(opened: Open, model: Any) -> None:
    page = opened(
        html_of(model, [TEXT, "the river " * 20]), viewport={"width": 1300, "height": 900}
    )
    for card in (".prediction", ".tokens", ".weights"):
        tops = [box.bounding_box() for box in page.locator(card).all()]
        assert tops[0]["y"] == tops[1]["y"] and tops[0]["height"] == tops[1]["height"]


def test_one_text_has_its_map_beside_the_words(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT), viewport={"width": 1300, "height": 900})
    words, weights = (page.locator(card).bounding_box() for card in (".prediction", ".weights"))
    assert words["y"] == weights["y"] and words["x"] < weights["x"]


def test_a_notebook_shows_the_page_in_a_frame(browser: Any, model: Any) -> None:
    trouble: list[str] = []
    page = browser.new_page()
    progress(page, trouble)
    shown = babn.view(model, TEXT, tokenizer=tokenizer())
    page.set_content(f"<!doctype html><title>notebook</title>{shown._repr_html_()}")
    frame = page.frame_locator("iframe")
    frame.locator("body[data-painted]").wait_for()
    frame.locator("#layer").select_option(index=1)
    frame.locator("body[data-painted='0,1,0,std,0']").wait_for()
    page.close()
    assert trouble == []


def luminance(page: Any, selector: str, what: str) -> float:
    colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / (3 * 255)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system(opened: Open, model: Any, scheme: str) -> None:
    page = opened(html_of(model, TEXT), color_scheme=scheme)
    ground, text = (luminance(page, "body", what) for what in ("backgroundColor", "color"))
    assert (ground > 0.8 and text < 0.2) if scheme == "light" else (ground < 0.2 and text > 0.8)


def test_print_is_dark_on_light_without_controls(opened: Open, model: Any) -> None:
    page = opened(html_of(model, TEXT), color_scheme="dark")
    page.emulate_media(media="print")
    assert luminance(page, "body", "backgroundColor") == 1
    assert luminance(page, ".map .left span:nth-child(2)", "color") == 0
    assert page.locator("#controls").is_hidden()
    assert page.locator(".map canvas").is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_narrow_screens_do_not_scroll_sideways(opened: Open, model: Any) -> None:
    html = html_of(model, [TEXT, "the river " * 20])
    page = opened(html, viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def long_page(tokens: int = 512, layers: int = 12, heads: int = 12) -> str:
    """A page with random attention of the size of a large encoder."""
    shape = torch.zeros(1, 1, 1, 1).expand(1, heads, tokens, tokens)
    kept, drawn = share([AttentionMap("chain/0", shape, shape)] * layers)
    made = []
    for i in range(layers):
        weights = with_average(random_weights(heads, tokens, tokens, seed=i))
        keys = largest(weights, kept)
        mean = weights.gather(-1, keys)
        made.append(pack(keys, tokens, mean, mean.sqrt(), [mean] * drawn))
    size = {"heads": heads, "size": [tokens, tokens], "kept": kept, "layers": made}
    names = {"name": "chain", "title": "Self-attention", "queries": "words", "keys": "words"}
    words = [[f"word{i}", 0] for i in range(tokens)]
    column = {"text": ["long"], "words": words, "output": [], "prediction": None}
    return make_page(
        {"columns": [{**column, "drawn": drawn, "chains": [names | size]}], "model": "long"}
        | {"seed": 0}
    )


def test_512_tokens_respond(opened: Open) -> None:
    html = long_page()
    assert len(html) < 6_000_000
    page = opened(html)
    timings = page.evaluate(
        """async () => {
            const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
            const timed = async (act, until) => {
                const start = performance.now();
                act();
                do await frame(); while (!until());
                return performance.now() - start;
            };
            const set = (id, index) => () => {
                const select = document.getElementById(id);
                select.selectedIndex = index;
                select.dispatchEvent(new Event("change"));
            };
            const shows = (text) => () => document.body.dataset.painted === text;
            const word = document.querySelectorAll(".word")[300];
            return [
                await timed(set("layer", 7), shows("0,7,0,mean,0")),
                await timed(set("head", 5), shows("0,7,5,mean,0")),
                await timed(() => word.focus(), () => word.classList.contains("here")),
            ];
        }"""
    )
    assert max(timings) < RESPONSE_MS
    expected = 100 * random_weights(12, 512, 512, seed=7)[4, 300].topk(6).values
    cells = page.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert near([value(text) for text in cells], expected, BYTE + 0.05)
    assert "largest of 512 weights" in page.locator(".kept").inner_text()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Any, str]]:
    """A running `babn serve` and its address; shows the output of a server that does not start."""
    command = [sys.executable, "-m", "babn", "serve", str(folder), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as server:
        try:
            address = re.search(r"http://[\d.:]+", server.stdout.readline())
            assert address is not None, server.communicate(timeout=20)[1]
            yield server, address[0]
        finally:
            server.kill()


def test_serve_from_end_to_end(browser: Any, model: Any, tmp_path: Path) -> None:
    with serving(save(tmp_path / "tiny", model)) as (server, address):
        trouble: list[str] = []
        page = browser.new_page()
        progress(page, trouble)
        page.goto(address)
        page.locator("#text").fill(TEXT)
        page.locator("[type=submit]").click()
        page.wait_for_selector("body[data-painted]")
        page.locator("#layer").select_option(index=0)
        page.locator("[value=mean]").check()
        painted(page, "0,0,0,mean,0")
        mean = babn.attention_maps(model, batch_of(model))[0].mean[0].mean(0)[0]
        assert near(numbers(page), 100 * mean, BYTE + 0.5)
        assert trouble == []
        page.locator("#text").fill("river " * 120)
        page.locator("[type=submit]").click()
        page.wait_for_selector("#error:not(:empty)")
        assert "122 tokens; at most 96" in page.locator("#error").inner_text()
        page.locator(".example").nth(1).click()
        page.wait_for_selector("#columns > section:nth-child(2)")
        page.wait_for_url(re.compile("relation=compare"))
        linked = browser.new_page()
        linked.goto(page.url)
        linked.wait_for_selector("#columns > section:nth-child(2)")
        linked.close()
        page.close()
        server.send_signal(signal.SIGINT)
        output, errors = server.communicate(timeout=30)
        assert (server.returncode, output.strip()) == (0, "stopped")
        # The words of the example are unknown to the tiny model, so that its samples agree.
        lines = [line for line in errors.splitlines() if "All samples give nearly" not in line]
        assert lines == []
