"""What an experiment is: all that decides its result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from babn.attention.rule import RuleConfig
from babn.elbo import KLAnnealing
from babn.errors import ConfigError, nearest
from babn.validation import LARGEST, MOST, check_at_least, check_choices, check_count, shown
from babn_paper.experiments.latent import LATENT_RULES, LatentConfig

PAIR_MODELS = ("decomposable", "esim")
"""Models for two texts that are made on the spot."""

TRANSLATOR = "lstm"
"""The translation model, which is made on the spot."""
VISUAL_MODELS = ("mcan", "mcan-small")
"""Models for questions about images that are made on the spot."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A task, a model, an attention rule, settings and a seed.

    Attributes:
        task: Name of the task.
        model: Name on the Hugging Face hub, or a folder; or one made on the spot with random
            weights: `"small"`, `"albert-base"` of that size, for two texts `"decomposable"` or
            `"esim"`, for translation `"lstm"`, or for questions about images `"mcan"` or
            `"mcan-small"`.
        sizes: Fields of the configuration of `"lstm"` or `"mcan"` that differ from its defaults.
        options: Settings of the task that differ from its own, such as `beam` of translation.
        vectors: File with words' vectors for `"decomposable"`, `"esim"` or `"mcan"`: GloVe's or
            word2vec's text, plain or `.gz`, or `.npz`; `""` to learn them.
        rule: How attention becomes random: `"softmax"`, `"bam"`, `"belief"` or `"mc-dropout"`; for
            `"lstm"` also `"va-enum"` or `"va-sample"`, variational attention.
        settings: Fields of the rule's configuration that differ from its defaults.
        paper: The paper's number for each measure, as printed there.
        seed: Decides the new weights, the order of the examples and all noise.
        data: `"hub"`, `"builtin"`, or a folder with data.
        steps: Training steps; 0 to count epochs instead.
        epochs: Passes over the training data, if there are no `steps`.
        batch_size: Examples in one step.
        batch_tokens: Tokens in one step, counted in the longer text with padding, in place of a
            number of examples; 0 for that.
        accumulation: Parts that a step's batch is cut into, to need less memory.
        learning_rate: Highest learning rate.
        belief_rate: Highest learning rate of the parameters that conversion adds; 0 for the same.
        warmup_steps: Steps over which rates grow, before they fall linearly to zero.
        warmup: The same as a share of all steps, if there are no `warmup_steps`.
        rate_schedule: `"linear"`: as just said; or `"mcan"`: in thirteenths of training, growing
            over three of them, constant until the tenth, and a fifth of that after every second.
        beta2: AdamW's decay of squared gradients.
        weight_decay: AdamW's.
        clip: Largest norm of the gradient; 0 for any.
        max_length: Tokens at which texts are cut; 0 for the task's own.
        full_length: Whether training pads every batch to `max_length`, so that all steps cost the
            same; otherwise to its longest text.
        dropout: Rate within the encoder; -1 for the model's own.
        classifier_dropout: Rate before the classifier; -1 for the model's own.
        label_smoothing: Share of the target that goes to all classes alike.
        kl_schedule: How the divergence's weight grows: `"linear"`, `"sigmoid"`, `"cyclic"` or
            `"constant"`.
        kl_warmup: Share of training, or of each cycle, over which it grows.
        precision: `"float32"`, or `"bfloat16"` for mixed precision.
        graphs: Whether steps are recorded as CUDA graphs and replayed, which takes off what
            launching kernels costs; without effect on a CPU or with several processes. Not for
            models that pack texts: `"lstm"`, `"decomposable"`, `"esim"`.
        buckets: Batches whose examples are sorted by length together; 1 for none.
        samples: Samples of attention in sampled mode.
        checkpoint_every: Steps between checkpoints; 0 for twenty in all.
        test_dropout: Whether models with random attention are tested by samples of attention with
            dropout on as well; those with softmax attention always are, as Monte Carlo dropout.
        test_every: Steps between tests at the posterior mean; 0 for none before the end.
        keep_model: Whether the trained model is kept; without it only the answers are.
    """

    task: str
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    vectors: str = ""
    rule: str = "belief"
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
    kl_schedule: Literal["linear", "sigmoid", "cyclic", "constant"] = "linear"
    kl_warmup: float = 0.5
    precision: Literal["float32", "bfloat16"] = "float32"
    graphs: bool = False
    buckets: int = 8
    samples: int = 20
    checkpoint_every: int = 0
    test_dropout: bool = False
    test_every: int = 0
    keep_model: bool = True

    def __post_init__(self) -> None:
        """Refuses values that cannot work, before any work starts."""
        _check_types(self)
        check_choices(self)
        for name in ("batch_size", "accumulation", "buckets", "samples"):
            check_count(name, getattr(self, name))
        for name in (
            "seed",
            "steps",
            "warmup_steps",
            "max_length",
            "checkpoint_every",
            "batch_tokens",
        ):
            check_at_least(name, getattr(self, name), 0)
        for name in ("learning_rate", "epochs"):
            check_at_least(name, getattr(self, name), 0.0, strictly=True)
        for name in ("belief_rate", "weight_decay", "clip", "warmup", "test_every"):
            check_at_least(name, getattr(self, name), 0.0)
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(
                f"label_smoothing={self.label_smoothing!r} is not possible. Give a share below 1."
            )
        for name in ("dropout", "classifier_dropout"):
            if getattr(self, name) != -1 and not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is not possible. Give a share below 1, or -1 "
                    "for the model's own."
                )
        if self.batch_size % self.accumulation:
            raise ConfigError(
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}."
            )
        if not 0 <= self.beta2 < 1:
            raise ConfigError(f"beta2={self.beta2!r} is not possible. Give a share below 1.")
        if self.vectors and self.model not in PAIR_MODELS + VISUAL_MODELS:
            raise ConfigError(
                f"vectors={self.vectors!r} has no use with model={self.model!r}, only with "
                f"{' or '.join(PAIR_MODELS + VISUAL_MODELS)}."
            )
        if self.graphs and self.model in (*PAIR_MODELS, TRANSLATOR):
            raise ConfigError(
                f"graphs=true is not possible with model={self.model!r}, which packs texts by "
                "their lengths. Leave it at false."
            )
        if self.sizes and self.model not in (*VISUAL_MODELS, TRANSLATOR):
            raise ConfigError(
                f"sizes={dict(self.sizes)!r} has no use with model={self.model!r}, only with "
                f"{' or '.join([*VISUAL_MODELS, TRANSLATOR])}."
            )
        if self.model != TRANSLATOR and self.rule in LATENT_RULES:
            raise ConfigError(
                f"rule={self.rule!r} does not go with model={self.model!r}. Variational attention "
                f"belongs to {TRANSLATOR!r}."
            )
        self.rule_config()
        self.annealing()

    def rule_config(self) -> RuleConfig | LatentConfig:
        """The rule with its settings."""
        values = {"rule": self.rule, **self.settings}
        if self.rule in LATENT_RULES:
            return LatentConfig.from_dict(values)
        return RuleConfig.from_dict(values)

    def annealing(self) -> KLAnnealing:
        """The schedule of the divergence's weight."""
        weight = self.rule_config().kl_weight
        return KLAnnealing(schedule=self.kl_schedule, weight=weight, warmup=self.kl_warmup)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Experiment":
        """The inverse of `to_dict`; fields that are not there keep their defaults."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(
                f"An experiment has no field {', '.join(unknown)}. "
                + nearest(unknown[0], known, f"Its fields: {sorted(known)}.")
            )
        if missing := sorted({"task", "model"} - set(values)):
            raise ConfigError(f"An experiment needs {' and '.join(missing)}.")
        return cls(**values)


LIMITS = {"max_length": 2**20, "seed": 2**32 - 1}
"""The most that some fields can be."""

KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def field_types() -> dict[str, Any]:
    """The type of each field: for a choice, that of its values."""
    hints = get_type_hints(Experiment)
    return {
        name: type(get_args(hint)[0]) if get_origin(hint) is Literal else get_origin(hint) or hint
        for name, hint in hints.items()
    }


def _check_types(experiment: Experiment) -> None:
    for name, kind in field_types().items():
        value = getattr(experiment, name)
        # A whole number is as good as a broken one, but true and false are not numbers.
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            wanted = {
                int: "a whole number",
                float: "a number",
                str: "a text",
                bool: "true or false",
            }.get(kind, "a table")
            raise ConfigError(f"{name}={shown(value)} is not possible. Give {wanted}.")
        most = LIMITS.get(name, {int: MOST, float: LARGEST}.get(kind))
        if most is not None and value > most:
            raise ConfigError(f"{name}={shown(value)} is too much. Give at most {most}.")
