"""`babn vqa`."""

from pathlib import Path
from typing import Annotated


def vqa(
    run: Path,
    *,
    image: Annotated[str | None, "FILE"] = None,
    question: Annotated[str | None, "TEXT"] = None,
    example: int | None = None,
    samples: int = 20,
    noise: float | None = None,
    seed: int = 0,
    out: Annotated[str | None, "FILE"] = None,
) -> None:
    """Answer a question about an image, with uncertainty and attention maps.

    Give either --image and --question, or --example for one of the run's test questions.

    Args:
        run: Folder of a finished run of vqa, vqa2, easy-vqa or daquar.
        image: A JPEG or PNG file; for vqa2 an .npz file with the features of its regions.
        question: The question, in words of the training data.
        example: Number of a test question, counted from 0.
        samples: Samples of attention.
        noise: Variance of Gaussian noise that is added to the image features.
        seed: Seed of samples and noise.
        out: File for a figure: .png, .svg or .pdf.
    """
    from babn.cli._errors import CommandError
    from babn_paper.cli._terminal import make_console, print_answer
    from babn_paper.visual.question import (
        QuestionSettings,
        answer_example,
        answer_file,
        load_run,
        read_questions,
        save_figure,
    )

    settings = QuestionSettings(samples=samples, noise=noise or 0.0, seed=seed)
    if settings.noise < 0:
        raise CommandError(f"--noise {noise} is invalid. Give a variance of at least 0.")
    if (example is None) == (image is None) or (image is None) != (question is None):
        raise CommandError("Give --image and --question, or --example.")
    task_model = load_run(run)
    if image is not None and question is not None:
        answer = answer_file(task_model, Path(image), question, settings)
    else:
        assert example is not None
        answer = answer_example(task_model, read_questions(task_model), example, settings)
    console = make_console()
    print_answer(console, answer)
    if out is not None:
        console.print(f"Figure: {save_figure(answer, Path(out))}")
