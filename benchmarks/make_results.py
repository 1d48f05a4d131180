"""Writes RESULTS.md from the results that are committed: python benchmarks/make_results.py."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from choose_settings import search_table
from mean_over_tasks import mean_table

from babn.evaluation.tables import Table
from babn_paper.attacks.attack_table import attacks_page
from babn_paper.experiments.records import Record, load_records
from babn_paper.experiments.results_page import circumstances, page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

HEAD = """# Results

Everything here was measured with the commands shown; `python benchmarks/make_results.py` wrote this
page from the numbers in `benchmarks/results`. Where BABN is behind, the tables say so. Most runs
went side by side on one GPU, so that the seconds of a step depend on what ran beside it and rules
cannot be compared by them; what rules cost is in the table for ALBERT-base, whose runs had the GPU
to themselves, and in `docs/kernels.md`.
"""

SECTIONS = {
    "minilm-glue": "Language understanding with MiniLM: small tasks",
    "minilm-smoothed": "Language understanding with MiniLM: small tasks, softer targets",
    "minilm-large": "Language understanding with MiniLM: larger tasks",
    "efficiency": "Parameters and seconds per step of ALBERT-base",
    "minilm-noise": "Amounts of noise at the paper's lengths of training",
    "minilm-combined": "Softer targets and noise together",
    "minilm-dropout": "Dropout and noise together",
    "minilm-routes": "Cheaper upward paths",
    "minilm-domains": "Generalisation across domains with MiniLM",
    "decomposable-domains": "Generalisation across domains with decomposable attention",
    "esim-domains": "Generalisation across domains with ESIM",
    "tatoeba": "Translation of Tatoeba, German to English",
    "vqa-easy": "Questions about images: easy-VQA",
    "vqa-daquar": "Questions about images: DAQUAR",
}
"""Files of results that `babn sweep` and `babn reproduce` wrote, and their headings."""

ATTACKS = "minilm-attacked"
"""File of results that `babn attack` wrote."""

SUMMARISED = {
    f"minilm-{name}" for name in ("glue", "smoothed", "noise", "combined", "dropout", "routes")
}
"""Grids whose results are shown in the mean over tasks as well."""

SEARCHES = {
    "Searches for settings, on development data": [
        f"minilm-search{suffix}" for suffix in ("", "-2", "-3", "-4", "-5")
    ],
    "Amounts of noise of decomposable attention, on development data": ["decomposable-noise"],
}
"""Files of searches, which make one table together."""

LENGTHS = ("domains-search", "decomposable-search", "esim-search", "esim-search-2")
"""Files of searches for lengths of training in two domains."""

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
GLUE = """
Settings are the best that the first three searches below found with targets as they are (BAM with
a weight of 0.003 for the divergence, where 0.0003 came out a fifth of a point ahead). All rules
score alike, by less than seeds differ. The searches chose so little noise that NLL and ECE stay
where they are; the ensemble is ahead in both. Softmax was run apart from the others.
"""
SMOOTHED = """
Softer targets take three tenths off the NLL of every rule, and no more score than seeds differ by.
Samples of BABN have the smallest NLL and ECE of single models in all three tasks, by about as much
as seeds differ; the ensemble is further ahead. Softmax was run apart from the others.
"""
LARGE = """
No rule differs from another by more than seeds do. Softmax was run apart from the others; on SQuAD
without CUDA graphs, a day earlier.
"""
NOISE = """
Trained for so long on targets as they are, softmax becomes very sure of itself. Noise takes part of
that back, if the model is asked by samples: with rho = 1.5 in all layers BABN's NLL falls from
1.27 to 1.10 and its score by a point. In the last three layers alone, with much more noise in them,
NLL falls as far and score by half of that, which is within what seeds differ by. Softer targets do
more than either.
"""
EFFICIENCY = """
Steps of 32 texts of 512 tokens in bfloat16, optimiser included, compiled for none of the rules.
BAM's take 1.26 times softmax's and BABN's 1.90 times; in the paper it is 1.35 and 1.58.
"""
COMBINED = """
Samples of BABN with rho = 1.5 have softmax's score, and smaller NLL and ECE by more than seeds
differ (0.690 against 0.719, 15.8 against 18.0), all of it on MRPC and CoLA: on RTE, where all rules
are far too sure, they are alike. BAM with as much noise has the same NLL, and scores a point less,
which is as much as its seeds differ. Noise in the last three layers alone does less here. The
ensemble is further ahead, at five times the training.
"""
ROUTES = """
Maps of rank 4 or 16, maps over heads, and states that two or three layers share answer as well as
full maps over keys.
"""
DROPOUT = """
Asked with dropout on, a single model has a smaller NLL and ECE than the ensemble of five, whatever
its rule. Noise of attention adds little to that: NLL falls by less than seeds differ. Beside models
without dropout, as above, scores are a point or two lower.
"""
FOUND = """
- Without dropout all rules reach the same score, and the choice among the best is by chance: seeds
  move these means by half a point and more.
