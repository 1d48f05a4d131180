"""`babn bench`."""

from pathlib import Path
from typing import Annotated, Any, cast


def bench(
    *,
    out: Annotated[Path, "FILE"] = Path("babn-bench.json"),
    forms: str = "",
    methods: str = "softmax,keys",
    lengths: str = "",
    decoder: bool = False,
    quick: bool = False,
) -> None:
    """Measure what stochastic attention costs in time and memory, beside softmax in the same run.

    Uses random weights in the shape of ALBERT-base: on a GPU in bfloat16 for 128 to 8192 tokens, on
    a CPU fewer layers and shorter texts in float32. Compare the ratios: absolute times depend on
    the other load of the machine. If the file has results of the same versions and device, new ones
    are added to it.

    Args:
        out: JSON file to write the numbers to; until all are measured, its name has .partial added.
        forms: How models run, separated by commas: eager, compiled, graphs. By default eager and
            compiled on a GPU, and eager on a CPU.
        methods: The methods, separated by commas: softmax, keys (the default of babn), pairs,
            heads, bam.
        lengths: Numbers of tokens, separated by commas; by default 128,512,2048,8192 on a GPU and
            128,256 on a CPU.
        decoder: Measure a decoder of one billion parameters instead, with generation.
        quick: Measure one tiny size once, as a smoke test.
    """
    chosen = {
        "forms": _chosen("forms", forms, ("eager", "compiled", "graphs")),
        "methods": _chosen("methods", methods, ("softmax", "keys", "pairs", "heads", "bam")),
    }
    sizes = [int(each) for each in _chosen("lengths", lengths, None)]
    earlier = _read_earlier(out)

    import json

    import torch
    from rich.console import Console

    from babn.benchmark import results, suite
    from babn.cli.version import versions
    from babn.files import replace_text

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = _plan(chosen, sizes, decoder, quick, device.type == "cuda")
    console = Console(highlight=False)
    console.print(f"Measuring on {versions()['device']} with torch {torch.__version__}.")
    rows = results.rows_of(earlier) if earlier.get("versions") == _versions() else []
    partial = out.with_name(f"{out.name}.partial")
    with console.status("") as status:
        for row in suite.run(plan, device, status.update):
            rows = results.merged(rows, [row])
            replace_text(partial, json.dumps(results.plain(rows, _versions()), indent=1))
    partial.replace(out)
    _print(console, rows)
    console.print(f"All numbers: {out}")


def _chosen(option: str, text: str, known: tuple[str, ...] | None) -> list[str]:
    """Splits and validates the values of an option, before slow imports."""
    from babn.errors import BabnError

    found = [each.strip() for each in text.split(",") if each.strip()]
    wrong = [x for x in found if (x not in known if known else not (x.isdigit() and int(x)))]
    if wrong:
        allowed = f"Choose among {', '.join(known)}" if known else "Give numbers of tokens"
        raise BabnError(f"--{option} {wrong[0]!r} is not possible. {allowed}, with commas.")
    return list(dict.fromkeys(found))


def _plan(
    chosen: dict[str, list[str]], lengths: list[int], decoder: bool, quick: bool, gpu: bool
) -> Any:
    from dataclasses import replace

    from babn.benchmark import suite
    from babn.benchmark.steps import Size

    batches = suite.GPU if gpu else suite.CPU
    sizes = [
        Size(
            length,
            batches.get(length, max(1, 8192 // length) if gpu else 1),
            layers=12 if gpu else 4,
        )
        for length in lengths or batches
    ]
    if decoder:
        sizes = [replace(suite.DECODER, length=n) for n in lengths or [suite.DECODER.length]]
    if quick:
        sizes = [replace(sizes[0], length=16, batch=2, layers=2, width=32, heads=4)]
    forms = chosen["forms"] or (["eager", "compiled"] if gpu and not quick else ["eager"])
    repeats = 1 if quick else 30 if gpu else 3
    return suite.Plan(tuple(sizes), cast(Any, tuple(forms)), tuple(chosen["methods"]), repeats)


def _print(console: Any, rows: list[Any]) -> None:
    from babn.benchmark import results
    from babn.cli._terminal import plain_table

    for model, task in [(m, t) for m in ("albert", "llama") for t in results.TITLES]:
        columns, lines = results.shown([row for row in rows if row.size.model == model], task)
        if not lines:
            continue
        title = results.TITLES[task] + (", decoder" if model == "llama" else "")
        console.print(plain_table(columns, lines, title=title))


def _read_earlier(out: Path) -> dict[str, Any]:
    """Reads the file; raises before anything is measured if it must not be replaced."""
    from babn.errors import BabnError
    from babn.files import parse_json

    if out.is_dir():
        raise BabnError(f"--out {out} is a folder: name a file, such as {out / 'babn-bench.json'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        return {}
    try:
        found = parse_json(out.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"versions", "rows"} <= found.keys():
        raise BabnError(f"--out {out} exists, and was not written by babn bench: name another file")
    return found


def _versions() -> dict[str, str]:
    """The versions that must agree for results to be comparable: all but the platform."""
    from babn.cli.version import versions

    return {name: value for name, value in versions().items() if name != "platform"}
