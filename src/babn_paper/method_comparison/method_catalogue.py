"""The methods that are compared, grouped by the models that they train."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.conversion.convert import convert
from babn.errors import ConfigError, nearest
from babn_paper.method_comparison.adapters import (
    LORA,
    MONTECLORA,
    PVERA,
    RANDOM_LORA,
    RandomAdapter,
    merge_and_convert,
)
from babn_paper.method_comparison.basic_methods import (
    Deterministic,
    Ensemble,
    McDropout,
    WithDistance,
)
from babn_paper.method_comparison.interface import Method, TunedMethod
from babn_paper.method_comparison.laplace import LastLayerLaplace
from babn_paper.method_comparison.random_attention import RandomAttention, attention
from babn_paper.method_comparison.sngp import NoisySngp, Sngp
from babn_paper.method_comparison.trained_models import Variant

SMOOTHED = Variant("label smoothing", label_smoothing=0.1)
BAM = attention("BAM", BamConfig())
PAPER = attention("BABN as published", BeliefConfig.paper())
PAIRS = attention("BABN pairs", BeliefConfig.pairs())
KEYS = attention("BABN", BeliefConfig())

TS = " + TS"
"""Suffix of methods with temperature scaling."""

_FEW = 4
"""Samples of each member of an ensemble of random models, 20 in all."""

_GROUPS: dict[str, tuple[Method, ...]] = {
    "post-hoc": (
        Deterministic("deterministic"),
        WithDistance("deterministic, distance"),
        McDropout("MC dropout"),
        LastLayerLaplace("Laplace"),
        RandomAttention("BABN, not trained", after=convert),
    ),
    "ensembles": (
        Ensemble("ensemble", Deterministic("member")),
        Ensemble(
            "ensemble, BABN noise",
            RandomAttention("member", after=convert, samples=_FEW),
        ),
    ),
    "trained": (
        Deterministic("label smoothing", variant=SMOOTHED),
        Sngp("SNGP"),
        NoisySngp("SNGP, BABN noise"),
        RandomAttention("BAM", BAM, tuned=False),
        RandomAttention("BABN as published", PAPER, tuned=False),
        RandomAttention("BABN pairs", PAIRS),
        RandomAttention("BABN", KEYS),
    ),
    "adapters": (
        Deterministic("LoRA", variant=LORA),
        Ensemble("LoRA ensemble", Deterministic("member", variant=LORA)),
        RandomAdapter("PVeRA", variant=PVERA),
        RandomAdapter("MonteCLoRA", variant=MONTECLORA),
        RandomAttention("LoRA, BABN not trained", LORA, after=merge_and_convert),
        RandomAttention("LoRA, BABN", RANDOM_LORA),
    ),
}

GROUPS: dict[str, tuple[Method, ...]] = {
    group: tuple(
        made
        for method in methods
        for made in (method, replace(method, name=method.name + TS, temperature=True))  # type: ignore[type-var]
    )
    for group, methods in _GROUPS.items()
}
"""Every method, without and with temperature scaling, grouped by what it trains: the deterministic
model alone, several of these, another model, or adapters."""


def is_installed(method: Method) -> bool:
    """Whether the packages that a method needs are installed."""
    if isinstance(method, LastLayerLaplace):
        return find_spec("laplace") is not None
    if method.name in {each.name for each in GROUPS["adapters"]}:
        if find_spec("peft") is None:
            return False
        import peft

        needs = {"PVeRA": "PveraConfig", "MonteCLoRA": "MontecloraConfig"}
        return hasattr(peft, needs.get(method.name.removesuffix(TS), "LoraConfig"))
    return True


def shortened(method: Any) -> Method:
    """The method with few samples and members, for a trial."""
    short = {"samples": 4, "size": 2}
    fields: dict[str, Any] = {n: v for n, v in short.items() if hasattr(method, n)}
    if isinstance(method, Ensemble):
        fields["member"] = shortened(method.member)
    found: Method = replace(method, **fields)
    return found


def untuned(method: Any) -> Method:
    """The method with a fixed setting, with noise, to measure only what it costs."""
    fields: dict[str, Any] = {}
    if isinstance(method, Ensemble):
        fields["member"] = untuned(method.member)
    elif isinstance(method, RandomAttention):
        fields["tuned"] = False
    elif isinstance(method, TunedMethod):
        fields["candidates"] = method.candidates[-1:]
    found: Method = replace(method, **fields)
    return found


def find_methods(names: Sequence[str]) -> list[Method]:
    """The methods with these names, or of the groups with these names."""
    known = {method.name: method for methods in GROUPS.values() for method in methods}
    found: dict[str, Method] = {}
    for name in names:
        if name not in known and name not in GROUPS:
            every = [*GROUPS, *known]
            hint = nearest(name, every, f"Choose from {', '.join(every)}.")
            raise ConfigError(f"method {name!r} is not known. {hint}")
        found |= {each.name: each for each in GROUPS.get(name, ()) or (known[name],)}
    return list(found.values())
