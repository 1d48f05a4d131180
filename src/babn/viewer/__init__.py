"""An interactive page of a model's attention and its uncertainty."""

from babn.viewer.document import view

__all__ = ["view"]
