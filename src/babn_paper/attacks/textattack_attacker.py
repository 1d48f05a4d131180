"""Attackers that run TextAttack's recipes, with its own resources or with others."""

import logging
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

import numpy as np
from torch import Tensor

from babn.errors import BabnError
from babn_paper.attacks.attack_loop import Attacker, Attempt, ExampleError
from babn_paper.attacks.plan import Recipe
from babn_paper.attacks.resources import NEEDS, Provider, ResourceError
from babn_paper.attacks.textattack_import import import_textattack
from babn_paper.attacks.transformer_resources import LONGEST, longest
from babn_paper.attacks.victim import Victim

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
