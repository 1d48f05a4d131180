"""`babn view`."""

from pathlib import Path
from typing import Annotated

from babn.cli._errors import CommandError, check_model


def view(
    model: str,
    *,
    text: list[str] | None = None,
    pair: list[str] | None = None,
    samples: int = 10,
    seed: int = 0,
    out: Annotated[str, "FILE"] = "babn-view.html",
) -> None:
    """Write a page that shows a model's attention to a text and its uncertainty.

    The page is one file that needs no network: choose a layer and a head, and point at a word.

    Args:
        model: A run of babn train, or a folder with a converted model and its tokenizer, both saved
            by save_pretrained.
        text: The text to show; give the option twice to see two texts side by side.
        pair: The second text of a pair, such as the hypothesis after a premise, one choice of a
            multiple-choice model, or the decoder's text of an encoder-decoder; as many times as
            --text.
        samples: Samples of attention for the class probabilities.
        seed: Seed of the samples.
        out: File to write.
    """
    texts = paired(text or [], pair or [])
    check_model(model)

    from rich.console import Console
    from rich.markup import escape

    from babn.viewer import view as make_page
    from babn.viewer.document import check_target, check_texts
    from babn.viewer.texts import open_model

    check_texts(len(texts))
    check_target(Path(out))
    loaded, tokenizer = open_model(model)
    waiting = f"running {model}, {samples} samples for each text"
    with Console(stderr=True).status(escape(waiting)):
        page = make_page(
            loaded,
            texts,
            tokenizer=tokenizer,
            name=Path(model).resolve().name,
            samples=samples,
            seed=seed,
        )
    page.save(out)
    print(f"Wrote {out} ({len(page.html) / 1e3:,.0f} kB). Open it in a browser.")


def paired(texts: list[str], pairs: list[str]) -> list[str | tuple[str, str]]:
    """The texts, or pairs of texts if second texts are given."""
    if not texts:
        raise CommandError('There is no text to show. Give one with --text "...".')
    if pairs and len(pairs) != len(texts):
        raise CommandError(
            f"--pair is given {len(pairs)} times and --text {len(texts)} times. Give one for each."
        )
    return list(zip(texts, pairs, strict=True)) if pairs else list(texts)
