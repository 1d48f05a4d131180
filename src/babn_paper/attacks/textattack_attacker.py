"""Attackers that run TextAttack's recipes, with its own resources or with others.

TextAttack's dependencies conflict with transformers 5 (flair pins an older version), so it is
installed without them. Modules that it imports but no recipe here uses are replaced during the
import by stubs, which raise when they are called; installed packages are left unchanged.
"""

import importlib.util
import logging
import os
import random
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from babn.errors import BabnError, MissingExtraError
from babn_paper.attacks.attack_loop import Attacker, Attempt, ExampleError
from babn_paper.attacks.local_resources import LONGEST, longest
from babn_paper.attacks.plan import Recipe
from babn_paper.attacks.resources import NEEDS, Provider, ResourceError
from babn_paper.attacks.victim import Victim

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


CLASSES: dict[Recipe, str] = {
    "textfooler": "TextFoolerJin2019",
    "textbugger": "TextBuggerLi2018",
    "bae": "BAEGarg2019",
}

VECTORS = "textattack_counterfitted_GLOVE_embedding"
"""Name under which TextAttack caches its word vectors."""

FAILURES = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions of TextAttack for texts that it cannot handle; missing NLTK data raises others."""


class TextAttackAttacker(Attacker):
    """Attacks a victim by one of TextAttack's recipes.

    Args:
        recipe: The recipe, with TextAttack's thresholds.
        victim: The model to attack.
        provider: Provides word vectors, sentence encoder and masked language model.
    """

    def __init__(self, recipe: Recipe, victim: Victim, provider: Provider) -> None:
        textattack = import_textattack(provider.nltk_data)
        logging.getLogger("textattack.shared.utils.install").setLevel(logging.ERROR)
        self._text = textattack.shared.AttackedText
        self._skipped = textattack.attack_results.SkippedAttackResult
        self._succeeded = textattack.attack_results.SuccessfulAttackResult
        self._attack = _build(textattack, recipe, _wrapped(textattack, victim), provider)
        # A cache would repeat the noise of a text; every query of a random model draws new noise.
        self._attack.goal_function.use_cache = not victim.is_random

    def attack(self, texts: Mapping[str, str], label: int, seed: int) -> Attempt:
        """Runs the recipe on one example."""
        try:
            with seeded(seed):
                result = self._attack.attack(self._text(OrderedDict(texts)), label)
        except BabnError:
            raise
        except FAILURES as error:
            self._attack.clear_cache()
            raise ExampleError(f"TextAttack cannot attack it: {error!r}") from error
        before, after = result.original_result, result.perturbed_result
        return Attempt(
            skipped=isinstance(result, self._skipped),
            succeeded=isinstance(result, self._succeeded),
            texts=dict(after.attacked_text._text_input),
            probs_before=tuple(before.raw_output.tolist()),
            probs_after=tuple(after.raw_output.tolist()),
            queries=int(self._attack.goal_function.num_queries),
        )


def _wrapped(textattack: Any, victim: Victim) -> Any:
    """The victim as a model of TextAttack."""

    class Wrapper(textattack.models.wrappers.ModelWrapper):
        """Passes texts to the victim."""

        model = victim.task_model.model

        def __call__(self, texts: Sequence[str | tuple[str, ...]], **_: object) -> Tensor:
            return victim([(text,) if isinstance(text, str) else text for text in texts])

    return Wrapper()


def _build(textattack: Any, recipe: Recipe, wrapper: Any, provider: Provider) -> Any:
    try:
        if "vectors" in NEEDS[recipe]:
            _set_vectors(textattack, provider)
        with _patched(textattack, provider):
            attack = getattr(textattack.attack_recipes, CLASSES[recipe]).build(wrapper)
        _set_encoder(textattack, attack, provider)
    except BabnError:
        raise
    except Exception as error:  # failed downloads raise many types
        raise ResourceError(
            f"TextAttack cannot get what {recipe} needs: {shorten(str(error), 300)}. "
            "Without network access give a folder with --resources; see docs/attacks.md."
        ) from error
    return attack


def _set_vectors(textattack: Any, provider: Provider) -> None:
    shared = textattack.shared
    embedding = provider.embedding(shared.WordEmbedding)
    shared.utils.GLOBAL_OBJECTS.pop(VECTORS, None)
    if embedding is not None:
        shared.utils.GLOBAL_OBJECTS[VECTORS] = embedding


def _set_encoder(textattack: Any, attack: Any, provider: Provider) -> None:
    """Sets the encoder of every similarity constraint and tests it once."""
    kind = textattack.constraints.semantics.sentence_encoders.UniversalSentenceEncoder
    encoder = provider.encoder()
    for constraint in attack.constraints:
        if isinstance(constraint, kind):
            constraint.model = encoder
            constraint.encode(["one text", "another"])


@contextmanager
def _patched(textattack: Any, provider: Provider) -> Iterator[None]:
    """Patches recipes to use the provider's language model and to tolerate a missing file."""
    module = textattack.attack_recipes.bae_garg_2019
    homoglyphs = textattack.transformations.WordSwapHomoglyphSwap
    original, build = module.WordSwapMaskedLM, homoglyphs.__init__

    def tolerant(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            build(self, *args, **kwargs)
        except FileNotFoundError:
            # The wheel lacks a file that is read last and that only differential evolution uses.
            assert self.homos and not self.homos_intentional

    module.WordSwapMaskedLM = _masked_lm(original, provider)
    homoglyphs.__init__ = tolerant
    try:
        yield
    finally:
        module.WordSwapMaskedLM, homoglyphs.__init__ = original, build


def _masked_lm(base: type[Any], provider: Provider) -> Any:
    """Makes TextAttack's transformation, with the provider's model and minimal padding."""

    class MaskedLM(base):
        """Pads to the longest text of a batch instead of the model's maximum length."""

        def _encode_text(self, text: str | list[str]) -> Any:
            return self._lm_tokenizer(
                text, max_length=self.max_length, truncation=True, padding=True, return_tensors="pt"
            ).to(self._language_model.device)

    def build(**settings: Any) -> Any:
        given = provider.masked_lm()
        if given is None:
            return MaskedLM(**settings)
        model, tokenizer = given
        most = min(LONGEST, longest(model))
        return MaskedLM(
            masked_language_model=model, tokenizer=tokenizer, max_length=most, **settings
        )

    return build


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the random generators that TextAttack uses, and restores them after the block."""
    ours, numpys = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
