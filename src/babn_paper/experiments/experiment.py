"""The configuration of an experiment, which determines its result."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from babn.attention.belief import BeliefConfig
from babn.attention.method import MethodConfig
from babn.elbo import KLAnnealing
from babn.errors import ConfigError, nearest
from babn.validation import LARGEST, MOST, check_at_least, check_choices, check_count, shown

LATENT_METHODS = ("va-enum", "va-sample")
"""Variational attention with enumerated or with sampled alignments."""


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Settings of variational attention ([Deng et al. 2018](https://arxiv.org/abs/1807.03756)).

    Attributes:
        method: `"va-enum"` or `"va-sample"`.
        kl_weight: KL weight at the end of annealing; 1 gives the ELBO.
        estimator: Gradient estimator of `"va-sample"`: `"reinforce"` or `"gumbel"`.
        baseline: Whether `"reinforce"` subtracts the log-probability under soft attention.
        train_samples: Alignments that `"va-sample"` samples for each target position.
        gumbel_temperature: Temperature of `"gumbel"`.
        prediction: Whether predicted probabilities are averaged over all alignments (`"enum"`) or
            computed at the mean alignment (`"soft"`).
    """

    method: Literal["va-enum", "va-sample"]
    kl_weight: float = 1.0
    estimator: Literal["reinforce", "gumbel"] = "reinforce"
    baseline: bool = True
    train_samples: int = 1
    gumbel_temperature: float = 0.5
    prediction: Literal["enum", "soft"] = "enum"

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)
        check_at_least("kl_weight", self.kl_weight, 0.0)
        check_at_least("gumbel_temperature", self.gumbel_temperature, 0.0, strictly=True)
        check_count("train_samples", self.train_samples)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LatentConfig":
        """Builds the settings from plain values, such as those of a file."""
        if unknown := sorted(set(values) - {field.name for field in fields(cls)}):
            raise ConfigError(f"{cls.__name__} has no field {', '.join(unknown)}.")
        return cls(**values)

    def sizes(self) -> dict[str, Any]:
        """The corresponding fields of the translation model's configuration."""
        values = asdict(self)
        return {"attention": values.pop("method"), **values}


PRESETS: dict[str, Callable[[], BeliefConfig]] = {
    "default": BeliefConfig,
    "paper": BeliefConfig.paper,
    "released": BeliefConfig.released_settings,
}
"""This library's configuration, the published method's and the released code's, by name."""

PAIR_MODELS = ("decomposable", "esim")
"""Models of text pairs, built with random weights."""

TRANSLATOR = "lstm"
"""The translation model, built with random weights."""

VISUAL_MODELS = ("mcan", "mcan-small")
"""Models for visual question answering, built with random weights."""

