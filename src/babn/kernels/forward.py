"""The forward kernel: blocks of queries against blocks of keys, without storing any pairs."""

import triton
import triton.language as tl

from babn.kernels.posterior import (
    LARGEST_LOG,
    inverse,
    kl_of_pairs,
    log_exponential,
    moments,
    prior_rest,
    row_keys,
    row_sums_of_logs,
    shape,
    softplus_term,
    uniform_bits,
)
from babn.kernels.special import LN2, LOG2_E, log2, log_moment, moment, reciprocal
from babn.kernels.tiles import (
    BOTTOM,
    LOWEST,
    add_exponentials,
    at_head,
    dot,
    load_logits,
    load_prior,
    load_rows,
    log_shape_of_rows,
    parts_of_stats,
    scores,
    split_logits,
    store_rows,
    tile_and_plane,
    visible,
    where_seen,
)


@triton.jit
def normalize(q, tensors, strides, rows, in_rows, columns, n, m, factor, C: tl.constexpr):
    """Normalisers of scores and prior, and the end of the keys seen, for each row."""
    BLOCK_M: tl.constexpr = C.BLOCK_M
    K, PRIOR, MASK, BIAS = tensors
    k_strides, mask_strides, bias_strides = strides
    row_end = tl.full([BLOCK_M], m, tl.int32)
    top = tl.full([BLOCK_M], BOTTOM, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    prior_top = tl.full([BLOCK_M], BOTTOM, tl.float32)
    prior_total = tl.zeros([BLOCK_M], tl.float32)
    if C.MASK_TYPE != "none":
        row_end = tl.zeros([BLOCK_M], tl.int32)
    for start in range(0, m, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        seen = visible(MASK, mask_strides, rows, keys, n, m, C)
        if C.MASK_TYPE != "none":
            row_end = tl.maximum(row_end, tl.max(tl.where(seen, keys[None, :] + 1, 0), 1))
        if C.IS_NORMALIZED:
            k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_MN)
            s = scores(q, k, BIAS, bias_strides, rows, keys, n, m, factor, C)
            top, total = add_exponentials(top, total, s, seen, C)
        if C.PRIOR_TYPE == "rows":
            a = LOG2_E * load_prior(PRIOR, keys, m)
            prior_top, prior_total = add_exponentials(prior_top, prior_total, a, seen, C)
    score_lse = tl.where(total > 0, top + log2(total), 0.0)
    prior_lse = tl.where(prior_total > 0, prior_top + log2(prior_total), 0.0)
    return score_lse, prior_lse, row_end


@triton.jit
def weigh(
    call, C: tl.constexpr, LARGE_K: tl.constexpr, OF_MEAN: tl.constexpr, BOUNDED: tl.constexpr
):
    """The weighted sum of the values over all keys, its normaliser, the KL, and the smallest k.

    LARGE_K computes with formulas for k of at least 1, OF_MEAN the posterior mean without
    logarithms. BOUNDED weights need no running maximum: they neither overflow nor all underflow.
    """
    BLOCK_DV: tl.constexpr = C.BLOCK_DV
    BLOCK_M: tl.constexpr = C.BLOCK_M
    q, tensors, strides, row, tile, end, n, m, numbers = call
    K, V, LOGITS, PRIOR, MASK, BIAS = tensors
    k_strides, v_strides, logits_strides, mask_strides, bias_strides = strides
    first, second, score_lse, prior_lse, rest_total = row
    rows, in_rows, columns, value_columns = tile
    factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant, rest_constant = numbers
    rho, sigma = rho_ln2 * LOG2_E, sigma_ln2 * LOG2_E
    # Means proportional to normalised scores have a known sum.
    KNOWN_MEAN: tl.constexpr = C.SHAPE_TYPE == "fixed" and not C.HAS_SCALE and C.IS_NORMALIZED
    top = tl.full([BLOCK_M], 0.0 if BOUNDED else BOTTOM, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    kl = tl.zeros([BLOCK_M], tl.float32) + rest_total
    smallest = tl.full([BLOCK_M], 1.0, tl.float32)
    for start in range(0, end, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        seen = visible(MASK, mask_strides, rows, keys, n, m, C)
        key = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_MN)
        s = scores(q, key, BIAS, bias_strides, rows, keys, n, m, factor, C)
        phi = where_seen(seen, s - score_lse[:, None], 0.0, C)
        shape_term = 0.0
        scale_term = 0.0
        if C.NUM_LOGITS:
            joint = load_logits(LOGITS, rows, start, logits_strides[2], in_rows, m, C)
            shape_logits, scale_logits = split_logits(joint, C)
            if C.SHAPE_TYPE == "upward":
                shape_term = softplus_term(shape_logits, C.IS_POSITIVE, C.PRECISION != "half")
            if C.HAS_SCALE:
                scale_term = softplus_term(scale_logits, C.IS_POSITIVE, C.PRECISION != "half")
        k, score = shape(phi, shape_term, rho, fixed_k, C, LARGE_K)
        if LARGE_K:
            smallest = tl.minimum(smallest, tl.min(k, 1))
        if OF_MEAN:
            # Avoids a logarithm.
            if LARGE_K:
                mean = moment(reciprocal(k))
            else:
                t, y = inverse(k)
                log_m = log_moment(t, y, log2(y), C.HAS_OWN_MOMENT)
                mean = tl.exp2(tl.minimum(log_m, LARGEST_LOG))
            w = where_seen(seen, score + scale_term * sigma * mean, 0.0, C)
        else:
            t, log_m, _, log_lam, _, _, _, expected, _ = moments(
                phi, score, k, scale_term, sigma, log_beta, LARGE_K, C
            )
            if C.IS_SAMPLE:
                bits = uniform_bits(first, second, keys)
                logits = log_lam + t * log_exponential(bits, C.IS_TRUNCATED)
            else:
                logits = log_lam + log_m
            logits = where_seen(seen, logits, LOWEST, C)
            if not BOUNDED:
                higher = tl.maximum(top, tl.max(logits, 1))
                shrink = tl.exp2(top - higher)
                total = total * shrink
                out = out * shrink[:, None]
                top = higher
                logits -= top[:, None]
            w = tl.exp2(logits)
        total += tl.sum(w, 1)
        v = load_rows(V, keys, value_columns, v_strides[2], m, C.VALUE_DIM, C.BLOCK_DV, C.EVEN_MN)
        out += dot(w.to(v.dtype), v, C.PRECISION == "ieee")
        if C.PRIOR_TYPE != "none":
            alpha = alpha_constant
            rest = rest_constant
            if C.PRIOR_TYPE == "keys":
                alpha = load_prior(PRIOR, keys, m)
                rest = 0.0  # in rest_total
            elif C.PRIOR_TYPE == "rows":
                log_alpha = log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, C)
                alpha = tl.exp2(log_alpha)
                rest = prior_rest(alpha, log_alpha)
            mean = 0.0 if KNOWN_MEAN else expected
            if C.SHAPE_TYPE == "fixed":
                rest += LN2 * log2(k)
            else:
                kl += row_sums_of_logs(
                    where_seen(seen, k, 1.0, C), C.IS_NORMALIZED, C.BLOCK_M, C.BLOCK_N
                )
            pairs = kl_of_pairs(t, log_lam, mean, alpha, rest, log_beta)
            kl += tl.sum(where_seen(seen, pairs, 0.0, C), 1)
    if C.PRIOR_TYPE != "none" and KNOWN_MEAN:
        _, _, _, _, _, _, _, mean, _ = moments(0.0, 0.0, fixed_k, 0.0, 0.0, log_beta, False, C)
        kl += tl.where(total > 0, mean, 0.0)
    return top, total, out, kl, smallest


@triton.jit
def attend_forward(inputs, outputs, strides, sizes, numbers, C: tl.constexpr):
    """One block of queries of one head; STATS already has the prior."""
    BLOCK_M: tl.constexpr = C.BLOCK_M
    Q, K, V, LOGITS, MASK, BIAS, SEEDS = inputs
    OUT, STATS, KL = outputs
    (q_strides, k_strides, v_strides, out_strides, logits_strides, mask_strides,
     bias_strides) = strides  # fmt: skip
    heads, groups, n, m, row_count, prior_count, rows_per_seed = sizes
    LSE, SCORE_LSE, PRIOR_LSE, SMALLEST, ROW_END, PRIOR, REST = parts_of_stats(
        STATS, row_count, prior_count
    )
    factor = numbers[0]
    tile, plane = tile_and_plane(n, BLOCK_M)
    batch, head = plane // heads, plane % heads
    rows = tile * BLOCK_M + tl.arange(0, C.BLOCK_M)
    in_rows = rows < n
    row_places = plane.to(tl.int64) * n + rows
    columns, value_columns = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_DV)
    K = at_head(K, k_strides, batch, head // groups)
    V = at_head(V, v_strides, batch, head // groups)
    LOGITS = at_head(LOGITS, logits_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    BIAS = at_head(BIAS, bias_strides, batch, head)
    PRIOR += (plane // groups).to(tl.int64) * m
    Q = at_head(Q, q_strides, batch, head)
    q = load_rows(Q, rows, columns, q_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_MN)

    score_lse = tl.zeros([BLOCK_M], tl.float32)
    prior_lse = tl.zeros([BLOCK_M], tl.float32)
    rest_total = 0.0
    if C.PRIOR_TYPE == "keys":
        rest_total = tl.load(REST + plane // groups)
    end = m
    if C.IS_NORMALIZED or C.PRIOR_TYPE == "rows" or C.MASK_TYPE != "none":
        score_lse, prior_lse, row_end = normalize(
            q, (K, PRIOR, MASK, BIAS), (k_strides, mask_strides, bias_strides),
            rows, in_rows, columns, n, m, factor, C,
        )  # fmt: skip
        tl.store(SCORE_LSE + row_places, score_lse, mask=in_rows)
        if C.PRIOR_TYPE == "rows":
            tl.store(PRIOR_LSE + row_places, prior_lse, mask=in_rows)
        if C.MASK_TYPE != "none":
            tl.store(ROW_END + row_places, row_end.to(tl.float32), mask=in_rows)
            end = tl.max(row_end)

    first = rows
    second = rows
    if C.IS_SAMPLE:
        first, second = row_keys(SEEDS, batch, head, heads, rows, rows_per_seed)
    USUAL: tl.constexpr = (
        C.SHAPE_TYPE == "upward" and C.HAS_SCALE and C.IS_NORMALIZED and C.HAS_OWN_MOMENT
    )
    OF_MEAN: tl.constexpr = (
        USUAL and not C.IS_SAMPLE and C.PRIOR_TYPE == "none" and V.dtype.element_ty != tl.float16
    )
    BOUNDED: tl.constexpr = OF_MEAN or (
        C.IS_SAMPLE and C.IS_NORMALIZED
        and (C.IS_TRUNCATED or (C.SHAPE_TYPE == "fixed" and C.LARGE_K))
        and V.dtype.element_ty != tl.float16
    )  # fmt: skip
    TRY_LARGE_K: tl.constexpr = C.LARGE_K and USUAL and (C.IS_SAMPLE or OF_MEAN)
    tensors = (K, V, LOGITS, PRIOR, MASK, BIAS)
    tensor_strides = (k_strides, v_strides, logits_strides, mask_strides, bias_strides)
    row = (first, second, score_lse, prior_lse, rest_total)
    tile = (rows, in_rows, columns, value_columns)
    call = (q, tensors, tensor_strides, row, tile, end, n, m, numbers)
    top, total, out, kl, smallest = weigh(call, C, TRY_LARGE_K, OF_MEAN, BOUNDED)
    if TRY_LARGE_K:
        tl.store(SMALLEST + row_places, smallest, mask=in_rows)
        if tl.min(tl.where(in_rows, smallest, 1.0)) < 1.0:
            # Some k is below 1: once more with formulas for every k.
            top, total, out, kl, smallest = weigh(call, C, False, OF_MEAN, BOUNDED)

    found = total > 0
    out = out / tl.where(found, total, 1.0)[:, None]
    tl.store(LSE + row_places, tl.where(found, top + log2(total), 0.0), mask=in_rows)
    OUT = at_head(OUT, out_strides, batch, head)
    store_rows(OUT, rows, value_columns, out_strides[2], n, out, C.VALUE_DIM)
    if C.PRIOR_TYPE != "none":
        tl.store(KL + row_places, kl, mask=in_rows)
