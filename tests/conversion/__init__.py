"""Tests of conversion; a package, so that file names may recur in other folders."""
