"""Fused attention: one kernel for scores, noise, weights, values and KL.

`dispatch.py` chooses how a call is computed.

- By torch's attention, with or without a factor per key: `sdpa.py`.
- By the kernels for noise per key: `key_inputs.py` packs what the calls of a forward pass share,
  `key_attention.py` attends, `key_draw.py` with `key_draw_backward.py` draws the factors, and
  `key_kl.py` computes the KL.
- By the kernels for noise over pairs: `pair_inputs.py` packs what the calls share, `op.py` is the
  operation with its gradients, and `settings.py` and `flags.py` are what it is called and compiled
  with. Its kernels are in `forward.py` and `backward.py`, the prior's in `prior.py`, and maps over
  heads in `heads.py`.

Kernels consist of functions in `tiles.py` (load, mask, score, store), `posterior.py` (the Weibull
posterior) and `special.py` (special functions). `launch.py` launches them.
"""