- Noise costs score and makes NLL better, as dropout does for softmax: from k = 10 to 1 BAM goes
  from 57 to 52 and from 0.68 to 0.63, from rho = 12 to 0.5 BABN from 57 to 52 and from 0.69 to
  0.61. In the last three layers alone the same NLL costs half as much score.
- Softer targets (0.1) take NLL to 0.60, whatever the rule, and cost BAM and BABN a point at most.
- A weight of the divergence of 0.03 is worse than 0.003 in every pair; 0.0003 is no better.
- A rate of 1e-3 for BABN's own parameters is too high: a step of Adam moves what a map over n keys
  gives by up to n times the rate, shapes reach their floor (1e-4 then, 0.1 by now) and the
  divergence overflows. Four runs of the second search, all of RTE with rho = 12, ended so and are
  missing. The model's own rate and a tenth of it do equally well; ten times it costs a point.
"""
DOMAINS = """
The pairs from Twitter are the URL corpus of Lan et al. (2017). Two parts of HellaSWAG stand in for
SWAG and HellaSWAG.
"""
MINILM_DOMAINS = """
- Scores are alike but for SNLI, where BAM and BABN with little noise gain three quarters of a
  point. Their noise takes the place of dropout on attention weights.
- In the other domain softmax with a temperature has an ECE of 5.3, 4.5 and 3.6. Samples of BABN
  have 5.7, 7.3 and 3.5 with little noise, 5.5, 6.4 and 2.9 with much of it, and 3.2, 2.7 and 3.1
  with softer targets besides. Softer targets alone have 2.9, 3.1 and 2.6. Dropout at test time does
  for softmax what noise does for BABN, or more.
- With targets alike, neither BAM nor BABN has the NLL of the ensemble in the own domain. In the
  other one samples of BAM with much noise do, on Twitter alone, and those of both if dropout is on
  besides.
- Entropy tells MNLI and WikiHow from the own domain, with AUROCs from 0.75 to 0.85. All models are
  surer of the pairs from Twitter than of their own. Mutual information is a sign on MNLI alone, of
  BABN a better one than of dropout, and a worse one than entropy.
"""
SMALL_DOMAINS = """
Vectors of words are learnt. Both rules have as much noise as the paper's rho of 1.5 stands for;
samples and mean differ little, since these models attend once. What rules come to beside each other
is in `docs/domains.md`.
"""
TATOEBA = """
BAM is ahead of softmax by 1.1 BLEU and by 0.9 in the other domain, with its default of little
noise; with much of it, by half of that. BABN is a little behind softmax with either, by no more
than seeds differ, and its samples translate as its mean does. In the paper both are ahead, BABN
further. The two kinds of variational attention, which gain in the paper, lose 3 to 4 BLEU here: the
first seed ends 1 to 2 below softmax, the others 5. Six epochs of large batches are 1,566 steps,
fewer than the paper's batches of 6 sentences make in a tenth of one epoch; whether that is why was
not tried. The best sign of a bad translation is its NLL, whatever the rule; mutual information
tells less, and that of attention less than that of dropout.
"""
EASY_VQA = """
On original images softmax, BAM and BABN come to the end of the task. On noisy ones softmax and BABN
are alike within what seeds differ by, and BAM is seven or eight points behind. Samples take BABN's
NLL there from 1.87 to 1.59, and dropout that of softmax from 1.60 to 1.10. Of the ablation, both
weights of the upward path are best: without sigma six points are lost on noisy images, without rho
eight, and thirteen on original ones. In the paper, too, rho = 0 loses most.
"""
DAQUAR = """
All rules answer alike, and noise on the features costs none of them more than 0.6 points, but
without rho three points are lost, and four with noise. Dropout is by far the best calibrated of
what answers as well.
"""
ATTACKED = """
The models are those of `babn sweep benchmarks/sweeps/minilm-attacked.toml --data DIR --jobs 14`,
with as much noise as the paper's rho of 1.5 stands for and without dropout. The masked language
model is that of `python benchmarks/train_masked_lm.py minilm TEXT.txt.gz --out masked_lm --steps
3000` on passages of Wikipedia, and fills 46 % of gaps right. What the table comes to is in
`docs/attacks.md`. RTE's models are little better than guessing, and few changes turn their answers.
"""
REMARKS = {
    "minilm-attacked": COPY + ATTACKED,
    "minilm-glue": COPY + GLUE,
    "minilm-smoothed": COPY + SMOOTHED,
    "minilm-large": COPY + LARGE,
    "efficiency": EFFICIENCY,
    "minilm-noise": COPY + NOISE,
    "minilm-combined": COPY + COMBINED,
    "minilm-dropout": COPY + DROPOUT,
    "minilm-routes": COPY + ROUTES,
    "minilm-domains": COPY + DOMAINS + MINILM_DOMAINS,
    "decomposable-domains": DOMAINS + SMALL_DOMAINS,
    "esim-domains": DOMAINS + SMALL_DOMAINS,
    "tatoeba": TATOEBA,
    "vqa-easy": EASY_VQA,
    "vqa-daquar": DAQUAR,
    "Searches for settings, on development data": COPY + FOUND,
    "Amounts of noise of decomposable attention, on development data": """
