"""The forward kernel: rows of queries against blocks of keys, nothing of their product stored."""

import triton
import triton.language as tl

from babn.kernels.noise import log_exponential, row_keys, uniform_bits
from babn.kernels.posterior import (
    FIXED,
    LARGEST_LOG,
    LIFTED,
    divergence,
    inverse,
    log_moment,
    moments,
    moments_of_large_k,
    prior_rest,
    raise_of,
    row_sums_of_logs,
    shape,
)
from babn.kernels.special import LN2, LOG2_E, exp2, log2, moment, reciprocal
from babn.kernels.tiles import (
    BOTTOM,
    CONTEXTUAL,
    LOWEST,
    ROWWISE,
    add_exponentials,
    at_head,
    dot,
    load_lift,
    load_prior,
    load_rows,
    log_shape_of_rows,
    scores,
    store_rows,
    visible,
    where_seen,
)


@triton.jit
def normalize(
    q, K, PRIOR, MASK, BIAS, rows, in_rows, columns, k_strides, mask_strides, bias_strides,
    n, m, factor,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    NORMALIZED: tl.constexpr, PRIORS: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    IEEE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """A pass over the keys for each row's normalisers of scores and prior, and last key seen."""
    ALL: tl.constexpr = FULL and MASKED == 0
    row_end = tl.full([BM], m, tl.int32)
    top = tl.full([BM], BOTTOM, tl.float32)
    total = tl.zeros([BM], tl.float32)
    prior_top = tl.full([BM], BOTTOM, tl.float32)
    prior_total = tl.zeros([BM], tl.float32)
    if MASKED:
        row_end = tl.zeros([BM], tl.int32)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        seen = visible(MASK, mask_strides, rows, keys, n, m, MASKED, FULL)
        inside = in_rows[:, None] & (keys < m)[None, :]
        if MASKED:
            row_end = tl.maximum(row_end, tl.max(tl.where(seen, keys[None, :] + 1, 0), 1))
        if NORMALIZED:
            k = load_rows(K, keys, columns, k_strides[2], m, D, BD, FULL)
            s = scores(q, k, BIAS, bias_strides, rows, keys, factor, inside, BIASED, IEEE, FULL)
            top, total = add_exponentials(top, total, s, seen, ALL)
        if PRIORS == ROWWISE:
            a = LOG2_E * load_prior(PRIOR, keys, m)
            prior_top, prior_total = add_exponentials(prior_top, prior_total, a, seen, ALL)
    score_lse = tl.where(total > 0, top + log2(total), 0.0)
    prior_lse = tl.where(prior_total > 0, prior_top + log2(prior_total), 0.0)
    return score_lse, prior_lse, row_end


@triton.jit
def weigh(
    q, K, V, U1, U2, PRIOR, MASK, BIAS, rows, in_rows, columns, value_columns, first, second,
    score_lse, prior_lse, rest_total, end,
    k_strides, v_strides, lift_strides, mask_strides, bias_strides,
    n, m, factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant, rest_constant,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
    SHAPE: tl.constexpr, LIFT: tl.constexpr, NORMALIZED: tl.constexpr, SAMPLE: tl.constexpr,
    TRUNCATED: tl.constexpr, OWN_MOMENT: tl.constexpr, PRIORS: tl.constexpr,
    POSITIVE: tl.constexpr, LIFTS: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    IEEE: tl.constexpr, FULL: tl.constexpr, LARGE_K: tl.constexpr, OF_MEAN: tl.constexpr,
    BOUNDED: tl.constexpr,
):  # fmt: skip
    """The posterior of all keys, its weights on the values, its divergence, and the smallest k.

    BOUNDED weights need no maximum: they are neither too large for float32 nor all too small.
    """
    ALL: tl.constexpr = FULL and MASKED == 0
    HALF: tl.constexpr = V.dtype.element_ty
    rho, sigma = rho_ln2 * LOG2_E, sigma_ln2 * LOG2_E
    # Means that are multiples of the scores add up to a number known before.
    KNOWN_MEAN: tl.constexpr = SHAPE == FIXED and not LIFT and NORMALIZED
    top = tl.full([BM], 0.0 if BOUNDED else BOTTOM, tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, BDV], tl.float32)
    kl = tl.zeros([BM], tl.float32) + rest_total
    smallest = tl.full([BM], 1.0, tl.float32)
    for start in range(0, end, BN):
        keys = start + tl.arange(0, BN)
        seen = visible(MASK, mask_strides, rows, keys, n, m, MASKED, FULL)
        inside = in_rows[:, None] & (keys < m)[None, :]
        key = load_rows(K, keys, columns, k_strides[2], m, D, BD, FULL)
        s = scores(q, key, BIAS, bias_strides, rows, keys, factor, inside, BIASED, IEEE, FULL)
        phi = where_seen(seen, s - score_lse[:, None], 0.0, ALL)
        raise1 = 0.0
        raise2 = 0.0
        if LIFTS:
            u1, u2 = load_lift(U1, U2, rows, keys, lift_strides[2], inside, LIFTS, HALF, FULL)
            if SHAPE == LIFTED:
                raise1 = raise_of(u1, POSITIVE, IEEE)
            if LIFT:
                raise2 = raise_of(u2, POSITIVE, IEEE)
        k, score = shape(phi, raise1, rho, fixed_k, SHAPE, NORMALIZED, LARGE_K)
        if LARGE_K:
            smallest = tl.minimum(smallest, tl.min(k, 1))
        if OF_MEAN:
            # Not a logarithm is needed.
            if LARGE_K:
                mean = moment(reciprocal(k))
            else:
                t, y = inverse(k)
                log_m = log_moment(t, y, log2(y), OWN_MOMENT)
                mean = exp2(tl.minimum(log_m, LARGEST_LOG))
            w = where_seen(seen, score + raise2 * sigma * mean, 0.0, ALL)
        else:
            if LARGE_K:
                t, log_m, _, log_lam, _, _, _, expected, _ = moments_of_large_k(
                    score, k, raise2, sigma, log_beta
                )
            else:
                t, log_m, _, log_lam, _, _, _, expected, _ = moments(
                    phi, k, raise2, sigma, log_beta, LIFT, NORMALIZED, OWN_MOMENT
                )
            if SAMPLE:
                bits = uniform_bits(first, second, keys)
                logits = log_lam + t * log_exponential(bits, TRUNCATED)
            else:
                logits = log_lam + log_m
            logits = where_seen(seen, logits, LOWEST, ALL)
            if not BOUNDED:
                higher = tl.maximum(top, tl.max(logits, 1))
                shrink = exp2(top - higher)
                total = total * shrink
                out = out * shrink[:, None]
                top = higher
                logits -= top[:, None]
            w = exp2(logits)
        total += tl.sum(w, 1)
        v = load_rows(V, keys, value_columns, v_strides[2], m, DV, BDV, FULL)
        out += dot(w.to(v.dtype), v, IEEE)
        if PRIORS != 0:
            alpha = alpha_constant
            rest = rest_constant
            if PRIORS == CONTEXTUAL:
                alpha = load_prior(PRIOR, keys, m)
                rest = 0.0  # known before
            elif PRIORS == ROWWISE:
                log_alpha = log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, ALL)
                alpha = exp2(log_alpha)
                rest = prior_rest(alpha, log_alpha)
            mean = 0.0 if KNOWN_MEAN else expected
            if SHAPE == FIXED:
                rest += LN2 * log2(k)
            else:
                kl += row_sums_of_logs(where_seen(seen, k, 1.0, ALL), NORMALIZED, BM, BN)
            pairs = divergence(t, log_lam, mean, alpha, rest, log_beta)
            kl += tl.sum(where_seen(seen, pairs, 0.0, ALL), 1)
    if PRIORS != 0 and KNOWN_MEAN:
        _, _, _, _, _, _, _, mean, _ = moments(
            0.0, fixed_k, 0.0, 0.0, log_beta, False, True, OWN_MOMENT
        )
        kl += tl.where(total > 0, mean, 0.0)
    return top, total, out, kl, smallest


