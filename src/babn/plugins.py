"""What other packages add to babn, found by their entry points."""

from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Literal


def plugins(group: Literal["babn.commands", "babn.models"]) -> list[ModuleType]:
    """The modules that installed packages name for a group, imported."""
    return [entry.load() for entry in entry_points(group=group)]


def find_model_class(name: str) -> type[Any] | None:
    """The model class of a name: of transformers, or of an installed package."""
    import transformers

    for module in (transformers, *plugins("babn.models")):
        if found := getattr(module, name, None):
            return found
    return None
