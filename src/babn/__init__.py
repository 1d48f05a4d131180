"""Bayesian attention belief networks: calibrated uncertainty for attention models."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from babn.public import *  # noqa: F403
    from babn.training.trainer import BeliefTrainer as BeliefTrainer
    from babn.training.trainer import BeliefTrainerMixin as BeliefTrainerMixin

__version__ = "0.2.0"

_PACKAGES = ("distributions", "errors", "metrics", "plots")

_TRAINERS = ("BeliefTrainer", "BeliefTrainerMixin")
"""Names that need transformers."""


def __dir__() -> list[str]:
    """All public names, those that are loaded on first use included."""
    return sorted([*(name for name in globals() if name.startswith("__")), *_public_names()])


def __getattr__(name: str) -> Any:
    """Loads the library on first use, so that commands can show their help without torch."""
    if name in _PACKAGES:
        return import_module(f"babn.{name}")
    if name == "__all__":
        return _public_names()
    if name in _TRAINERS:
        from babn.errors import import_extra

        need = f"babn.{name} needs transformers"
        return getattr(import_extra("babn.training.trainer", need, "transformers"), name)
    if name.startswith("_") or name not in _public_names():
        raise AttributeError(f"module 'babn' has no attribute {name!r}")
    return getattr(import_module("babn.public"), name)


def _public_names() -> list[str]:
    found = vars(import_module("babn.public")).items()
    names = {name for name, x in found if name[0] != "_" and not isinstance(x, ModuleType)}
    return sorted(names.union(_PACKAGES, _TRAINERS))
