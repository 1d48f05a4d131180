"""The report of `inspect`."""

from dataclasses import dataclass, field

import torch

from babn.attention.method import MethodConfig
from babn.conversion.plan import Call, Chain
from babn.kernels import dispatch


def likely_device() -> torch.device:
    """A GPU if available, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Inspection:
    """The attention calls of a model and what conversion does to them.

    Attributes:
        model: Class of the model.
        config: Configuration of the attention method.
        chains: Chains of attention calls, each a separate belief network.
        kept: Calls of layers that are not converted and keep the model's own attention.
        skipped: Modules that look like attention and are not converted, with the reason.
        converted: Whether the model is converted already.
        device: Device of the model, or the likely one if it is on the meta device.
        noise_level: Factor of the noise in predictions.
    """

    model: str
    config: MethodConfig
    chains: tuple[Chain, ...]
    kept: tuple[Call, ...]
    skipped: dict[str, str]
    converted: bool
    device: torch.device = field(default_factory=likely_device)
    noise_level: float = 1.0

    @property
    def kernel(self) -> str:
        """Implementation of attention: `"torch"`, `"triton"`, or `"reference"` with a reason."""
        return dispatch.describe(self.config, self.device)

    @property
    def parameters_added(self) -> int:
        """Total number of parameters that the method adds."""
        return sum(chain.parameters(self.config) for chain in self.chains)

    @property
    def calls(self) -> int:
        """Number of converted attention calls in one forward pass."""
        return sum(len(chain.calls) for chain in self.chains)

    @property
    def share(self) -> float:
        """Share of attention calls that are converted."""
        return self.calls / (self.calls + len(self.kept))

    def __str__(self) -> str:
        """A table of the chains."""
        done = "is converted" if self.converted else "can be converted"
        lines = [
            f"{self.model} {done}: {self.calls} attention calls in {len(self.chains)} chain(s); "
            f"method {self.config.name!r} adds {self.parameters_added:,} parameters.",
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
