"""Imports TextAttack where it stands beside a current transformers.

Its dependencies cannot be installed together with transformers 5 (flair pins an older one), so it
is installed without them. What its modules import and no recipe here uses is replaced during the
import by stubs, which refuse to be called; packages that are installed are left alone.
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
from babn_paper.attacks.textattack_import import ready_nltk

VERSION = "0.3.11"
"""Attacks on pairs of texts are wrong before."""

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
"""Modules that TextAttack imports and the recipes do not use, with the names it asks for."""


def import_textattack(nltk_data: Path | None = None) -> Any:
    """The package, imported without reaching for the network if NLTK's data is given.

    Args:
        nltk_data: Folder of NLTK's data; by default TextAttack downloads it.
    """
    check_installed()
    ready_nltk(nltk_data)
    if "textattack" in sys.modules:
        return sys.modules["textattack"]
    with ExitStack() as stack:
        stack.enter_context(_stubs())
        if nltk_data is not None:
            stack.enter_context(_without_downloads())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter(
            "ignore"
        )  # about its own dependencies and its own regular expressions
        return _import()


def check_installed() -> None:
    """Says how to install what attacks need, if it is not there."""
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
    """Puts stubs in the place of what is not installed, and takes them away again."""
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
    """Stands for a class or function of a package that is not installed."""

    package = ""

    def __init__(self, *_: object, **__: object) -> None:
        raise MissingExtraError(f"{self.package} is not installed, and no recipe of babn needs it.")


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Makes TextAttack believe that it has fetched what it fetches after its installation."""
    with tempfile.TemporaryDirectory() as cache:
        Path(cache, "post_install_check_3").touch()
        with _environment({"TA_CACHE_DIR": cache}):
            yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a while; TextAttack sets more of them, which go as well."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