FORMER_NAMES = {"rule": "method", "rules": "methods"}
"""Former names of fields, which older files have."""


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an experiment, a grid or a record, with former names replaced by current ones."""
    for former, name in FORMER_NAMES.items():
        if former in values and name in values:
            raise ConfigError(
                f"{former} is the former name of {name}, and both are given. Leave {former} out."
            )
    return {FORMER_NAMES.get(name, name): value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Task, model, attention method, hyperparameters and seed of one experiment.

    Attributes:
        task: Name of the task.
        model: Name on the Hugging Face hub, or a folder; or a model with random weights: `"small"`
            or `"albert-base"`, `"decomposable"` or `"esim"` for text pairs, `"lstm"` for
            translation, `"mcan"` or `"mcan-small"` for visual question answering.
        sizes: Fields of the configuration of `"lstm"` or `"mcan"` that differ from the defaults.
        options: Options of the task that differ from the defaults, such as `beam` of translation.
        vectors: File of word vectors for `"decomposable"`, `"esim"` or `"mcan"`: the text format of
            GloVe or word2vec, plain or `.gz`, or `.npz`; `""` for randomly initialized vectors.
        method: Attention method: `"softmax"`, `"bam"`, `"belief"` or `"mc-dropout"`; for `"lstm"`
            also variational attention, `"va-enum"` or `"va-sample"`.
        preset: For `method="belief"`, the settings to start from: `"paper"` for the method as
            published, `"default"` for this library's default, `"released"` for the settings of the
            authors' code; `""` for one variable per query and key with normalised scores and rho
            12 (`BeliefConfig.pairs`).
        settings: Fields of the method's configuration that differ from the preset.
        paper: The paper's value of each measure, as printed there.
        seed: Seed of new weights, order of examples and all noise.
        data: `"hub"`, `"builtin"`, or a folder with data.
        steps: Optimizer steps; 0 to train for `epochs`.
        epochs: Epochs of training if `steps` is 0.
        batch_size: Examples in one step.
        batch_tokens: Tokens in one step, padding included, counted in the longer text of a pair; 0
            for batches of `batch_size` examples.
        accumulation: Number of micro-batches that a batch is split into, to save memory.
        learning_rate: Peak learning rate.
        belief_rate: Peak learning rate of the parameters that conversion adds; 0 for the same.
        warmup_steps: Steps of linear warmup, after which the rate decays linearly to zero.
        warmup: Warmup as a fraction of all steps, if `warmup_steps` is 0.
        rate_schedule: `"linear"` for linear warmup and decay, or `"mcan"`: in thirteenths of
            training, warmup over 3, constant until the 10th, then divided by 5 after every second.
        beta2: AdamW's decay rate of squared gradients.
        weight_decay: AdamW's weight decay.
        clip: Gradient norm for clipping; 0 for no clipping.
        max_length: Number of tokens to which texts are truncated; 0 for the task's default.
        full_length: Whether training pads every batch to `max_length`, so that all steps cost the
            same; otherwise to its longest text.
        dropout: Dropout rate of the encoder; -1 for the model's default.
        classifier_dropout: Dropout rate before the classifier; -1 for the model's default.
        label_smoothing: Fraction of the target distribution that is spread over all classes.
        kl_schedule: Annealing of the KL weight: `"linear"`, `"sigmoid"` or `"constant"`.
        kl_warmup: Fraction of training over which the KL weight grows.
        precision: `"float32"`, or `"bfloat16"` for mixed precision.
        graphs: Whether steps are recorded as CUDA graphs and replayed, which saves the cost of
            kernel launches; no effect on a CPU or with several processes. Not for models that pack
            texts: `"lstm"`, `"decomposable"`, `"esim"`.
        buckets: Number of batches whose examples are sorted by length together; 1 for no sorting.
        samples: Samples of attention in sampled mode.
        checkpoint_every: Steps between checkpoints; 0 for 20 checkpoints in total.
        test_dropout: Whether models with random attention are also tested by samples of attention
            with dropout on. Softmax models are always tested with Monte Carlo dropout.
        test_every: Steps between tests at the posterior mean during training; 0 for none.
        select_epoch: Whether the parameters after the epoch with the lowest NLL on the development
            data, at the posterior mean, are kept, so that `epochs` is a maximum. For tasks whose
            development data are not their test data.
        keep_model: Whether the trained model is saved; without it only predictions are.
    """

    task: str
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    vectors: str = ""
    method: str = "belief"
    preset: Literal["", "default", "paper", "released"] = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    data: str = "hub"
    steps: int = 0
    epochs: float = 3.0
    batch_size: int = 32
    batch_tokens: int = 0
    accumulation: int = 1
    learning_rate: float = 2e-5
    belief_rate: float = 0.0
    warmup_steps: int = 0
    warmup: float = 0.1
    rate_schedule: Literal["linear", "mcan"] = "linear"
    beta2: float = 0.999
    weight_decay: float = 0.01
    clip: float = 1.0
    max_length: int = 0
    full_length: bool = False
    dropout: float = -1.0
    classifier_dropout: float = -1.0
    label_smoothing: float = 0.0
    kl_schedule: Literal["linear", "sigmoid", "constant"] = "linear"
    kl_warmup: float = 0.5
    precision: Literal["float32", "bfloat16"] = "float32"
    graphs: bool = False
    buckets: int = 8
    samples: int = 20
    checkpoint_every: int = 0
    test_dropout: bool = False
    test_every: int = 0
    select_epoch: bool = False
    keep_model: bool = True

    def __post_init__(self) -> None:
        """Validates the fields."""
        _check_types(self)
        check_choices(self)
        for name in POSITIVE:
            check_at_least(name, getattr(self, name), 0.0, strictly=True)
        for name in NOT_NEGATIVE:
            check_at_least(name, getattr(self, name), 0.0)
        for name in RATES:
            rate, has_default = getattr(self, name), "dropout" in name
            if not 0 <= rate < 1 and not (has_default and rate == -1):
                other = ", or -1 for the model's default" if has_default else ""
                raise ConfigError(f"{name}={rate!r} is invalid. Give a rate below 1{other}.")
        if self.batch_size % self.accumulation:
            raise ConfigError(
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}."
            )
        if self.graphs and self.model in (*PAIR_MODELS, TRANSLATOR):
            raise ConfigError(
                f"graphs=true is not supported with model={self.model!r}, which packs texts by "
                "their lengths. Set it to false."
            )
        if self.vectors:
            self._check_model("vectors", *PAIR_MODELS, *VISUAL_MODELS)
        if self.sizes:
            self._check_model("sizes", *VISUAL_MODELS, TRANSLATOR)
        if self.method in LATENT_METHODS:
            self._check_model("method", TRANSLATOR)
        self.annealing()

    def _check_model(self, name: str, *models: str) -> None:
        """Raises if a field has a value that only other models allow."""
        if self.model not in models:
            raise ConfigError(
                f"{name}={getattr(self, name)!r} does not apply to model={self.model!r}, only to "
                f"{' or '.join(models)}."
            )

    def method_config(self) -> MethodConfig | LatentConfig:
        """The configuration of the attention method."""
        if self.method in LATENT_METHODS:
            return LatentConfig.from_dict({"method": self.method, **self.settings})
        if not self.preset:
            return MethodConfig.from_dict({"rule": self.method, **self.settings})
        if self.method != "belief":
            raise ConfigError(
                f"preset={self.preset!r} is not supported with method={self.method!r}, only with "
                "method='belief'. Leave it out."
            )
        return MethodConfig.from_dict(PRESETS[self.preset]().to_dict() | dict(self.settings))

    def annealing(self) -> KLAnnealing:
        """The schedule of the KL weight."""
        weight = self.method_config().kl_weight
        return KLAnnealing(schedule=self.kl_schedule, weight=weight, warmup=self.kl_warmup)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Experiment":
        """The inverse of `to_dict`; missing fields take their defaults."""
        values = current_names(values)
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(
                f"An experiment has no field {', '.join(unknown)}. "
                + nearest(unknown[0], known, f"Its fields: {sorted(known)}.")
            )
        if missing := sorted({"task", "model"} - set(values)):
            raise ConfigError(f"An experiment needs {' and '.join(missing)}.")
        return cls(**values)


