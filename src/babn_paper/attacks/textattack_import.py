"""Imports TextAttack and prepares NLTK's data.

TextAttack's dependencies conflict with transformers 5 (flair pins an older version), so it is
installed without them. Modules that it imports but no recipe here uses are replaced during the
import by stubs, which raise when they are called; installed packages are left unchanged.
"""

import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from babn.errors import MissingExtraError
from babn_paper.attacks.resources import ResourceError

VERSION = "0.3.11"
"""Earlier versions attack text pairs incorrectly."""

INSTALL = f"pip install 'babn[attacks]' && pip install --no-deps textattack=={VERSION}"

UNUSED: dict[str, tuple[str, ...]] = {
    "flair": (),
    "flair.data": ("Sentence", "Tokenizer"),
    "flair.models": ("SequenceTagger",),
    "jieba": (),
    "pinyin": (),
    "OpenHowNet": (),
    "bert_score": (),
    "datasets": ("Dataset", "NamedSplit"),
    "language_tool_python": (),
    "langdetect": ("detect",),
    "lemminflect": (),
    "Levenshtein": ("distance",),
    "editdistance": (),
    "more_itertools": (),
    "num2words": ("num2words",),
    "pandas": ("DataFrame", "Series"),
    "terminaltables": (),
    "word2number": ("w2n",),
}
"""Modules that TextAttack imports but the recipes do not use, with the imported names."""

NLTK_PACKAGES = ("averaged_perceptron_tagger_eng", "stopwords", "universal_tagset")
"""NLTK data of the recipes; TextAttack downloads the tagger under its name in older versions."""


def import_textattack(nltk_data: Path | None = None) -> Any:
    """Imports the package, without network access if NLTK's data is given.

    Args:
        nltk_data: Folder of NLTK's data; by default it is downloaded.
    """
    check_installed()
    prepare_nltk(nltk_data)
    if "textattack" in sys.modules:
        return sys.modules["textattack"]
    with ExitStack() as stack:
        stack.enter_context(_stubs())
        if nltk_data is not None:
            stack.enter_context(_without_downloads())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # its own invalid escapes and deprecated imports
        return _import()


def check_installed() -> None:
    """Raises with the installation command if TextAttack or NLTK is missing."""
    for package in ("textattack", "nltk"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"Attacks need {package}: {INSTALL}. See docs/attacks.md.")


def _import() -> Any:
    try:
        found = importlib.import_module("textattack")
        importlib.import_module("textattack.attack_recipes")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"TextAttack needs {error.name}: {INSTALL}") from error
    return found


@contextmanager
def _stubs() -> Iterator[None]:
    """Replaces missing modules by stubs within the block."""
    absent = [name for name in UNUSED if not _is_installed(name.partition(".")[0])]
    for name in absent:
        sys.modules[name] = _stub(name, UNUSED[name])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def _is_installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _stub(name: str, parts: tuple[str, ...]) -> ModuleType:
    module = ModuleType(name)
    for part in parts:
        setattr(module, part, type(part, (_NotInstalled,), {"package": name}))
    return module


class _NotInstalled:
    """A class or function of a package that is not installed."""

    package = ""

    def __init__(self, *_: object, **__: object) -> None:
        raise MissingExtraError(f"{self.package} is not installed, and no recipe of babn needs it.")


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Prevents the downloads that TextAttack does at its first import."""
    with tempfile.TemporaryDirectory() as cache:
        Path(cache, "post_install_check_3").touch()
        with _environment({"TA_CACHE_DIR": cache}):
            yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables within the block; those that TextAttack adds are removed too."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def prepare_nltk(folder: Path | None) -> None:
    """Makes NLTK find its stop words and tagger, which TextAttack reads at import.

    Args:
        folder: Folder of NLTK's data; by default NLTK's own, to which it is downloaded.
    """
    import nltk

    if folder is not None and str(folder) not in nltk.data.path:
        nltk.data.path.insert(0, str(folder))
    if _missing_nltk_data() and folder is None:
        for name in NLTK_PACKAGES:
            nltk.download(name, quiet=True)
    if missing := _missing_nltk_data():
        remedy = "See docs/attacks.md."
        if folder is None:
            remedy = "Without network access give a folder with --resources; see docs/attacks.md."
        raise ResourceError(f"NLTK does not find {missing} in {folder or 'its data'}. {remedy}")


def _missing_nltk_data() -> str:
    """The packages that NLTK does not find; empty if it finds all."""
    import nltk

    try:
        nltk.pos_tag(["word"], tagset="universal")
    except LookupError:
        return f"{NLTK_PACKAGES[0]} or {NLTK_PACKAGES[2]}"
    try:
        nltk.corpus.stopwords.words("english")
    except LookupError:
        return NLTK_PACKAGES[1]
    return ""
