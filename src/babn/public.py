"""The names of the package `babn`, which loads them on first use."""

from typing import TYPE_CHECKING, Any

from babn import distributions, errors, metrics, plots
from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.mc_dropout import McDropoutConfig
from babn.attention.method import MethodConfig
from babn.attention.softmax import SoftmaxConfig
from babn.conversion.checkpointing import checkpoint
from babn.conversion.convert import convert, inspect, revert
from babn.conversion.softmax_route import SoftmaxSpec, register_family
from babn.elbo import (
    KLAnnealing,
    belief_kl,
    get_kl_weight,
    kl_per_layer,
    set_kl_weight,
    weighted_kl,
)
from babn.evaluation.comparison import Comparison, compare
from babn.evaluation.decisions import Abstention, ConformalSets, fit_abstention, fit_conformal
from babn.evaluation.html_report import report
from babn.evaluation.map_content import MapContent, map_content
from babn.evaluation.noise_tuning import NoiseTuning, tune_noise
from babn.evaluation.novelty import NoveltyDetector, fit_novelty
from babn.evaluation.predictions import Evaluation, ensemble
from babn.evaluation.temperature_scaling import calibrate, fit_temperature
from babn.hub import model_card, push_to_hub
from babn.persistence import load, load_adapter, save_adapter
from babn.prediction.attention_maps import AttentionMap, attention_maps, attention_uncertainty
from babn.prediction.generate import generate
from babn.prediction.generation import Generation, SampledTexts, TokenUncertainty
from babn.prediction.predict import predict
from babn.prediction.result import Prediction
from babn.prediction.sampling import posterior_mean, recording_kl, sampling
from babn.prediction.stored_settings import (
    get_noise_level,
    get_residual,
    get_temperature,
    set_noise_level,
    set_residual,
    set_temperature,
)
from babn.standalone import AttentionInfo, BayesianAttention
from babn.training.freezing import freeze_base
from babn.training.processes import across_processes
from babn.viewer.document import View, view

RuleConfig = MethodConfig
"""Another name of `MethodConfig`."""

if TYPE_CHECKING:
    from babn.training.trainer import BeliefTrainer, BeliefTrainerMixin

__all__ = [
    "Abstention",
    "AttentionInfo",
    "AttentionMap",
    "BamConfig",
    "BayesianAttention",
    "BeliefConfig",
    "BeliefTrainer",
    "BeliefTrainerMixin",
    "Comparison",
    "ConformalSets",
    "Evaluation",
    "Generation",
    "KLAnnealing",
    "MapContent",
    "McDropoutConfig",
    "MethodConfig",
    "NoiseTuning",
    "NoveltyDetector",
    "Prediction",
    "RuleConfig",
    "SampledTexts",
    "SoftmaxConfig",
    "SoftmaxSpec",
    "TokenUncertainty",
    "View",
    "across_processes",
    "attention_maps",
    "attention_uncertainty",
    "belief_kl",
    "calibrate",
    "checkpoint",
    "compare",
    "convert",
    "distributions",
    "ensemble",
    "errors",
    "fit_abstention",
    "fit_conformal",
    "fit_novelty",
    "fit_temperature",
    "freeze_base",
    "generate",
    "get_kl_weight",
    "get_noise_level",
    "get_residual",
    "get_temperature",
    "inspect",
    "kl_per_layer",
    "load",
    "load_adapter",
    "map_content",
    "metrics",
    "model_card",
    "plots",
    "posterior_mean",
    "predict",
    "push_to_hub",
    "recording_kl",
    "register_family",
    "report",
    "revert",
    "sampling",
    "save_adapter",
    "set_kl_weight",
    "set_noise_level",
    "set_residual",
    "set_temperature",
    "tune_noise",
    "view",
    "weighted_kl",
]


def __getattr__(name: str) -> Any:
    """Loads classes that need transformers on first use."""
    if name in ("BeliefTrainer", "BeliefTrainerMixin"):
        need = f"babn.{name} needs transformers"
        return getattr(errors.import_extra("babn.training.trainer", need, "transformers"), name)
    raise AttributeError(f"module 'babn' has no attribute {name!r}")
