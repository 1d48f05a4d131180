"""Shortens results of `babn bench` for the repository.

    python tools/compact_costs.py FILE...

Keeps the kernels that take at least 0.2 % of the GPU's time, with the beginning of their names, and
eight significant digits.
"""

import argparse
import json
from pathlib import Path
from typing import Any

SHARE, NAME, DIGITS = 0.002, 80, 8


def compact(value: Any) -> Any:
    """A value with rounded numbers and without the kernels that hardly count."""
    if isinstance(value, dict):
        return {name: compact(each) for name, each in with_long_kernels(value).items()}
    if isinstance(value, list):
        return [compact(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def with_long_kernels(cost: dict[str, Any]) -> dict[str, Any]:
    """A cost with the kernels that take much of it; other values as they are."""
    if not cost.get("kernels") or not cost.get("busy"):
        return cost
    kept = [kernel for kernel in cost["kernels"] if kernel["seconds"] >= SHARE * cost["busy"]]
    return {**cost, "kernels": [{**kernel, "name": kernel["name"][:NAME]} for kernel in kept]}


def main() -> None:
    """Rewrites files in place, with a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    for path in parser.parse_args().files:
        found = compact(json.loads(path.read_text(encoding="utf-8")))
        rows = ",\n".join(json.dumps(row) for row in found.pop("rows"))
        path.write_text(f'{json.dumps(found)[:-1]}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
