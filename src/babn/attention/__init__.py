"""Attention methods: softmax, Monte Carlo dropout, BAM and belief.

Imports every module of this package, so that a method in a new file is registered at once.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
