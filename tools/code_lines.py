"""Counts code lines by folder, without blank lines, comments and docstrings.

python tools/code_lines.py [FOLDER ...]
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/babn", "src/babn_paper", "tests", "benchmarks", "paper", "tools", "examples")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """How many lines of a file hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - strings_alone(source))


def strings_alone(source: str) -> set[int]:
    """Lines of strings that are statements: docstrings of modules, classes, functions, fields."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def by_folder(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Code lines and files of the parts of a folder; files beside them count as `.`."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        part = place.parts[0] if len(place.parts) > 1 else "."
        lines[part] += code_lines(path.read_text(encoding="utf-8"))
        files[part] += 1
    return lines, files


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    print("| folder | code lines | files |\n|---|---:|---:|")
    for name in parser.parse_args().folders:
        lines, files = by_folder(ROOT / name)
        print(f"| **{name}** | **{lines.total():,}** | **{files.total()}** |")
        if len(lines) > 1 and name.startswith("src/"):
            for part, count in lines.most_common():
                print(f"| `{name}/{part}` | {count:,} | {files[part]} |")


if __name__ == "__main__":
    main()
