"""What `inspect` says."""

from dataclasses import dataclass

from babn.attention.rule import RuleConfig
from babn.conversion.plan import Chain


@dataclass(frozen=True)
class Inspection:
    """The attention calls of a model and what conversion does to them.

    Attributes:
        model: Class of the model.
        config: The rule.
        chains: Chains of attention calls, each a belief network of its own.
        skipped: Attention-like modules that take no part, with the reason.
        converted: Whether the model is converted already.
    """

    model: str
    config: RuleConfig
    chains: tuple[Chain, ...]
    skipped: dict[str, str]
    converted: bool

    @property
    def parameters_added(self) -> int:
        """Parameters that the rule adds in all."""
        return sum(chain.parameters(self.config) for chain in self.chains)

    @property
    def calls(self) -> int:
        """Attention calls in one forward pass."""
        return sum(len(chain.calls) for chain in self.chains)

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
        if self.skipped:
            lines += ["", "Skipped:"]
            lines += [f"  {path}: {reason}" for path, reason in self.skipped.items()]
        return "\n".join(lines)
