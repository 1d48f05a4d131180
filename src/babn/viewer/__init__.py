"""A page in which a person reads where a model looks and how sure it is."""

from babn.viewer.page import view

__all__ = ["view"]
