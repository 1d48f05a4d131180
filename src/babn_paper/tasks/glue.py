"""The eight tasks of GLUE (Wang et al. 2019) on which the paper fine-tunes.

Columns and the order of classes are those of `nyu-mll/glue` on the hub.
"""

from babn_paper.tasks.targets import Classes, Number
from babn_paper.tasks.text_task import TextTask

SENTENCES = ("sentence1", "sentence2")
ENTAILMENT = Classes(("entailment", "not_entailment"))

MRPC = TextTask(
    "mrpc",
    "MRPC",
    SENTENCES,
    Classes(("not_equivalent", "equivalent")),
    further=("F1",),
)

COLA = TextTask(
    "cola",
    "CoLA",
    ("sentence",),
    Classes(("unacceptable", "acceptable")),
    scores=("Matthews",),
    further=("accuracy",),
)

RTE = TextTask("rte", "RTE", SENTENCES, ENTAILMENT)

MNLI = TextTask(
    "mnli",
    "MNLI",
    ("premise", "hypothesis"),
    Classes(("entailment", "neutral", "contradiction")),
    splits={
        "train": "train",
        "dev": "validation_matched",
        "dev-mismatched": "validation_mismatched",
    },
    names={
        "dev": ("dev_matched", "dev"),
        "dev-mismatched": ("dev_mismatched", "dev-mismatched"),
    },
    test_parts=("dev", "dev-mismatched"),
)

QNLI = TextTask("qnli", "QNLI", ("question", "sentence"), ENTAILMENT)

QQP = TextTask(
    "qqp",
    "QQP",
    ("question1", "question2"),
    Classes(("not_duplicate", "duplicate")),
    further=("F1",),
)

SST2 = TextTask("sst2", "SST-2", ("sentence",), Classes(("negative", "positive")))

STSB = TextTask(
    "stsb",
    "STS-B",
    SENTENCES,
    Number(0, 5),
    scores=("Pearson",),
    further=("Spearman", "MSE"),
)

TASKS = {task.name: task for task in (MRPC, COLA, RTE, MNLI, QNLI, QQP, SST2, STSB)}
"""The tasks by name, in the order of the paper's Table 1."""