POSITIVE = ("batch_size", "accumulation", "buckets", "samples", "learning_rate", "epochs")
NOT_NEGATIVE = (
    *("seed", "steps", "batch_tokens", "max_length", "checkpoint_every", "test_every", "clip"),
    *("warmup", "warmup_steps", "belief_rate", "weight_decay"),
)
RATES = ("label_smoothing", "beta2", "dropout", "classifier_dropout")
"""Fields with limited values; dropout may also be -1."""

LIMITS = {"max_length": 2**20, "seed": 2**32 - 1}
"""Largest values of some fields."""

KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
"""Descriptions of types in error messages."""


def field_types() -> dict[str, Any]:
    """The type of each field; of a `Literal`, the type of its values."""
    hints = get_type_hints(Experiment)
    return {
        name: type(get_args(hint)[0]) if get_origin(hint) is Literal else get_origin(hint) or hint
        for name, hint in hints.items()
    }


def _check_types(experiment: Experiment) -> None:
    for name, kind in field_types().items():
        value = getattr(experiment, name)
        # Integers are accepted for floats; booleans are not numbers.
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            wanted = KINDS.get(kind, "a table")
            raise ConfigError(f"{name}={shown(value)} is invalid. Give {wanted}.")
        most = LIMITS.get(name, {int: MOST, float: LARGEST}.get(kind))
        if most is not None and value > most:
            raise ConfigError(f"{name}={shown(value)} is too large. Give at most {most}.")
