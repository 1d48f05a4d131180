"""Adapters of PEFT: LoRA, and random adapters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from babn.attention.belief import BeliefConfig
from babn.conversion.convert import convert
from babn.errors import MissingExtraError, import_extra
from babn.prediction.result import Prediction
from babn_paper.method_comparison.basic_methods import SAMPLES, sampled, set_dropout
from babn_paper.method_comparison.interface import TunedMethod
from babn_paper.method_comparison.trained_models import Batches, Models, Variant

RATE = 10.0
"""Learning rate of adapters relative to full fine-tuning."""


def _peft() -> Any:
    return import_extra("peft", "Adapters need PEFT", "peft")


def _adapted(model: nn.Module, config: str, **settings: Any) -> nn.Module:
    """The model with adapters in the modules that PEFT chooses for LoRA."""
    peft = _peft()
    if not hasattr(peft, config):
        raise MissingExtraError(f"PEFT {peft.__version__} has no {config}: pip install -U peft")
    targets = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    kind: str = model.config.model_type  # type: ignore[union-attr, assignment]
    settings = {"task_type": "SEQ_CLS", "target_modules": targets[kind], **settings}
    return peft.get_peft_model(model, getattr(peft, config)(**settings))


def add_lora(model: nn.Module) -> nn.Module:
    """Adds LoRA adapters."""
    return _adapted(model, "LoraConfig", r=8, lora_alpha=16)


def add_random_lora(model: nn.Module) -> nn.Module:
    """Converts the attention to BABN, and adds LoRA adapters that are trained with it."""
    converted = convert(model, BeliefConfig())
    to_save = ["babn", "classifier"]
    return _adapted(converted, "LoraConfig", r=8, lora_alpha=16, modules_to_save=to_save)


def add_pvera(model: nn.Module) -> nn.Module:
    """Adds PVeRA adapters, [whose activations are random](https://arxiv.org/abs/2512.07703)."""
    return _adapted(model, "PveraConfig", r=64)


def add_monteclora(model: nn.Module) -> nn.Module:
    """Adds LoRA adapters [whose weights are random](https://arxiv.org/abs/2411.04358)."""
    if not hasattr(_peft(), "MontecloraConfig"):
        raise MissingExtraError("This PEFT has no MontecloraConfig: pip install -U peft")
    # Without a buffer the noise follows torch's seed.
    noise = _peft().MontecloraConfig(buffer_size=1)
    return _adapted(model, "LoraConfig", r=8, lora_alpha=16, monteclora_config=noise)


def monteclora_trainer() -> type[Any]:
    """The class that adds MonteCLoRA's KL to the loss of a Trainer."""
    from peft.helpers import MontecloraTrainerMixin

    mixin: type[Any] = MontecloraTrainerMixin
    return mixin


def merge_and_convert(model: nn.Module) -> nn.Module:
    """Merges adapters into the weights, and converts the attention to BABN."""
    return convert(model.merge_and_unload())  # type: ignore[operator]


LORA = Variant("LoRA", add_lora, rate=RATE)
RANDOM_LORA = Variant("LoRA + BABN", add_random_lora, rate=RATE)
PVERA = Variant("PVeRA", add_pvera, rate=RATE)
MONTECLORA = Variant("MonteCLoRA", add_monteclora, rate=RATE, trainer=monteclora_trainer)


@dataclass(frozen=True)
class RandomAdapter(TunedMethod):
    """Samples of adapters that are random in training mode; dropout is off.

    Attributes:
        variant: The training with such adapters.
        samples: Number of samples.
    """

    variant: Variant = PVERA
    samples: int = SAMPLES
    code: ClassVar[str] = """model = peft.get_peft_model(model, config)  # before training
model.train()
with torch.no_grad():
    probs = torch.stack([model(**batch).logits.softmax(-1) for _ in range(20)]).mean(0)"""

    def passes(self, setting: float) -> int:
        """One pass for each sample."""
        return self.samples

    def predictor(self, models: Models, seed: int) -> Callable[[float, Batches], Prediction]:
        """Passes in training mode."""
        model = models.get(self.variant, seed)
        set_dropout(model, 0.0)
        return lambda _, batches: sampled(model, batches, self.samples, noisy=True)
