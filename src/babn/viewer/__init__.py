"""An interactive page of a model's attention and its uncertainty."""

from babn.viewer.document import View, view

__all__ = ["View", "view"]
