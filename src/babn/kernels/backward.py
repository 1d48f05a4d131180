"""The backward kernels.

The first draws the noise again, evaluates the posterior once more, and stores two numbers for each
pair: its weight, and the gradient of its score before normalisation. From these the second sums
over queries for keys, values and prior, and the third over keys for queries; both finish the
gradient of scores as they go. Where there is nothing to finish, since a row's gradients add up to
zero, the first sums for queries too.
"""

import triton
import triton.language as tl

from babn.kernels import limits
from babn.kernels.noise import log_exponential, row_keys, uniform_bits
from babn.kernels.posterior import (
    FIXED,
    LARGEST_PHI,
    LIFTED,
    SMALLEST_K,
    alpha_digamma_of,
    moments,
    moments_of_large_k,
    raised,
    shape,
)
from babn.kernels.special import EULER, INTERPRETED, LN2, exp2, reciprocal
from babn.kernels.tiles import (
    CONSTANT,
    LOWEST,
    PACKED,
    ROWWISE,
    at_head,
    beside,
    dot,
    keys_of_tile,
    load_as_is,
    load_lift,
    load_packed,
    load_packed_here,
    load_rows,
    pair_offsets,
    prior_shape,
    scores,
    store_lift,
    store_pairs,
    store_rows,
    store_tile,
    unpack,
    visible,
    where_seen,
)

ROWS_OF_A_PART = tl.constexpr(limits.ROWS_OF_A_PART)
"""Of the prior's gradient. Where rows normalise the prior themselves, the last part is what their
normalisers take away."""


