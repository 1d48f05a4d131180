"""Conversion of a model: its attention calls are found, grouped into chains, and replaced.

| step | file |
|---|---|
| `inspect`, `convert`, `revert` | `convert.py` |
| dry run: records the calls, and compares outputs with and without conversion | `discover.py`, `dry_run.py`, `example_inputs.py` |
| calls and the chains that they form | `calls.py` |
| routes: how calls are intercepted | `transformers_route.py`, `softmax_route.py`, `torch_route.py` |
| parameters and call sites of a converted model | `state.py` |
| hooks that open and close a forward context, and check that calls are intercepted | `hooks.py` |
| forward context: computes the calls of one forward pass | `forward_context.py`, `layer_kl.py`, `override.py` |
| activation checkpointing | `checkpointing.py` |

One call of a transformers model takes this way:

1. `transformers_route.attention`, to which the model dispatches, puts its arguments into `Inputs`;
2. `attend.attend` finds the call's place in its chain, and chooses between a kernel and the reference;
3. `ForwardContext.posterior` computes the upward states at the first call of a chain, and keeps the KL;
4. `AttentionMethod.forward` returns the posterior, from which `attend` takes mean or sampled weights.
"""  # noqa: E501
