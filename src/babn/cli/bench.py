"""`babn bench`."""

from pathlib import Path
from typing import Annotated, Any, cast

from babn.benchmark import results
from babn.benchmark.results import FORMS, NAMES
from babn.errors import BabnError


def bench(
    *,
    out: Annotated[Path, "FILE"] = Path("babn-bench.json"),
    forms: str = "",
    methods: str = "softmax,keys",
    lengths: Annotated[str, "N,N"] = "",
    decoder: bool = False,
    quick: bool = False,
) -> None:
    """Measure time and memory of stochastic attention, relative to softmax in the same run.

    Uses random weights in the shape of ALBERT-base: on a GPU in bfloat16 with 128 to 8192 tokens,
    on a CPU in float32 with fewer layers and shorter texts. Compare ratios rather than absolute
    times, which depend on the load of the machine; the file also has the time of the GPU alone. New
    results are added to a file of the same versions and device.

    Args:
        out: JSON file to write the numbers to, after each measurement.
        forms: How models run, separated by commas: eager, compiled, graphs. By default eager and
            compiled on a GPU, and eager on a CPU.
        methods: The methods, separated by commas: softmax, keys (the default of babn), pairs,
            heads, bam.
        lengths: Numbers of tokens, separated by commas; by default 128,512,2048,8192 on a GPU and
            128,256 on a CPU.
        decoder: Measure a decoder of one billion parameters instead, with generation.
        quick: Measure one tiny size once, as a smoke test.
    """
    chosen_forms = _chosen("forms", forms, FORMS)
    names = [NAMES[each] for each in _chosen("methods", methods, tuple(NAMES))]
    chosen_lengths = [int(each) for each in _chosen("lengths", lengths, ())]
    earlier = _read_earlier(out)

    import json

    import torch
    from rich.console import Console

    from babn.benchmark import suite
    from babn.cli._terminal import plain_table
    from babn.cli.version import versions
    from babn.files import replace_text

    gpu = torch.cuda.is_available()
    if not chosen_forms:
        chosen_forms = ["eager", "compiled"] if gpu and not quick else ["eager"]
    sizes = suite.sizes_of(chosen_lengths, decoder, quick, gpu)
    groups = suite.plan(sizes, cast(Any, chosen_forms), names)
    if not groups:
        raise BabnError(
            "Nothing to measure. Give --methods, and for pairs and heads --lengths up to "
            f"{min(suite.LONGEST.values())}."
        )
    # Results of the same versions and device are comparable on any platform.
    compared = {name: value for name, value in versions().items() if name != "platform"}
    console = Console(highlight=False)
    console.print(f"Measuring on {compared['device']} with torch {torch.__version__}.")
    rows = results.rows_of(earlier) if earlier.get("versions") == compared else []
    repeats = 1 if quick else 30 if gpu else 3
    device = torch.device("cuda" if gpu else "cpu")
    with console.status("") as status:
        for row in suite.run(groups, repeats, device, status.update):
            rows = results.merged(rows, [row])
            replace_text(out, json.dumps(results.plain(rows, compared), indent=1))
    for title, columns, lines in results.tables(rows):
        console.print(plain_table(columns, lines, title=title))
    console.print(f"All numbers: {out}")


def _chosen(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    """Splits and validates the values of an option; if none are known, numbers of tokens."""
    found = [each.strip() for each in text.split(",") if each.strip()]
    for each in found:
        if each not in known if known else not each.isdecimal():
            valid = ", ".join(known) or "numbers of tokens"
            raise BabnError(f"--{option} {each!r} is invalid. Give {valid}, with commas.")
    return found


def _read_earlier(out: Path) -> dict[str, Any]:
    """Reads the file; raises before anything is measured if it must not be replaced."""
    from babn.files import make_folder, read_object

    make_folder(out.parent)
    if not out.exists():
        return {}
    remedy = "It was not written by babn bench: name another file."
    found = read_object(out, remedy)
    if not {"versions", "rows"} <= found.keys():
        raise BabnError(f"--out {out} exists. {remedy}")
    return found
