"""Writes RESULTS.md from the results that are committed: python benchmarks/make_results.py."""

from collections.abc import Sequence
from pathlib import Path

from choose_settings import search_table

from babn.experiments.records import load_records
from babn.experiments.results_page import circumstances, page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

HEAD = """# Results

Everything here was measured with the commands shown; `python benchmarks/make_results.py` wrote this
page from the numbers in `benchmarks/results`. Where BABN is behind, the tables say so. Runs went
side by side on one GPU, so that the seconds of a step depend on what ran beside it and rules cannot
be compared by them; what rules cost is in `docs/kernels.md`.
"""

SECTIONS = {
    "minilm-glue": "Language understanding with MiniLM: small tasks",
    "minilm-smoothed": "Language understanding with MiniLM: small tasks, softer targets",
    "minilm-large": "Language understanding with MiniLM: larger tasks",
    "efficiency": "Parameters and seconds per step of ALBERT-base",
    "minilm-noise": "Amounts of noise at the paper's lengths of training",
    "minilm-routes": "Cheaper upward paths",
    "minilm-domains": "Generalisation across domains with MiniLM",
    "decomposable-domains": "Generalisation across domains with decomposable attention",
    "esim-domains": "Generalisation across domains with ESIM",
    "tatoeba": "Translation of Tatoeba, German to English",
    "vqa-easy": "Questions about images: easy-VQA",
    "vqa-daquar": "Questions about images: DAQUAR",
    "easy-vqa": "Questions about images: easy-VQA",
    "daquar": "Questions about images: DAQUAR",
    "vqa-ablation": "The upward path switched off, on questions about images",
}
"""Files of results that `babn sweep` and `babn reproduce` wrote, and their headings."""

SEARCHES = {
    "Searches for settings, on development data": [
        f"minilm-search{suffix}" for suffix in ("", "-2", "-3", "-4", "-5")
    ],
    "Search for settings of questions about images, on development data": ["vqa-search"],
}
"""Files of searches, which make one table together."""

EXPLANATION = """\
Score at the posterior mean, as a percentage, and NLL (sampled; softmax has the mean alone), both in
the mean over tasks. The best score is on top; bold is what `benchmarks/choose_settings.py` chooses:
the smallest NLL among scores within a fifth of a point of the best. Fields that are not named are
the same in all runs of a rule.
"""
COPY = """
MiniLM's weights were read from a copy in half precision. Paths of folders were taken out of the
commands and records afterwards.
"""
HOW = f"""{COPY.rstrip()} Runs went side by side under a limit of time, the small and the larger
tasks together (seven and eight at a time): what is missing was cut off by it.
"""
DROPOUT = """
The search tried softmax with and without dropout and chose none; BAM and BABN were searched and run
with the model's own rate of 0.1 alone. Part of their distance to softmax, in both directions, is
dropout's. All rules were best at the smallest learning rate, and at rho = 12 the noise of an
attention weight begins at a tenth of it, so that samples hardly differ from the mean.
The second and third searches, below, repair this, and all rules come out alike in score. These
figures are from before them.
"""
SECOND = """
Without dropout BAM is where softmax is (both searches together: 57.1 and 57.1 in the mean score of
the three tasks, NLL 0.685 and 0.685), at so small a weight of the divergence and so little noise
that it hardly differs from softmax. BABN was tried without dropout only with a rate of 1e-3 for its
own parameters and a weight of 0.1, which were wrong: BAM loses five points by that weight too. The
upward path over 128 keys grows at that rate until shapes k reach their floor and the divergence
overflows; of the settings with rho = 12, one seed of RTE ended in NaN each time, the
four runs that are missing. So BABN's best setting of both searches is one of the first (55.2,
0.629), and with dropout BAM's best was the same (55.4, 0.628).
"""
THIRD = """
Without dropout all three rules reach the same score, 57.2 to 57.3 in the mean of the three tasks:
softmax with softer targets at a rate of 4e-5 (in the first search 57.1 without them, at 5e-5), both
random ones with little noise at 5e-5. More noise costs score and makes NLL
better, for BAM (k from 10 to 1: 57.3 to 52.1, 0.683 to 0.625) as for BABN (rho from 12 to 0.5: 57.2
to 52.3, 0.685 to 0.611). Softer targets do more for softmax (0.597) and cost nothing; they were
tried for softmax alone, so that rules are not to be compared by NLL here.
`benchmarks/sweeps/minilm-search-4.toml` is to try them for the others.
"""
EASY_VQA = """
Paths of folders were taken out of the commands and records afterwards, and what is missing was cut
off by a limit of time; the ablation ran beside it. Learning goes in leaps: before the last of them
a run stays near 93.5 %, since it answers yes/no questions no better than 91 %. Two of three runs of
softmax and of BAM made that leap within these 12 epochs, and both of BABN that came to their end;
of two with the same settings in the ablation below one did. So differences on the original data are
about when that happens. On noisy data softmax is ahead of BABN, by less than seeds differ, and BAM
is behind both.
"""
DAQUAR = """
Noise on the images costs no rule anything: all of them answer by the question, and some 800
photographs are too few for convolutions from scratch.
"""
ABLATION = """
What is missing was cut off by a limit of time. Without rho the shape k of a weight is a
probability, most of them near zero. Noise then leaves nothing of attention, and all answers are
worse than one for all questions.
"""
KEPT = """
NLL is that of the ten most probable answers, so that a model whose ten miss the right one is not
charged for it: small values without rho are no merit. By now right answers are always kept
(`benchmarks/sweeps/vqa-easy.toml` and `vqa-daquar.toml` are to replace these runs).
"""
REMARKS = {
    "minilm-glue": HOW + DROPOUT,
    "minilm-large": HOW + DROPOUT,
    "minilm-search": HOW,
    "minilm-search-2": COPY + SECOND,
    "minilm-search-3": COPY + THIRD,
    "easy-vqa": EASY_VQA + KEPT,
    "daquar": DAQUAR + KEPT,
    "vqa-ablation": ABLATION + KEPT,
}
"""What has to be known to read a section."""


def main() -> None:
    """Writes the page."""
    (ROOT / "RESULTS.md").write_text(results_page(), encoding="utf-8")


def results_page() -> str:
    """One section for each file, or for the searches that belong together."""
    found = [section(name, title) for name, title in SECTIONS.items() if _file(name).exists()]
    searches = [
        search_section(title, here)
        for title, names in SEARCHES.items()
        if (here := [name for name in names if _file(name).exists()])
    ]
    return "\n".join([HEAD, *found, *searches])


def section(name: str, title: str) -> str:
    """The results of a grid."""
    records, command = load_records(_file(name))
    return page(records, title, command) + REMARKS.get(name, "")


def search_section(title: str, names: Sequence[str]) -> str:
    """What was tried in searches, without the results of each task in full."""
    records, commands = [], []
    for name in names:
        own, command = load_records(_file(name))
        records += own
        commands.append(command)
    shown = "\n".join(commands)
    lines = "\n\n".join(circumstances(records))
    table = search_table(records).markdown()
    parts = [f"## {title}\n", f"```console\n{shown}\n```\n", EXPLANATION, table, f"{lines}\n"]
    return "\n".join(parts) + REMARKS.get(title, "")


def _file(name: str) -> Path:
    return RESULTS / f"{name}.json"


if __name__ == "__main__":
    main()