Neither rule has a better amount: BAM is ahead with little noise, BABN with much of it, and both by
about as much as two trainings with one seed differ by on two machines.
""",
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
    return "\n".join([HEAD, *found, *attacks(), *searches, *lengths_section()])


def attacks() -> list[str]:
    """What `babn attack` wrote, if it is there."""
    file = _file(ATTACKS)
    if not file.exists():
        return []
    results = json.loads(file.read_text(encoding="utf-8"))
    text = attacks_page(
        results["attacks"], "Attacks on MiniLM by changed words", results["command"]
    )
    return [text + REMARKS.get(ATTACKS, "")]


def section(name: str, title: str) -> str:
    """The results of a grid."""
    records, command = load_records(_file(name))
    records = [without_idle_dropout(record) for record in records]
    parts = [page(records, title, command)]
    if name in SUMMARISED:
        table = mean_table(records)
        parts += [f"{table.caption}\n", table.markdown()]
    return "\n".join(parts) + REMARKS.get(name, "")


def without_idle_dropout(record: Record) -> Record:
    """A run without samples of a dropout that was switched off, which runs had at first."""
    if record.experiment["dropout"] or not record.results:
        return record
    measures = {
        part: {mode: found for mode, found in modes.items() if mode != "dropout"}
        for part, modes in record.results["measures"].items()
    }
    return replace(record, results={**record.results, "measures": measures})


def search_section(title: str, names: Sequence[str]) -> str:
    """What was tried in searches, without the results of each task in full."""
    records, head = searched(title, names)
    lines = "\n\n".join(circumstances(records))
    parts = [head, EXPLANATION, search_table(records).markdown(), f"{lines}\n"]
    return "\n".join(parts) + REMARKS.get(title, "")


def lengths_section() -> list[str]:
    """How long and how fast models were trained on trial, if they were."""
    names = [name for name in LENGTHS if _file(name).exists()]
    if not names:
        return []
    records, head = searched("Lengths of training in two domains, on development data", names)
    table, lines = lengths_table(records), "\n\n".join(circumstances(records))
    return ["\n".join([head, f"{table.caption}\n", table.markdown(), f"{lines}\n"])]


def lengths_table(records: Sequence[Record]) -> Table:
    """What softmax comes to in its own domain, with the smallest NLL of a model and task marked."""
    rows: list[list[str]] = []
    best: dict[tuple[str, str], tuple[float, int]] = {}
    for place, record in enumerate(each for each in records if each.results):
        fields, found = record.experiment, record.of("dev", "mean")
        rate = f"{fields['learning_rate']:g}"
        numbers = [f"{found['accuracy']:.1%}".rstrip("%"), f"{found['NLL']:.3f}"]
        rows.append([fields["model"], record.title, f"{fields['epochs']:g}", rate, *numbers])
        cell = fields["model"], fields["task"]
        best[cell] = min(best.get(cell, (found["NLL"], place)), (found["NLL"], place))
    head = ["model", "task", "epochs", "learning rate", "accuracy", "NLL"]
    caption = "Softmax on development data of its own domain; grids train all rules as is bold."
    return Table(head, rows, caption, frozenset((place, 5) for _, place in best.values()))


def searched(title: str, names: Sequence[str]) -> tuple[list[Record], str]:
    """The runs of several files, and a heading with the commands that made them."""
    found = [load_records(_file(name)) for name in names]
    shown = "\n".join(command for _, command in found)
    records = [record for own, _ in found for record in own]
    return records, f"## {title}\n\n```console\n{shown}\n```\n"


def _file(name: str) -> Path:
    return RESULTS / f"{name}.json"


if __name__ == "__main__":
    main()
