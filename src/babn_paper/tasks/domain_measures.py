"""What follows from a model's answers in its own domain and in another one together."""

from collections.abc import Mapping

from babn.evaluation import Evaluation
from babn.evaluation.temperature_scaling import fit_temperature
from babn.metrics import METRICS, auroc, fpr95
from babn.prediction.predict import Prediction

TEMPERED = ("NLL", "ECE-10")


def across_domains(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    """Measures of `"test"` and `"out"` that need other parts as well.

    Measures with `+ TS (in domain)` are those after temperature scaling with the temperature that
    fits `"dev"`, as Desai & Durrett (2020) scale. Those of `OOD` say how well uncertainty tells
    `"out"` from `"test"`.

    Args:
        evaluations: Answers by part; measures of parts that are not there are left out.
    """
    judged = {part: evaluations[part] for part in ("test", "out") if part in evaluations}
    found: dict[str, dict[str, float]] = {part: {} for part in judged}
    if "dev" in evaluations:
        dev = evaluations["dev"]
        temperature = fit_temperature(dev.prediction, dev.labels)
        for part, each in judged.items():
            found[part] |= _tempered(each, temperature)
    if len(judged) == 2:
        found["out"] |= _detection(judged["test"].prediction, judged["out"].prediction)
    return found


def _tempered(evaluation: Evaluation, temperature: float) -> dict[str, float]:
    prediction = evaluation.prediction.tempered(temperature)
    return {
        f"{name} + TS (in domain)": float(METRICS[name].function(prediction, evaluation.labels))
        for name in TEMPERED
    }


def _detection(inside: Prediction, outside: Prediction) -> dict[str, float]:
    found = {
        "OOD AUROC (entropy)": auroc(inside.entropy, outside.entropy),
        "OOD FPR95 (entropy)": fpr95(inside.entropy, outside.entropy),
    }
    if len(inside.sample_logits) > 1:
        found["OOD AUROC (mutual information)"] = auroc(
            inside.mutual_information, outside.mutual_information
        )
    return found
