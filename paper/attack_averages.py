"""Failed attacks in the mean over tasks, once and with the success repeated."""

import statistics
from collections.abc import Sequence

from babn.evaluation.tables import Table
from babn_paper.attacks.attack_records import failed_twice
from babn_paper.attacks.attack_table import Description, methods_of
from babn_paper.attacks.plan import RECIPES, THREATS
from babn_paper.experiments.naming import attention_name
from babn_paper.experiments.result_tables import NONE


def averages_table(found: Sequence[Description]) -> Table:
    """Rows are attention and threat; each recipe has failed attacks, once and repeated."""
    rows = []
    for method, threat in ((method, threat) for method in methods_of(found) for threat in THREATS):
        own = [e for e in found if (e["method"], e["identity"]["threat"]) == (method, threat)]
        if own:
            cells = [_cell([e for e in own if e["identity"]["recipe"] == name]) for name in RECIPES]
            rows.append([attention_name(method), threat, *cells])
    return Table(["attention", "threat", *RECIPES.values()], rows)


def _cell(attacks: Sequence[Description]) -> str:
    if not attacks:
        return NONE
    once = statistics.fmean(each["summary"]["failed_share"] for each in attacks)
    twice = statistics.fmean(failed_twice(each["summary"]) for each in attacks)
    return f"{100 * once:.1f} / {100 * twice:.1f}"
