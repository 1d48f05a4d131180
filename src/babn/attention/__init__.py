"""Attention rules: softmax, Monte Carlo dropout, BAM and belief.

Every module of this package is imported here, so that a rule in a new file is known at once.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
