"""`babn vqa`."""

from pathlib import Path


def vqa(
    run: Path,
    *,
    image: str | None = None,
    question: str | None = None,
    example: int | None = None,
    samples: int = 20,
    noise: float | None = None,
    seed: int = 0,
    out: str | None = None,
) -> None:
    """Ask a trained model about an image: answers, how sure they are, and where it looked.

    Either --image and --question, or --example for one of the run's test questions.

    Args:
        run: Folder of a finished run of vqa2, easy-vqa or daquar.
        image: A JPEG or PNG file; for vqa2 an .npz with the features of its regions.
        question: The question, in words of the training data.
        example: Number of a test question, from 0 on.
        samples: Samples of attention.
        noise: Variance of Gaussian noise on the image's features.
        seed: Decides samples and noise.
        out: File for a picture of it, .png, .svg or .pdf.
    """
    from rich.console import Console

    from babn.cli._errors import CommandError
    from babn_paper.cli._visual_answer import show
    from babn_paper.visual.question import Asking, ask_file, load_run
    from babn_paper.visual.question_figure import ask_example, questions_of, save_figure

    asking = Asking(samples=samples, noise=noise or 0.0, seed=seed)
    if asking.noise < 0:
        raise CommandError(f"--noise {noise} is not possible. Give a variance from 0 on.")
    if (example is None) == (image is None) or (image is None) != (question is None):
        raise CommandError("Give --image and --question, or --example.")
    task_model = load_run(run)
    if image is not None and question is not None:
        look = ask_file(task_model, Path(image), question, asking)
    else:
        assert example is not None
        look = ask_example(task_model, questions_of(task_model), example, asking)
    console = Console(highlight=False)
    show(console, look)
    if out is not None:
        console.print(f"Picture: {save_figure(look, Path(out))}", markup=False, soft_wrap=True)
