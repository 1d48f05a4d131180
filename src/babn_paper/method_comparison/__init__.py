"""Rival methods of uncertainty, behind the interface of `babn.methods`, compared on the same data.

The methods (`method_catalogue.py` lists them), their runs, scores and tables.
"""
