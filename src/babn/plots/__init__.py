"""Figures of uncertainty for papers and reports."""
