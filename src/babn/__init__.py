"""Bayesian attention belief networks: calibrated uncertainty for attention models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from babn.public import *  # noqa: F403
    from babn.training.trainer import BeliefTrainer as BeliefTrainer
    from babn.training.trainer import BeliefTrainerMixin as BeliefTrainerMixin

__version__ = "0.2.0"

_PACKAGES = ("distributions", "errors", "metrics", "plots")


def __dir__() -> list[str]:
    """All public names, those that are loaded on first use included."""
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, *_PACKAGES, *import_module("babn.public").__all__})


def __getattr__(name: str) -> Any:
    """Loads the library on first use, so that commands can show their help without torch."""
    if name in _PACKAGES:
        return import_module(f"babn.{name}")
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'babn' has no attribute {name!r}")
    public = import_module("babn.public")
    if name != "__all__" and name not in public.__all__:
        raise AttributeError(f"module 'babn' has no attribute {name!r}")
    return getattr(public, name)
