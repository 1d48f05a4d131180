"""NLTK's stop words and part-of-speech tagger, from a folder or downloaded."""

from pathlib import Path

from babn_paper.attacks.resources import ResourceError

PACKAGES = ("averaged_perceptron_tagger_eng", "stopwords", "universal_tagset")
"""What recipes use; TextAttack itself fetches the tagger under a name of older versions of NLTK."""


def ready_nltk(folder: Path | None) -> None:
    """Makes NLTK find its data, which TextAttack reads when it is imported.

    Args:
        folder: Where the data is; by default where NLTK keeps it, to which it is downloaded.
    """
    import nltk

    if folder is not None and str(folder) not in nltk.data.path:
        nltk.data.path.insert(0, str(folder))
    if _missing() and folder is None:
        for name in PACKAGES:
            nltk.download(name, quiet=True)
    if problem := _missing():
        remedy = "See docs/attacks.md."
        if folder is None:
            remedy = "Without a network give a folder with --resources; see docs/attacks.md."
        raise ResourceError(f"NLTK does not find {problem} in {folder or 'its data'}. {remedy}")


def _missing() -> str:
    """What NLTK does not find; empty if it finds all."""
    import nltk

    try:
        nltk.pos_tag(["word"], tagset="universal")
    except LookupError:
        return f"{PACKAGES[0]} or {PACKAGES[2]}"
    try:
        nltk.corpus.stopwords.words("english")
    except LookupError:
        return PACKAGES[1]
    return ""