@triton.jit
def row_gradients(
    q, K, V, U1, U2, PRIOR, MASK, BIAS, DU1, DU2, WEIGHTS, DPHI, PRIOR_PART,
    rows, in_rows, columns, value_columns, first, second, dout, delta, dkl, lse, score_lse,
    prior_lse, end,
    k_strides, v_strides, lift_strides, mask_strides, bias_strides,
    n, m, factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
    SHAPE: tl.constexpr, LIFT: tl.constexpr, NORMALIZED: tl.constexpr, SAMPLE: tl.constexpr,
    TRUNCATED: tl.constexpr, OWN_MOMENT: tl.constexpr, PRIORS: tl.constexpr,
    POSITIVE: tl.constexpr, LIFTS: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    IEEE: tl.constexpr, FULL: tl.constexpr, LARGE_K: tl.constexpr, BALANCED: tl.constexpr,
):  # fmt: skip
    """Gradients of all pairs of the rows; their sums over keys for scores, prior and queries."""
    ALL: tl.constexpr = FULL and MASKED == 0
    HALF: tl.constexpr = V.dtype.element_ty
    HERE: tl.constexpr = (
        FULL and not INTERPRETED and tl.float32 != HALF
        and (BN == 16 or (BN == 32 and LIFTS == 0)) and (LIFTS == 0 or LIFTS == PACKED)
    )  # fmt: skip
    row_sum = tl.zeros([BM], tl.float32)
    prior_sum = tl.zeros([BM], tl.float32)
    dquery = row_sum
    if BALANCED:
        dquery = tl.zeros([BM, BD], tl.float32)
    parts = tl.program_id(0) * (BM // ROWS_OF_A_PART) + tl.arange(0, BM // ROWS_OF_A_PART)
    # Lifts are loaded a tile ahead of their use, which the compiler does only for products.
    if HERE and LIFTS == PACKED:
        nothing = tl.zeros([BM, BN], tl.float32)
        ahead = load_packed_here(U1, rows, 0, lift_strides[2], nothing, BM)
    elif LIFTS == PACKED:
        keys = tl.arange(0, BN)
        inside = in_rows[:, None] & (keys < m)[None, :]
        ahead = load_packed(U1, rows, keys, lift_strides[2], inside, end > 0, FULL)
    for start in range(0, end, BN):
        keys = keys_of_tile(start, BN, HERE)
        seen = visible(MASK, mask_strides, rows, keys, n, m, MASKED, FULL)
        inside = in_rows[:, None] & (keys < m)[None, :]
        key = load_rows(K, keys, columns, k_strides[2], m, D, BD, FULL)
        s = scores(q, key, BIAS, bias_strides, rows, keys, factor, inside, BIASED, IEEE, FULL)
        phi = where_seen(seen, s - score_lse[:, None], 0.0, ALL)
        raise1 = 0.0
        raise2 = 0.0
        if LIFTS:
            if HERE and LIFTS == PACKED:
                u1, u2 = unpack(ahead.to(tl.uint32, bitcast=True), HALF)
                later = tl.minimum(start + BN, end - BN)
                ahead = load_packed_here(U1, rows, later, lift_strides[2], s, BM)
            elif LIFTS == PACKED:
                u1, u2 = unpack(beside(ahead, s).to(tl.uint32, bitcast=True), HALF)
                later = in_rows[:, None] & (keys + BN < m)[None, :]
                more = start + BN < end
                ahead = load_packed(U1, rows, keys + BN, lift_strides[2], later, more, FULL)
            else:
                u1, u2 = load_lift(U1, U2, rows, keys, lift_strides[2], inside, LIFTS, HALF, FULL)
            du1, du2 = u1, u2
            if SHAPE == LIFTED:
                raise1, slope1 = raised(u1, POSITIVE, IEEE)
            if LIFT:
                raise2, slope2 = raised(u2, POSITIVE, IEEE)
        k, bare_k = shape(phi, raise1, rho_ln2, fixed_k, SHAPE, NORMALIZED, LARGE_K)
        if LARGE_K:
            t, log_m, slope, log_lam, lam, bare, sigma, expected, psi = moments_of_large_k(
                bare_k, k, raise2, sigma_ln2, log_beta
            )
        else:
            t, log_m, slope, log_lam, lam, bare, sigma, expected, psi = moments(
                phi, k, raise2, sigma_ln2, log_beta, LIFT, NORMALIZED, OWN_MOMENT
            )

        # From the output to the logits.
        if SAMPLE:
            g = log_exponential(uniform_bits(first, second, keys), TRUNCATED)
            logits = log_lam + t * g
            g = g * LN2
        else:
            g = slope
            logits = log_lam + log_m
        w = where_seen(seen, exp2(logits - lse[:, None]), 0.0, ALL)
        v = load_rows(V, keys, value_columns, v_strides[2], m, DV, BDV, FULL)
        dw = dot(dout, tl.trans(v).to(dout.dtype), IEEE)
        dlogits = w * (dw - delta[:, None])
        store_tile(WEIGHTS, rows, start, m, w, inside, BM, BN, FULL, HERE)

        # From logits and divergence to scale (its log) and 1/k.
        dscale = dlogits
        dt = dlogits * g
        if PRIORS != 0:
            alpha = alpha_constant
            if PRIORS != CONSTANT:
                alpha = prior_shape(PRIOR, keys, m, seen, prior_lse, PRIORS, ALL)
            weight = where_seen(seen, dkl[:, None], 0.0, ALL)
            dscale += weight * (expected - alpha)
            dt += weight * (alpha * EULER + expected * psi - k)
            if PRIORS != CONSTANT:
                # By its log, or where keys alone decide about it, what pairs add to that over it.
                dalpha = EULER * t - LN2 * log_lam - LN2 * log_beta
                if PRIORS == ROWWISE:
                    dalpha = alpha * dalpha + alpha_digamma_of(alpha)
                dalpha = weight * dalpha
                if PRIORS == ROWWISE:
                    prior_sum += tl.sum(dalpha, 1)
                store_parts(PRIOR_PART, parts, keys, m, dalpha, BM, BN)

        # From scale and 1/k to scores and upward path; zero where nothing is seen, as `w` and
        # `weight` are.
        dphi = dscale
        if LIFT:
            dlam = dscale * reciprocal(lam)
            dphi = dlam * bare
            du2 = dlam * (sigma * (1.0 / LN2)) * slope2
        if SHAPE != FIXED:
            dt -= dphi * slope
            dk = -t * t * dt
            if not LARGE_K:
                dk = tl.where(k > SMALLEST_K, dk, 0.0)
            if NORMALIZED:
                dphi += dk * bare_k
            else:
                dphi += tl.where(phi < LARGEST_PHI, dk * bare_k, 0.0)
            if SHAPE == LIFTED:
                du1 = dk * slope1 * (rho_ln2 * (1.0 / LN2))
        if LIFTS:
            store_lift(
                DU1, DU2, rows, start, lift_strides[2], du1, du2, inside,
                LIFTS, HALF, SHAPE == LIFTED, BM, BN, FULL, HERE,
            )  # fmt: skip
        if BALANCED:
            dquery += dot(dphi.to(key.dtype), key, IEEE)
        else:
            row_sum += tl.sum(dphi, 1)
        store_tile(DPHI, rows, start, m, dphi, inside, BM, BN, FULL, HERE)
    return row_sum, prior_sum, dquery


@triton.jit
def store_parts(PRIOR_PART, parts, keys, m, values, BM: tl.constexpr, BN: tl.constexpr):
    """Sums over a few rows at a time, which stay within a warp."""
    PARTS: tl.constexpr = BM // ROWS_OF_A_PART
    sums = tl.sum(tl.reshape(values, [PARTS, ROWS_OF_A_PART, BN]), 1)
    at = parts[:, None].to(tl.int64) * m + keys[None, :]
    tl.store(PRIOR_PART + at, sums, mask=(keys < m)[None, :])


@triton.jit(do_not_specialize=["first_example"])
def attend_backward_rows(
    Q, K, V, U1, U2, PRIOR, MASK, BIAS, SEEDS, OUT, LSE, SCORE_LSE, PRIOR_LSE, SMALLEST, ROW_END,
    DOUT, DKL, DU1, DU2, WEIGHTS, DPHI, ROW_SUM, PRIOR_SUM, PRIOR_PART, DQ,
    q_strides, k_strides, v_strides, out_strides, dout_strides, dq_strides, lift_strides,
    mask_strides, bias_strides,
    heads, groups, n, m, prior_parts, first_example, rows_per_seed,
    factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
    SHAPE: tl.constexpr, LIFT: tl.constexpr, NORMALIZED: tl.constexpr, SAMPLE: tl.constexpr,
    TRUNCATED: tl.constexpr, OWN_MOMENT: tl.constexpr, PRIORS: tl.constexpr,
    LARGE_K: tl.constexpr,
    POSITIVE: tl.constexpr, LIFTS: tl.constexpr, BALANCED: tl.constexpr,
    MASKED: tl.constexpr, BIASED: tl.constexpr, IEEE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head; tensors begin at one of the batch's examples."""
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
    DU1 = at_head(DU1, lift_strides, batch, head)
    DU2 = at_head(DU2, lift_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    BIAS = at_head(BIAS, bias_strides, batch, head)
    PRIOR += (plane // groups).to(tl.int64) * m
    PRIOR_PART += plane.to(tl.int64) * prior_parts * m
    WEIGHTS += plane.to(tl.int64) * n * m
    DPHI += plane.to(tl.int64) * n * m
    Q = at_head(Q, q_strides, batch, head)
    q = load_rows(Q, rows, columns, q_strides[2], n, D, BD, FULL)
    DOUT = at_head(DOUT, dout_strides, batch, head)
    dout = load_rows(DOUT, rows, value_columns, dout_strides[2], n, DV, BDV, FULL)
    OUT = at_head(OUT, out_strides, batch, head)
    out = load_rows(OUT, rows, value_columns, out_strides[2], n, DV, BDV, FULL)
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    lse = tl.load(LSE + row_places, mask=in_rows, other=0.0)
    score_lse = tl.zeros([BM], tl.float32)
    prior_lse = tl.zeros([BM], tl.float32)
    dkl = tl.zeros([BM], tl.float32)
    if NORMALIZED:
        score_lse = tl.load(SCORE_LSE + row_places, mask=in_rows, other=0.0)
    if PRIORS == ROWWISE:
        prior_lse = tl.load(PRIOR_LSE + row_places, mask=in_rows, other=0.0)
    if PRIORS != 0:
        dkl = tl.load(DKL + row_places, mask=in_rows, other=0.0)
    first = rows
    second = rows
    if SAMPLE:
        example = first_example + batch
        first, second = row_keys(SEEDS, example, head, heads, rows, rows_per_seed)
    end = m
    if MASKED:
        end = tl.max(tl.load(ROW_END + row_places, mask=in_rows, other=0))
        end = tl.cdiv(end, BN) * BN

    large_k = False
    TRY_LARGE_K: tl.constexpr = (
        LARGE_K and SHAPE == LIFTED and LIFT and NORMALIZED and OWN_MOMENT and SAMPLE
    )
    if TRY_LARGE_K:
        large_k = tl.min(tl.load(SMALLEST + row_places, mask=in_rows, other=1.0)) >= 1.0
    if large_k:
        row_sum, prior_sum, dquery = row_gradients(
            q, K, V, U1, U2, PRIOR, MASK, BIAS, DU1, DU2, WEIGHTS, DPHI, PRIOR_PART,
            rows, in_rows, columns, value_columns, first, second, dout, delta, dkl, lse, score_lse,
            prior_lse, end,
            k_strides, v_strides, lift_strides, mask_strides, bias_strides,
            n, m, factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant,
            D, DV, BD, BDV, BM, BN, SHAPE, LIFT, NORMALIZED, SAMPLE, TRUNCATED, OWN_MOMENT, PRIORS,
            POSITIVE, LIFTS, MASKED, BIASED, IEEE, FULL, TRY_LARGE_K, BALANCED,
        )  # fmt: skip
    else:
        row_sum, prior_sum, dquery = row_gradients(
            q, K, V, U1, U2, PRIOR, MASK, BIAS, DU1, DU2, WEIGHTS, DPHI, PRIOR_PART,
            rows, in_rows, columns, value_columns, first, second, dout, delta, dkl, lse, score_lse,
            prior_lse, end,
            k_strides, v_strides, lift_strides, mask_strides, bias_strides,
            n, m, factor, rho_ln2, fixed_k, sigma_ln2, log_beta, alpha_constant,
            D, DV, BD, BDV, BM, BN, SHAPE, LIFT, NORMALIZED, SAMPLE, TRUNCATED, OWN_MOMENT, PRIORS,
            POSITIVE, LIFTS, MASKED, BIASED, IEEE, FULL, False, BALANCED,
        )  # fmt: skip

    if MASKED:
        # Nothing flows where no query of the block looks.
        nothing = tl.zeros([BM, BN], tl.float32)
        parts = tl.program_id(0) * (BM // ROWS_OF_A_PART) + tl.arange(0, BM // ROWS_OF_A_PART)
        for start in range(end, m, BN):
            keys = start + tl.arange(0, BN)
            inside = in_rows[:, None] & (keys < m)[None, :]
            store_tile(WEIGHTS, rows, start, m, nothing, inside, BM, BN, FULL, False)
            store_tile(DPHI, rows, start, m, nothing, inside, BM, BN, FULL, False)
            if LIFTS:
                store_lift(
                    DU1, DU2, rows, start, lift_strides[2], nothing, nothing, inside,
                    LIFTS, V.dtype.element_ty, SHAPE == LIFTED, BM, BN, FULL, False,
                )  # fmt: skip
            if PRIORS != 0 and PRIORS != CONSTANT:
                store_parts(PRIOR_PART, parts, keys, m, nothing, BM, BN)

    if BALANCED:
        DQ = at_head(DQ, dq_strides, batch, head)
        store_rows(DQ, rows, columns, dq_strides[2], n, dquery * (factor * LN2), D)
    elif NORMALIZED:
        tl.store(ROW_SUM + row_places, row_sum, mask=in_rows)
    if PRIORS == ROWWISE:
        tl.store(PRIOR_SUM + row_places, prior_sum, mask=in_rows)


@triton.jit
def attend_backward_columns(
    Q, K, PRIOR, MASK, BIAS, SCORE_LSE, PRIOR_LSE, ROW_END, DOUT, WEIGHTS, DPHI, ROW_SUM, PRIOR_SUM,
    DK, DVALUE, PRIOR_PART, DQ,
    q_strides, k_strides, dout_strides, dk_strides, dv_strides, dq_strides, mask_strides,
    bias_strides,
    heads, groups, n, m, prior_parts, factor,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
    NORMALIZED: tl.constexpr, PRIORS: tl.constexpr, WHOLE: tl.constexpr,
    MASKED: tl.constexpr, BIASED: tl.constexpr, IEEE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One block of keys of one head; if it is the WHOLE of them, gradients of queries as well."""
    ALL: tl.constexpr = FULL and MASKED == 0
    plane = tl.program_id(1)
    batch, head = plane // heads, plane % heads
    keys = tl.program_id(0) * BN + tl.arange(0, BN)
    columns, value_columns = tl.arange(0, BD), tl.arange(0, BDV)
    Q = at_head(Q, q_strides, batch, head)
    K = at_head(K, k_strides, batch, head // groups)
    DOUT = at_head(DOUT, dout_strides, batch, head)
    DQ = at_head(DQ, dq_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    BIAS = at_head(BIAS, bias_strides, batch, head)
    PRIOR += (plane // groups).to(tl.int64) * m
    WEIGHTS += plane.to(tl.int64) * n * m
    DPHI += plane.to(tl.int64) * n * m
    key = load_rows(K, keys, columns, k_strides[2], m, D, BD, FULL)
    dkey = tl.zeros([BN, BD], tl.float32)
    dvalue = tl.zeros([BN, BDV], tl.float32)
    dprior = tl.zeros([BN], tl.float32)
    for start in range(0, n, BM):
        rows = start + tl.arange(0, BM)
        row_places = plane.to(tl.int64) * n + rows
        looks = True
        if MASKED:
            ends = tl.load(ROW_END + row_places, mask=rows < n, other=0)
            looks = tl.max(ends) > tl.program_id(0) * BN
        if looks:
            inside = (rows[:, None] < n) & (keys[None, :] < m)
            at = pair_offsets(rows, keys, m, 1)
            w = load_as_is(WEIGHTS, at, inside, FULL)
            dout = load_rows(DOUT, rows, value_columns, dout_strides[2], n, DV, BDV, FULL)
            dvalue += dot(tl.trans(w), dout.to(w.dtype), IEEE)
            q = load_rows(Q, rows, columns, q_strides[2], n, D, BD, FULL)
            ds = load_as_is(DPHI, at, inside, FULL)
            if NORMALIZED or PRIORS == ROWWISE:
                seen = visible(MASK, mask_strides, rows, keys, n, m, MASKED, FULL)
            if NORMALIZED:
                s = scores(
                    q, key, BIAS, bias_strides, rows, keys, factor, inside, BIASED, IEEE, FULL
                )
                score_lse = tl.load(SCORE_LSE + row_places, mask=rows < n, other=0.0)
                row_sum = tl.load(ROW_SUM + row_places, mask=rows < n, other=0.0)
                ds = finished(ds, s, score_lse, row_sum, seen, ALL)
            dkey += dot(tl.trans(ds), q.to(ds.dtype), IEEE)
            if WHOLE:
                dquery = dot(ds, key.to(ds.dtype), IEEE) * (factor * LN2)
                store_rows(DQ, rows, columns, dq_strides[2], n, dquery, D)
                if BIASED and NORMALIZED:
                    store_pairs(DPHI, at, ds, inside, FULL)
            if PRIORS == ROWWISE:
                prior_lse = tl.load(PRIOR_LSE + row_places, mask=rows < n, other=0.0)
                prior_sum = tl.load(PRIOR_SUM + row_places, mask=rows < n, other=0.0)
                alpha = prior_shape(PRIOR, keys, m, seen, prior_lse, PRIORS, ALL)
                dprior -= tl.sum(where_seen(seen, alpha * prior_sum[:, None], 0.0, ALL), 0)
        elif WHOLE:
            nothing = tl.zeros([BM, BD], tl.float32)
            store_rows(DQ, rows, columns, dq_strides[2], n, nothing, D)
    DK = at_head(DK, dk_strides, batch, head)
    store_rows(DK, keys, columns, dk_strides[2], m, dkey * (factor * LN2), D)
    DVALUE = at_head(DVALUE, dv_strides, batch, head)
    store_rows(DVALUE, keys, value_columns, dv_strides[2], m, dvalue, DV)
    if PRIORS == ROWWISE:
        PRIOR_PART += (plane.to(tl.int64) * prior_parts + prior_parts - 1) * m
        tl.store(PRIOR_PART + keys, dprior, mask=keys < m)


@triton.jit
def finished(dphi, s, score_lse, row_sum, seen, ALL: tl.constexpr):
    """The gradient of scores, from that of their normalised logarithms."""
    p = exp2(where_seen(seen, s - score_lse[:, None], LOWEST, ALL))
    return (dphi.to(tl.float32) - p * row_sum[:, None]).to(dphi.dtype)


@triton.jit
def attend_backward_queries(
    Q, K, MASK, BIAS, SCORE_LSE, ROW_END, DPHI, ROW_SUM, DQ,
    q_strides, k_strides, dq_strides, mask_strides, bias_strides,
    heads, groups, n, m, factor,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    NORMALIZED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    IEEE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head; for a bias, leaves the gradient of scores in DPHI."""
    ALL: tl.constexpr = FULL and MASKED == 0
    plane = tl.program_id(1)
    batch, head = plane // heads, plane % heads
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    in_rows = rows < n
    row_places = plane.to(tl.int64) * n + rows
    columns = tl.arange(0, BD)
    K = at_head(K, k_strides, batch, head // groups)
    MASK = at_head(MASK, mask_strides, batch, head)
    BIAS = at_head(BIAS, bias_strides, batch, head)
    DPHI += plane.to(tl.int64) * n * m
    q = load_rows(at_head(Q, q_strides, batch, head), rows, columns, q_strides[2], n, D, BD, FULL)
    score_lse = tl.zeros([BM], tl.float32)
    row_sum = tl.zeros([BM], tl.float32)
    if NORMALIZED:
        score_lse = tl.load(SCORE_LSE + row_places, mask=in_rows, other=0.0)
        row_sum = tl.load(ROW_SUM + row_places, mask=in_rows, other=0.0)
    end = m
    if MASKED:
        end = tl.max(tl.load(ROW_END + row_places, mask=in_rows, other=0))
    dquery = tl.zeros([BM, BD], tl.float32)
    for start in range(0, end, BN):
        keys = start + tl.arange(0, BN)
        inside = in_rows[:, None] & (keys < m)[None, :]
        key = load_rows(K, keys, columns, k_strides[2], m, D, BD, FULL)
        at = pair_offsets(rows, keys, m, 1)
        ds = load_as_is(DPHI, at, inside, FULL)
        if NORMALIZED:
            seen = visible(MASK, mask_strides, rows, keys, n, m, MASKED, FULL)
            s = scores(q, key, BIAS, bias_strides, rows, keys, factor, inside, BIASED, IEEE, FULL)
            ds = finished(ds, s, score_lse, row_sum, seen, ALL)
            if BIASED:
                store_pairs(DPHI, at, ds, inside, FULL)
        dquery += dot(ds, key.to(ds.dtype), IEEE)
    DQ = at_head(DQ, dq_strides, batch, head)
    store_rows(DQ, rows, columns, dq_strides[2], n, dquery * (factor * LN2), D)
