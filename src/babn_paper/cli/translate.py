"""`babn translate`."""

from pathlib import Path


def translate(
    run: Path,
    file: Path,
    *,
    out: str | None = None,
    samples: int = 0,
    beam: int = 0,
    batch: int = 64,
    seed: int = 0,
    json: bool = False,
    overwrite: bool = False,
) -> None:
    """Translate a text file line by line with the model of a run, and say how unsure it is.

    There are as many lines in the output as in the input. Empty lines stay empty; of lines that are
    longer than the model can read only the beginning is translated.

    Args:
        run: The run's folder.
        file: A UTF-8 text with one sentence a line, plain or .gz.
        out: File for the translations; by default beside the input, with .translated added.
        samples: Samples of attention, whose mean is each word's probability and whose differences
            are uncertainty; 0 for the posterior mean.
        beam: Hypotheses of beam search; 0 for as many as the run was tested with.
        batch: Sentences that are translated together; does not change the noise of samples.
        seed: Decides the noise of samples.
        json: Write an object for each line, with the uncertainty of the sentence and of each word.
        overwrite: Replace the output if it exists.
    """
    from rich.console import Console

    from babn.cli._progress import Bars
    from babn_paper.experiments.file_translation import Wish, translate_file

    ending = ".translated.jsonl" if json else ".translated"
    target = Path(out) if out else file.with_name(file.name + ending)
    wish = Wish(samples=samples, beam=beam, batch=batch, seed=seed, json=json)
    console = Console(highlight=False, stderr=True)
    with Bars(console) as bars:
        done = translate_file(run, file, target, wish, overwrite=overwrite, progress=bars)
    notes = [f"{done.lines} lines to {target}"]
    notes += [f"{done.empty} of them empty"] if done.empty else []
    notes += [f"{done.cut} too long and cut"] if done.cut else []
    console.print(", ".join(notes), markup=False, soft_wrap=True)
