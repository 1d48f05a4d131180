"""`babn translate`."""

from pathlib import Path
from typing import Annotated


def translate(
    run: Path,
    file: Path,
    *,
    out: Annotated[str | None, "FILE"] = None,
    samples: int = 0,
    beam: int = 0,
    batch: int = 64,
    seed: int = 0,
    json: bool = False,
    overwrite: bool = False,
) -> None:
    """Translate a text file line by line with the model of a run.

    The output has as many lines as the input. Empty lines stay empty; lines longer than the model's
    maximum length are truncated. With --json each line also has its uncertainty.

    Args:
        run: Folder of a finished translation run.
        file: UTF-8 text with one sentence per line, plain or .gz.
        out: Output file; by default the input's name with .translated added.
        samples: Samples of attention, over which word probabilities are averaged and uncertainty is
            measured; 0 for the posterior mean.
        beam: Beam size; 0 for the one that the run was tested with.
        batch: Sentences in a batch; does not affect the noise of samples.
        seed: Seed of the samples.
        json: Write a JSON object per line, with the uncertainty of the sentence and of each word.
        overwrite: Replace an existing output file.
    """
    from babn.cli._terminal import Bars
    from babn_paper.cli._terminal import make_console
    from babn_paper.experiments.file_translation import translate_file

    ending = ".translated.jsonl" if json else ".translated"
    target = Path(out) if out else file.with_name(file.name + ending)
    console = make_console(stderr=True)
    with Bars(console) as bars:
        done = translate_file(
            run,
            file,
            target,
            samples=samples,
            beam=beam,
            batch=batch,
            seed=seed,
            as_json=json,
            overwrite=overwrite,
            progress=bars,
        )
    notes = [f"wrote {done.lines} lines to {target}"]
    notes += [f"{done.empty} of them empty"] if done.empty else []
    notes += [f"{done.cut} truncated"] if done.cut else []
    console.print(", ".join(notes))
