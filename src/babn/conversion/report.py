"""What `inspect` says."""

from dataclasses import dataclass, field

import torch

from babn.attention.rule import RuleConfig
from babn.conversion.plan import Call, Chain
from babn.kernels.dispatch import has_kernels, why_no_kernels


def likely_device() -> torch.device:
    """A GPU, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Inspection:
    """The attention calls of a model and what conversion does to them.

    Attributes:
        model: Class of the model.
        config: The rule.
        chains: Chains of attention calls, each a belief network of its own.
        kept: Calls of layers that were not chosen, which keep the model's own attention.
        skipped: Attention-like modules that take no part, with the reason.
        converted: Whether the model is converted already.
        device: Where the model is; where it would go, if that is not known yet.
        noise_level: What the noise of predictions is multiplied by.
    """

    model: str
    config: RuleConfig
    chains: tuple[Chain, ...]
    kept: tuple[Call, ...]
    skipped: dict[str, str]
    converted: bool
    device: torch.device = field(default_factory=likely_device)
    noise_level: float = 1.0

    @property
    def kernel(self) -> str:
        """Which code attention runs through: `"torch"`, `"triton"`, or `"reference"` and why."""
        if self.config.is_softmax(sample=True, with_kl=True):
            return "torch (scaled_dot_product_attention)"
        if self.config.kernel == "reference":
            return "reference (as configured)"
        if self.config.biases_keys:
            return "torch (scaled_dot_product_attention with a bias on keys)"
        reason = why_no_kernels(self.device, self.config.kernel == "triton")
        if not has_kernels(self.config):
            reason = f"rule {self.config.rule!r} has no kernel"
        return "triton" if reason is None else f"reference ({reason})"

    @property
    def parameters_added(self) -> int:
        """Parameters that the rule adds in all."""
        return sum(chain.parameters(self.config) for chain in self.chains)

    @property
    def calls(self) -> int:
        """Attention calls in one forward pass that follow the rule."""
        return sum(len(chain.calls) for chain in self.chains)

    @property
    def share(self) -> float:
        """The part of all attention calls that follows the rule."""
        return self.calls / (self.calls + len(self.kept))

    def __str__(self) -> str:
        """A table for people."""
        done = "is converted" if self.converted else "can be converted"
        lines = [
            f"{self.model} {done}: {self.calls} attention calls in {len(self.chains)} chain(s); "
            f"rule {self.config.rule!r} adds {self.parameters_added:,} parameters.",
            "",
        ]
        width = max(len("chain"), *(len(chain.name) for chain in self.chains))
        header = f"  {'chain':<{width}}  steps  heads x dim  route         parameters"
        lines += [header, "  " + "-" * (len(header) - 2)]
        for chain in self.chains:
            first = chain.calls[0]
            shape = f"{first.heads} x {first.head_dim}"
            lines.append(
                f"  {chain.name:<{width}}  {len(chain.calls):>5}  {shape:>11}  {first.route:<12}"
                f"  {chain.parameters(self.config):>10,}"
            )
        lines += ["", f"Kernel: {self.kernel}"]
        if self.noise_level != 1:
            lines.append(f"Noise level of predictions: {self.noise_level:g}")
        if self.kept:
            names = ", ".join(dict.fromkeys(call.path for call in self.kept))
            lines += [
                "",
                f"Layers: {self.config.layers!r} takes {self.calls} of "
                f"{self.calls + len(self.kept)} attention calls ({self.share:.0%}).",
                f"The others keep the model's own softmax attention: {names}",
            ]
        if self.skipped:
            lines += ["", "Skipped:"]
            lines += [f"  {path}: {reason}" for path, reason in self.skipped.items()]
        return "\n".join(lines)
