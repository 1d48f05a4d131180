"""A page in which a person reads where a model looks and how sure it is."""
