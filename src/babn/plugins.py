"""Commands and models of other packages, found by their entry points."""

from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Literal


def plugins(group: Literal["babn.commands", "babn.models"]) -> list[ModuleType]:
    """Imports the modules that installed packages register for a group."""
    return [entry.load() for entry in entry_points(group=group)]


def find_model_class(name: str) -> type[Any] | None:
    """The model class of transformers, or of an installed package, with this name."""
    import transformers

    for module in (transformers, *plugins("babn.models")):
        found = getattr(module, name, None)
        if isinstance(found, type):
            return found
    return None