@triton.jit
def attend_forward(
    Q, K, V, U1, U2, PRIOR, REST, MASK, BIAS, SEEDS, OUT, LSE, SCORE_LSE, PRIOR_LSE, SMALLEST,
    ROW_END, KL,
    q_strides, k_strides, v_strides, out_strides, lift_strides, mask_strides, bias_strides,
    heads, groups, n, m, rows_per_seed,
    factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant, rest_constant,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
    SHAPE: tl.constexpr, LIFT: tl.constexpr, NORMALIZED: tl.constexpr, SAMPLE: tl.constexpr,
    TRUNCATED: tl.constexpr, OWN_MOMENT: tl.constexpr, PRIORS: tl.constexpr,
    LARGE_K: tl.constexpr,
    POSITIVE: tl.constexpr, LIFTS: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    IEEE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head.

    REST is what the prior alone adds to the divergence of a row, if that is the same for all rows.
    """
    plane = tl.program_id(1)
    batch, head = plane // heads, plane % heads
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    in_rows = rows < n
    row_places = plane.to(tl.int64) * n + rows
    columns, value_columns = tl.arange(0, BD), tl.arange(0, BDV)
    K = at_head(K, k_strides, batch, head // groups)
    V = at_head(V, v_strides, batch, head // groups)
    U1 = at_head(U1, lift_strides, batch, head)
    U2 = at_head(U2, lift_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    BIAS = at_head(BIAS, bias_strides, batch, head)
    PRIOR += (plane // groups).to(tl.int64) * m
    Q = at_head(Q, q_strides, batch, head)
    q = load_rows(Q, rows, columns, q_strides[2], n, D, BD, FULL)

    score_lse = tl.zeros([BM], tl.float32)
    prior_lse = tl.zeros([BM], tl.float32)
    rest_total = 0.0
    if PRIORS == CONTEXTUAL:
        rest_total = tl.load(REST + plane // groups)
    end = m
    if NORMALIZED or PRIORS == ROWWISE or MASKED:
        score_lse, prior_lse, row_end = normalize(
            q, K, PRIOR, MASK, BIAS, rows, in_rows, columns, k_strides, mask_strides, bias_strides,
            n, m, factor, D, BD, BM, BN, NORMALIZED, PRIORS, MASKED, BIASED, IEEE, FULL,
        )  # fmt: skip
        tl.store(SCORE_LSE + row_places, score_lse, mask=in_rows)
        if PRIORS == ROWWISE:
            tl.store(PRIOR_LSE + row_places, prior_lse, mask=in_rows)
        if MASKED:
            tl.store(ROW_END + row_places, row_end, mask=in_rows)
            end = tl.max(row_end)

    first = rows
    second = rows
    if SAMPLE:
        first, second = row_keys(SEEDS, batch, head, heads, rows, rows_per_seed)
    USUAL: tl.constexpr = SHAPE == LIFTED and LIFT and NORMALIZED and OWN_MOMENT
    OF_MEAN: tl.constexpr = (
        USUAL and not SAMPLE and PRIORS == 0 and V.dtype.element_ty != tl.float16
    )
    BOUNDED: tl.constexpr = OF_MEAN or (
        SAMPLE and NORMALIZED and (TRUNCATED or (SHAPE == FIXED and LARGE_K))
        and V.dtype.element_ty != tl.float16
    )  # fmt: skip
    TRY_LARGE_K: tl.constexpr = LARGE_K and USUAL and (SAMPLE or OF_MEAN)
    top, total, out, kl, smallest = weigh(
        q, K, V, U1, U2, PRIOR, MASK, BIAS, rows, in_rows, columns, value_columns, first, second,
        score_lse, prior_lse, rest_total, end,
        k_strides, v_strides, lift_strides, mask_strides, bias_strides,
        n, m, factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant, rest_constant,
        D, DV, BD, BDV, BM, BN, SHAPE, LIFT, NORMALIZED, SAMPLE, TRUNCATED, OWN_MOMENT, PRIORS,
        POSITIVE, LIFTS, MASKED, BIASED, IEEE, FULL, TRY_LARGE_K, OF_MEAN, BOUNDED,
    )  # fmt: skip
    if TRY_LARGE_K:
        tl.store(SMALLEST + row_places, smallest, mask=in_rows)
        if tl.min(tl.where(in_rows, smallest, 1.0)) < 1.0:
            # Some k was not large after all: the same again with what is right for every k.
            top, total, out, kl, smallest = weigh(
                q, K, V, U1, U2, PRIOR, MASK, BIAS, rows, in_rows, columns, value_columns,
                first, second, score_lse, prior_lse, rest_total, end,
                k_strides, v_strides, lift_strides, mask_strides, bias_strides,
                n, m, factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant, rest_constant,
                D, DV, BD, BDV, BM, BN, SHAPE, LIFT, NORMALIZED, SAMPLE, TRUNCATED, OWN_MOMENT,
                PRIORS, POSITIVE, LIFTS, MASKED, BIASED, IEEE, FULL, False, OF_MEAN,
                BOUNDED,
            )  # fmt: skip

    found = total > 0
    out = out / tl.where(found, total, 1.0)[:, None]
    tl.store(LSE + row_places, tl.where(found, top + log2(total), 0.0), mask=in_rows)
    OUT = at_head(OUT, out_strides, batch, head)
    store_rows(OUT, rows, value_columns, out_strides[2], n, out, DV)
    if PRIORS != 0:
        tl.store(KL + row_places, kl, mask=in_rows)
