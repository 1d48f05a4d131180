"""`python -m babn` is the `babn` command."""

from babn.cli import main

main()
