"""The backward kernels.

The first regenerates the noise, recomputes the posterior, and stores two numbers for each pair: its
weight, and the gradient of its score. The gradient is complete where a row's gradients sum to zero
or scores are not normalised; otherwise the kernel subtracts the gradient through the normaliser
when it knows the row's sum. It sums over keys for queries. From the stored numbers the second
kernel sums over queries for keys and values.
"""

import triton
import triton.language as tl

from babn.kernels import settings
from babn.kernels.posterior import (
    LARGEST_PHI,
    alpha_digamma_of,
    log_exponential,
    moments,
    row_keys,
    shape,
    softplus_term_and_slope,
    uniform_bits,
)
from babn.kernels.special import EULER, LN2, SMALLEST_K, reciprocal
from babn.kernels.tiles import (
    LOWEST,
    at_head,
    dot,
    load_as_is,
    load_logits,
    load_pairs,
    load_rows,
    pair_offsets,
    parts_of_stats,
    prior_shape,
    scores,
    split_logits,
    store_logits,
    store_pairs,
    store_rows,
    tile_and_plane,
    visible,
    where_seen,
)

ROWS_OF_A_PART = tl.constexpr(settings.ROWS_OF_A_PART)
"""Rows whose prior gradients are summed into one part."""


@triton.jit
def row_gradients(call, C: tl.constexpr, LARGE_K: tl.constexpr):
    """Gradients of all pairs of the rows; their sums over keys for scores, prior and queries."""
    BLOCK_D: tl.constexpr = C.BLOCK_D
    BLOCK_M: tl.constexpr = C.BLOCK_M
    q, tensors, outputs, strides, row, tile, end, n, m, numbers = call
    K, V, LOGITS, PRIOR, MASK, BIAS = tensors
    DLOGITS, WEIGHTS, DPHI, PRIOR_PART = outputs
    k_strides, v_strides, logits_strides, mask_strides, bias_strides = strides
    first, second, dout, delta, dkl, lse, score_lse, prior_lse = row
    rows, in_rows, columns, value_columns = tile
    factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant = numbers
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    prior_sum = tl.zeros([BLOCK_M], tl.float32)
    dquery = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    parts = parts_of_block(n, C.BLOCK_M)
    if C.NUM_LOGITS:
        ahead = load_logits(LOGITS, rows, 0, logits_strides[2], in_rows, m, C)
    for start in range(0, end, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        if C.NUM_LOGITS:
            # Loads the logits a tile ahead; the compiler does so only for operands of products.
            joint = ahead
            next_start = tl.minimum(start + C.BLOCK_N, (end - 1) // C.BLOCK_N * C.BLOCK_N)
            ahead = load_logits(LOGITS, rows, next_start, logits_strides[2], in_rows, m, C)
        seen = visible(MASK, mask_strides, rows, keys, n, m, C)
        inside = in_rows[:, None] & (keys < m)[None, :]
        key = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_MN)
        s = scores(q, key, BIAS, bias_strides, rows, keys, n, m, factor, C)
        phi = where_seen(seen, s - score_lse[:, None], 0.0, C)
        shape_term = 0.0
        scale_term = 0.0
        if C.NUM_LOGITS:
            shape_logits, scale_logits = split_logits(joint, C)
            dshape_logits, dscale_logits = shape_logits, scale_logits
            if C.SHAPE_TYPE == "upward":
                shape_term, shape_slope = softplus_term_and_slope(
                    shape_logits, C.IS_POSITIVE, C.PRECISION != "half"
                )
            if C.HAS_SCALE:
                scale_term, scale_slope = softplus_term_and_slope(
                    scale_logits, C.IS_POSITIVE, C.PRECISION != "half"
                )
        k, bare_k = shape(phi, shape_term, rho_ln2, fixed_k, C, LARGE_K)
        t, log_m, slope, log_lam, lam, bare, sigma, expected, psi = moments(
            phi, bare_k, k, scale_term, sigma_ln2, log_beta, LARGE_K, C
        )

        # From the output to the logits.
        if C.IS_SAMPLE:
            g = log_exponential(uniform_bits(first, second, keys), C.IS_TRUNCATED)
            logits = log_lam + t * g
            g = g * LN2
        else:
            g = slope
            logits = log_lam + log_m
        w = where_seen(seen, tl.exp2(logits - lse[:, None]), 0.0, C)
        v = load_rows(V, keys, value_columns, v_strides[2], m, C.VALUE_DIM, C.BLOCK_DV, C.EVEN_MN)
        dw = dot(dout, tl.trans(v).to(dout.dtype), C.PRECISION == "ieee")
        dlogits = w * (dw - delta[:, None])
        at = pair_offsets(rows, keys, m, 1)
        store_pairs(WEIGHTS, at, w, inside, C.EVEN_MN)

        # From logits and KL to the log of the scale and 1/k.
        dscale = dlogits
        dt = dlogits * g
        if C.PRIOR_TYPE != "none":
            alpha = alpha_constant
            if C.PRIOR_TYPE != "constant":
                alpha = prior_shape(PRIOR, keys, m, seen, prior_lse, C)
            weight = where_seen(seen, dkl[:, None], 0.0, C)
            dscale += weight * (expected - alpha)
            dt += weight * (alpha * EULER + expected * psi - k)
            if C.PRIOR_TYPE != "constant":
                # The gradient of log alpha; or, normalised over all keys, the pairs' part of the
                # gradient of alpha.
                dalpha = EULER * t - LN2 * log_lam - LN2 * log_beta
                if C.PRIOR_TYPE == "rows":
                    dalpha = alpha * dalpha + alpha_digamma_of(alpha)
                dalpha = weight * dalpha
                if C.PRIOR_TYPE == "rows":
                    prior_sum += tl.sum(dalpha, 1)
                store_parts(PRIOR_PART, parts, keys, m, dalpha, False, C.BLOCK_M, C.BLOCK_N)

        # From scale and 1/k to scores and logits; zero at masked pairs, as `w` and `weight` are.
        dphi = dscale
        if C.HAS_SCALE:
            dlam = dscale * reciprocal(lam)
            dphi = dlam * bare
            dscale_logits = dlam * (sigma * (1.0 / LN2)) * scale_slope
        if C.SHAPE_TYPE != "fixed":
            dt -= dphi * slope
            dk = -t * t * dt
            if not LARGE_K:
                dk = tl.where(k > SMALLEST_K, dk, 0.0)
            if C.IS_NORMALIZED:
                dphi += dk * bare_k
            else:
                dphi += tl.where(phi < LARGEST_PHI, dk * bare_k, 0.0)
            if C.SHAPE_TYPE == "upward":
                dshape_logits = dk * shape_slope * (rho_ln2 * (1.0 / LN2))
        if C.NUM_LOGITS:
            store_logits(
                DLOGITS, rows, start, logits_strides[2], in_rows, m, dshape_logits, dscale_logits,
                C.SHAPE_TYPE == "upward", C,
            )  # fmt: skip
        if C.IS_COMPLETE:
            dquery += dot(dphi.to(key.dtype), key, C.PRECISION == "ieee")
        else:
            row_sum += tl.sum(dphi, 1)
        store_pairs(DPHI, at, dphi, inside, C.EVEN_MN)
    return row_sum, prior_sum, dquery


@triton.jit
def complete_rows(call, sums, C: tl.constexpr):
    """Adds the gradients through the normalisers of scores and prior; their sum for queries."""
    q, tensors, outputs, strides, row, tile, end, n, m, numbers = call
    K, _, _, PRIOR, MASK, BIAS = tensors
    _, _, DPHI, PRIOR_PART = outputs
    k_strides, _, _, mask_strides, bias_strides = strides
    _, _, _, _, _, _, score_lse, prior_lse = row
    row_sum, prior_sum, dquery = sums
    rows, in_rows, columns, _ = tile
    parts = parts_of_block(n, C.BLOCK_M)
    for start in range(0, end, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        seen = visible(MASK, mask_strides, rows, keys, n, m, C)
        if not C.IS_COMPLETE:
            inside = in_rows[:, None] & (keys < m)[None, :]
            key = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_MN)
            s = scores(q, key, BIAS, bias_strides, rows, keys, n, m, numbers[0], C)
            p = tl.exp2(where_seen(seen, s - score_lse[:, None], LOWEST, C))
            at = pair_offsets(rows, keys, m, 1)
            ds = load_pairs(DPHI, at, inside, C.EVEN_MN) - p * row_sum[:, None]
            store_pairs(DPHI, at, ds, inside, C.EVEN_MN)
            dquery += dot(ds.to(key.dtype), key, C.PRECISION == "ieee")
        if C.PRIOR_TYPE == "rows":
            alpha = prior_shape(PRIOR, keys, m, seen, prior_lse, C)
            dalpha = where_seen(seen, -alpha * prior_sum[:, None], 0.0, C)
            store_parts(PRIOR_PART, parts, keys, m, dalpha, True, C.BLOCK_M, C.BLOCK_N)
    return dquery


@triton.jit
def parts_of_block(n, BLOCK_M: tl.constexpr):
    """The parts into which the prior's gradients of a block of rows are summed."""
    PARTS: tl.constexpr = BLOCK_M // ROWS_OF_A_PART
    tile, _ = tile_and_plane(n, BLOCK_M)
    return tile * PARTS + tl.arange(0, PARTS)


@triton.jit
def store_parts(
    PRIOR_PART, parts, keys, m, values, ADD: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Stores sums over a few rows, within a warp, as parts, or adds them if ADD."""
    PARTS: tl.constexpr = BLOCK_M // ROWS_OF_A_PART
    sums = tl.sum(tl.reshape(values, [PARTS, ROWS_OF_A_PART, BLOCK_N]), 1)
    at = PRIOR_PART + parts[:, None].to(tl.int64) * m + keys[None, :]
    if ADD:
        sums += tl.load(at, mask=(keys < m)[None, :], other=0.0)
    tl.store(at, sums, mask=(keys < m)[None, :])


@triton.jit(do_not_specialize=["first_example"])
def attend_backward_rows(
    inputs, saved, outputs, strides, sizes, first_example, numbers, C: tl.constexpr
):
    """One block of queries of one head, of the examples from `first_example` on.

    WEIGHTS, DPHI without a bias, and logits that maps over heads have computed are of these
    examples alone, and all other tensors of the whole batch.
    """
    BLOCK_M: tl.constexpr = C.BLOCK_M
    BLOCK_N: tl.constexpr = C.BLOCK_N
    Q, K, V, LOGITS, MASK, BIAS, SEEDS = inputs
    OUT, STATS, DOUT, DKL = saved
    DLOGITS, WEIGHTS, DPHI, PRIOR_PART, DQ = outputs
    (q_strides, k_strides, v_strides, out_strides, dout_strides, dkl_strides, dq_strides,
     logits_strides, mask_strides, bias_strides) = strides  # fmt: skip
    heads, groups, n, m, row_count, prior_parts, rows_per_seed = sizes
    LSE, SCORE_LSE, PRIOR_LSE, SMALLEST, ROW_END, PRIOR, _ = parts_of_stats(STATS, row_count, 0)
    factor = numbers[0]
    tile, own_plane = tile_and_plane(n, BLOCK_M)
    plane = first_example * heads + own_plane
    batch, head = plane // heads, plane % heads
    rows = tile * BLOCK_M + tl.arange(0, C.BLOCK_M)
    in_rows = rows < n
    row_places = plane.to(tl.int64) * n + rows
    columns, value_columns = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_DV)
    K = at_head(K, k_strides, batch, head // groups)
    V = at_head(V, v_strides, batch, head // groups)
    logits_batch = own_plane // heads if C.IS_POSITIVE else batch
    LOGITS = at_head(LOGITS, logits_strides, logits_batch, head)
    DLOGITS = at_head(DLOGITS, logits_strides, logits_batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    BIAS = at_head(BIAS, bias_strides, batch, head)
    PRIOR += (plane // groups).to(tl.int64) * m
    PRIOR_PART += plane.to(tl.int64) * prior_parts * m
    WEIGHTS += own_plane.to(tl.int64) * n * m
    DPHI += (plane if C.HAS_BIAS else own_plane).to(tl.int64) * n * m
    Q = at_head(Q, q_strides, batch, head)
    q = load_rows(Q, rows, columns, q_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_MN)
    DOUT = at_head(DOUT, dout_strides, batch, head)
    dout = load_rows(
        DOUT, rows, value_columns, dout_strides[2], n, C.VALUE_DIM, C.BLOCK_DV, C.EVEN_MN
    )
    OUT = at_head(OUT, out_strides, batch, head)
    out = load_rows(OUT, rows, value_columns, out_strides[2], n, C.VALUE_DIM, C.BLOCK_DV, C.EVEN_MN)
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    lse = tl.load(LSE + row_places, mask=in_rows, other=0.0)
    score_lse = tl.zeros([BLOCK_M], tl.float32)
    prior_lse = tl.zeros([BLOCK_M], tl.float32)
    dkl = tl.zeros([BLOCK_M], tl.float32)
    if C.IS_NORMALIZED:
        score_lse = tl.load(SCORE_LSE + row_places, mask=in_rows, other=0.0)
    if C.PRIOR_TYPE == "rows":
        prior_lse = tl.load(PRIOR_LSE + row_places, mask=in_rows, other=0.0)
    if C.PRIOR_TYPE != "none":
        DKL = at_head(DKL, dkl_strides, batch, head)
        dkl = tl.load(DKL + rows * dkl_strides[2], mask=in_rows, other=0.0)
    first = rows
    second = rows
    if C.IS_SAMPLE:
        first, second = row_keys(SEEDS, batch, head, heads, rows, rows_per_seed)
    end = m
    if C.MASK_TYPE != "none":
        end = tl.max(tl.load(ROW_END + row_places, mask=in_rows, other=0).to(tl.int32))
        end = tl.cdiv(end, C.BLOCK_N) * C.BLOCK_N

    large_k = False
    TRY_LARGE_K: tl.constexpr = (
        C.LARGE_K and C.SHAPE_TYPE == "upward" and C.HAS_SCALE and C.IS_NORMALIZED
        and C.HAS_OWN_MOMENT and C.IS_SAMPLE
    )  # fmt: skip
    if TRY_LARGE_K:
        large_k = tl.min(tl.load(SMALLEST + row_places, mask=in_rows, other=1.0)) >= 1.0
    tensors = (K, V, LOGITS, PRIOR, MASK, BIAS)
    written = (DLOGITS, WEIGHTS, DPHI, PRIOR_PART)
    tensor_strides = (k_strides, v_strides, logits_strides, mask_strides, bias_strides)
    row = (first, second, dout, delta, dkl, lse, score_lse, prior_lse)
    tile = (rows, in_rows, columns, value_columns)
    call = (q, tensors, written, tensor_strides, row, tile, end, n, m, numbers)
    if large_k:
        row_sum, prior_sum, dquery = row_gradients(call, C, TRY_LARGE_K)
    else:
        row_sum, prior_sum, dquery = row_gradients(call, C, False)

    if C.MASK_TYPE != "none":
        # Zeros for keys that no query of the block sees.
        nothing = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        parts = parts_of_block(n, C.BLOCK_M)
        for start in range(end, m, C.BLOCK_N):
            keys = start + tl.arange(0, C.BLOCK_N)
            inside = in_rows[:, None] & (keys < m)[None, :]
            at = pair_offsets(rows, keys, m, 1)
            store_pairs(WEIGHTS, at, nothing, inside, C.EVEN_MN)
            store_pairs(DPHI, at, nothing, inside, C.EVEN_MN)
            if C.NUM_LOGITS:
                store_logits(
                    DLOGITS, rows, start, logits_strides[2], in_rows, m, nothing, nothing, True, C
                )
            if C.PRIOR_TYPE != "none" and C.PRIOR_TYPE != "constant":
                store_parts(PRIOR_PART, parts, keys, m, nothing, False, C.BLOCK_M, C.BLOCK_N)

    if not C.IS_COMPLETE or C.PRIOR_TYPE == "rows":
        tl.debug_barrier()  # until the numbers of all pairs are stored
        dquery = complete_rows(call, (row_sum, prior_sum, dquery), C)
    DQ = at_head(DQ, dq_strides, batch, head)
    store_rows(DQ, rows, columns, dq_strides[2], n, dquery * (factor * LN2), C.HEAD_DIM)


@triton.jit(do_not_specialize=["first_example"])
def attend_backward_columns(
    inputs, outputs, strides, sizes, first_example, factor, C: tl.constexpr
):
    """One block of keys of one head, with examples as in `attend_backward_rows`."""
    BLOCK_D: tl.constexpr = C.BLOCK_D
    BLOCK_DV: tl.constexpr = C.BLOCK_DV
    BLOCK_N: tl.constexpr = C.BLOCK_N
    Q, DOUT, WEIGHTS, DSCORES, STATS = inputs
    DK, DVALUE = outputs
    q_strides, dout_strides, dk_strides, dv_strides = strides
    heads, n, m, row_count = sizes
    _, _, _, _, ROW_END, _, _ = parts_of_stats(STATS, row_count, 0)
    tile, own_plane = tile_and_plane(m, BLOCK_N)
    plane = first_example * heads + own_plane
    batch, head = plane // heads, plane % heads
    keys = tile * BLOCK_N + tl.arange(0, C.BLOCK_N)
    columns, value_columns = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_DV)
    Q = at_head(Q, q_strides, batch, head)
    DOUT = at_head(DOUT, dout_strides, batch, head)
    WEIGHTS += own_plane.to(tl.int64) * n * m
    DSCORES += (plane if C.HAS_BIAS else own_plane).to(tl.int64) * n * m
    dkey = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dvalue = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for start in range(0, n, C.BLOCK_M):
        rows = start + tl.arange(0, C.BLOCK_M)
        is_seen = True
        if C.MASK_TYPE != "none":
            ends = tl.load(ROW_END + plane.to(tl.int64) * n + rows, mask=rows < n, other=0)
            is_seen = tl.max(ends) > tile * BLOCK_N
        if is_seen:
            inside = (rows[:, None] < n) & (keys[None, :] < m)
            at = pair_offsets(rows, keys, m, 1)
            w = load_as_is(WEIGHTS, at, inside, C.EVEN_MN)
            dout = load_rows(
                DOUT, rows, value_columns, dout_strides[2], n, C.VALUE_DIM, C.BLOCK_DV, C.EVEN_MN
            )
            dvalue += dot(tl.trans(w), dout.to(w.dtype), C.PRECISION == "ieee")
            ds = load_as_is(DSCORES, at, inside, C.EVEN_MN)
            q = load_rows(Q, rows, columns, q_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_MN)
            dkey += dot(tl.trans(ds), q.to(ds.dtype), C.PRECISION == "ieee")
    DK = at_head(DK, dk_strides, batch, head)
    store_rows(DK, keys, columns, dk_strides[2], m, dkey * (factor * LN2), C.HEAD_DIM)
    DVALUE = at_head(DVALUE, dv_strides, batch, head)
    store_rows(DVALUE, keys, value_columns, dv_strides[2], m, dvalue, C.VALUE_DIM)
