"""The backward kernels: gradients by rows of queries, then by columns of keys.

The first draws the noise again, evaluates the posterior once more, and stores two numbers for each
pair (its weight and the gradient of its score before normalisation); the second reads them.
"""

import triton
import triton.language as tl

from babn.kernels.forward import (
    CONSTANT,
    LOWEST,
    ROWWISE,
    load_rows,
    load_tile,
    log_prior,
    scores,
    visible,
    where_seen,
)
from babn.kernels.noise import log_exponential, row_keys, uniform_bits
from babn.kernels.posterior import (
    FIXED,
    LARGEST_LOG,
    LARGEST_PHI,
    LIFTED,
    SMALLEST_K,
    alpha_digamma_of,
    digamma,
    inverse,
    log_gamma,
    log_moment,
    log_moment_slope,
    scale,
    shape,
)
from babn.kernels.special import EULER, LN2, LOG2_E, exp2, log2, reciprocal


@triton.jit
def attend_backward_rows(
    Q,
    K,
    V,
    U1,
    U2,
    PRIOR,
    MASK,
    BIAS,
    SEEDS,
    OUT,
    LSE,
    SCORE_LSE,
    PRIOR_LSE,
    DOUT,
    DKL,
    DQ,
    DU1,
    DU2,
    WEIGHTS,
    DPHI,
    ROW_SUM,
    PRIOR_SUM,
    PRIOR_PART,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_ob,
    stride_oh,
    stride_on,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_ub,
    stride_uh,
    stride_un,
    stride_db,
    stride_dh,
    stride_dn,
    stride_mb,
    stride_mh,
    stride_mn,
    stride_mm,
    stride_bb,
    stride_bh,
    stride_bn,
    stride_bm,
    heads,
    groups,
    n,
    m,
    rows_per_seed,
    call,
    factor,
    rho_ln2,
    fixed_k,
    sigma_ln2,
    log_beta,
    alpha_constant,
    D: tl.constexpr,
    DV: tl.constexpr,
    BD: tl.constexpr,
    BDV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SHAPE: tl.constexpr,
    LIFT: tl.constexpr,
    NORMALIZED: tl.constexpr,
    SAMPLE: tl.constexpr,
    TRUNCATED: tl.constexpr,
    OWN_MOMENT: tl.constexpr,
    PRIORS: tl.constexpr,
    MASKED: tl.constexpr,
    BIASED: tl.constexpr,
    IEEE: tl.constexpr,
    FULL: tl.constexpr,
):
    """One block of queries of one head."""
    plane = tl.program_id(1)
    batch, head = plane // heads, plane % heads
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    in_rows = rows < n
    columns, value_columns = tl.arange(0, BD), tl.arange(0, BDV)
    batch64, plane64 = batch.to(tl.int64), plane.to(tl.int64)
    Q += batch64 * stride_qb + head * stride_qh
    K += batch64 * stride_kb + (head // groups) * stride_kh
    V += batch64 * stride_vb + (head // groups) * stride_vh
    U1 += batch64 * stride_ub + head * stride_uh
    U2 += batch64 * stride_ub + head * stride_uh
    DU1 += batch64 * stride_db + head * stride_dh
    DU2 += batch64 * stride_db + head * stride_dh
    MASK += batch64 * stride_mb + head * stride_mh
    BIAS += batch64 * stride_bb + head * stride_bh
    PRIOR += (batch64 * (heads // groups) + head // groups) * m
    WEIGHTS += plane64 * n * m
    DPHI += plane64 * n * m
    q = load_rows(Q, rows, columns, stride_qn, n, D, BD, FULL)
    dout = load_rows(
        DOUT + batch64 * stride_gb + head * stride_gh,
        rows,
        value_columns,
        stride_gn,
        n,
        DV,
        BDV,
        FULL,
    )
    out = load_rows(
        OUT + batch64 * stride_ob + head * stride_oh,
        rows,
        value_columns,
        stride_on,
        n,
        DV,
        BDV,
        FULL,
    )
    delta = tl.sum(dout.to(tl.float32) * out.to(tl.float32), 1)
    lse = tl.load(LSE + plane * n + rows, mask=in_rows, other=0.0)
    score_lse = tl.zeros([BM], tl.float32)
    prior_lse = tl.zeros([BM], tl.float32)
    dkl = tl.zeros([BM], tl.float32)
    if NORMALIZED:
        score_lse = tl.load(SCORE_LSE + plane * n + rows, mask=in_rows, other=0.0)
    if PRIORS == ROWWISE:
        prior_lse = tl.load(PRIOR_LSE + plane * n + rows, mask=in_rows, other=0.0)
    if PRIORS != 0:
        dkl = tl.load(DKL + plane * n + rows, mask=in_rows, other=0.0)
    if SAMPLE:
        first, second = row_keys(SEEDS, batch, head, heads, rows, call, rows_per_seed)

    dq = tl.zeros([BM, BD], tl.float32)
    mean_key = tl.zeros([BM, BD], tl.float32)
    row_sum = tl.zeros([BM], tl.float32)
    prior_sum = tl.zeros([BM], tl.float32)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        seen = visible(MASK, rows, keys, stride_mn, stride_mm, n, m, MASKED)
        s, key = scores(
            q,
            K,
            BIAS,
            rows,
            keys,
            columns,
            stride_kn,
            stride_bn,
            stride_bm,
            factor,
            m,
            seen,
            BIASED,
            D,
            BD,
            IEEE,
            FULL,
        )
        phi = where_seen(seen, s - score_lse[:, None], 0.0, FULL)
        u1 = 0.0
        u2 = 0.0
        if SHAPE == LIFTED:
            u1 = load_tile(U1, rows, keys, stride_un, 1, seen, FULL)
        if LIFT:
            u2 = load_tile(U2, rows, keys, stride_un, 1, seen, FULL)
        k, bare_k, slope1 = shape(phi, u1, rho_ln2, fixed_k, SHAPE, IEEE)
        t, y = inverse(k)
        log_y = log2(y)
        log_m = log_moment(t, y, log_y, OWN_MOMENT)
        slope = log_moment_slope(t, y, log_y, OWN_MOMENT)
        log_lam, lam, bare, sigma2, slope2 = scale(
            phi - log_m, u2, sigma_ln2, LIFT, NORMALIZED, IEEE
        )

        # From the output to the logits.
        if SAMPLE:
            g = log_exponential(uniform_bits(first, second, keys), TRUNCATED)
            logits = log_lam + t * g
            g = g * LN2
        else:
            g = slope
            logits = log_lam + log_m
        w = where_seen(seen, exp2(logits - lse[:, None]), 0.0, FULL)
        v = load_rows(V, keys, value_columns, stride_vn, m, DV, BDV, FULL)
        dw = tl.dot(dout, tl.trans(v).to(dout.dtype), input_precision="ieee" if IEEE else "tf32")
        dlogits = w * (dw - delta[:, None])

        # From logits and divergence to scale (its log) and 1/k.
        dscale = dlogits
        dt = dlogits * g
        if PRIORS != 0:
            alpha = alpha_constant
            if PRIORS != CONSTANT:
                alpha = exp2(log_prior(PRIOR, keys, m, seen, prior_lse, PRIORS, FULL))
            weight = where_seen(seen, dkl[:, None], 0.0, FULL)
            log_gam = log_m
            psi = slope
            if OWN_MOMENT:
                log_gam = log_gamma(t, y, log_y)
                psi = digamma(t, y, log_y)
            scaled = log_lam + log_beta
            expected = exp2(tl.minimum(scaled + log_gam, LARGEST_LOG))
            dscale += weight * (expected - alpha)
            dt += weight * (alpha * EULER + expected * psi - k)
            if PRIORS != CONSTANT:
                dalpha = alpha * (EULER * t - LN2 * scaled) + alpha_digamma_of(alpha)
                dalpha = weight * dalpha
                if PRIORS == ROWWISE:
                    prior_sum += tl.sum(dalpha, 1)
                at = PRIOR_PART + (plane64 * tl.num_programs(0) + tl.program_id(0)) * m + keys
                tl.store(at, tl.sum(dalpha, 0), mask=keys < m)

        # From scale and 1/k to scores and upward path.
        dbare = dscale
        inside = in_rows[:, None] & (keys < m)[None, :]
        at = rows[:, None].to(tl.int64) * stride_dn + keys[None, :]
        if LIFT:
            dlam = dscale * reciprocal(lam)
            dbare = dlam * bare
            du2 = dlam * (sigma2 * (1.0 / LN2)) * slope2
            du2 = where_seen(seen, du2, 0.0, FULL)
            tl.store(DU2 + at, du2.to(DU2.dtype.element_ty), mask=inside)
        dphi = dbare
        if SHAPE != FIXED:
            dt -= dbare * slope
            dk = tl.where(k > SMALLEST_K, -t * t * dt, 0.0)
            dphi += tl.where(phi < LARGEST_PHI, dk * bare_k, 0.0)
            if SHAPE == LIFTED:
                du1 = dk * slope1 * (rho_ln2 * (1.0 / LN2))
                du1 = where_seen(seen, du1, 0.0, FULL)
                tl.store(DU1 + at, du1.to(DU1.dtype.element_ty), mask=inside)
        dphi = where_seen(seen, dphi, 0.0, FULL)
        dq += tl.dot(dphi.to(key.dtype), key, input_precision="ieee" if IEEE else "tf32")
        if NORMALIZED:
            p = where_seen(seen, exp2(phi) if SHAPE == FIXED else bare_k, 0.0, FULL)
            row_sum += tl.sum(dphi, 1)
            mean_key += tl.dot(p.to(key.dtype), key, input_precision="ieee" if IEEE else "tf32")
        at = rows[:, None].to(tl.int64) * m + keys[None, :]
        tl.store(WEIGHTS + at, w.to(WEIGHTS.dtype.element_ty), mask=inside)
        tl.store(DPHI + at, dphi.to(DPHI.dtype.element_ty), mask=inside)

    dq = (dq - row_sum[:, None] * mean_key) * (factor * LN2)
    inside = in_rows[:, None] & (columns < D)[None, :]
    tl.store(
        DQ + (plane64 * n + rows)[:, None] * D + columns[None, :],
        dq.to(DQ.dtype.element_ty),
        mask=inside,
    )
    if NORMALIZED:
        tl.store(ROW_SUM + plane * n + rows, row_sum, mask=in_rows)
    if PRIORS == ROWWISE:
        tl.store(PRIOR_SUM + plane * n + rows, prior_sum, mask=in_rows)


@triton.jit
def attend_backward_columns(
    Q,
    K,
    PRIOR,
    MASK,
    BIAS,
    SCORE_LSE,
    PRIOR_LSE,
    DOUT,
    WEIGHTS,
    DPHI,
    ROW_SUM,
    PRIOR_SUM,
    DK,
    DV_,
    DPRIOR,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_mb,
    stride_mh,
    stride_mn,
    stride_mm,
    stride_bb,
    stride_bh,
    stride_bn,
    stride_bm,
    heads,
    groups,
    n,
    m,
    factor,
    D: tl.constexpr,
    DV: tl.constexpr,
    BD: tl.constexpr,
    BDV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    NORMALIZED: tl.constexpr,
    PRIORS: tl.constexpr,
    MASKED: tl.constexpr,
    BIASED: tl.constexpr,
    IEEE: tl.constexpr,
    FULL: tl.constexpr,
):
    """One block of keys of one head; finishes the gradient of scores where a bias wants it."""
    plane = tl.program_id(1)
    batch, head = plane // heads, plane % heads
    keys = tl.program_id(0) * BN + tl.arange(0, BN)
    columns, value_columns = tl.arange(0, BD), tl.arange(0, BDV)
    batch64, plane64 = batch.to(tl.int64), plane.to(tl.int64)
    Q += batch64 * stride_qb + head * stride_qh
    K += batch64 * stride_kb + (head // groups) * stride_kh
    DOUT += batch64 * stride_gb + head * stride_gh
    MASK += batch64 * stride_mb + head * stride_mh
    BIAS += batch64 * stride_bb + head * stride_bh
    PRIOR += (batch64 * (heads // groups) + head // groups) * m
    WEIGHTS += plane64 * n * m
    DPHI += plane64 * n * m
    key = load_rows(K, keys, columns, stride_kn, m, D, BD, FULL)
    dkey = tl.zeros([BN, BD], tl.float32)
    dvalue = tl.zeros([BN, BDV], tl.float32)
    dprior = tl.zeros([BN], tl.float32)
    for start in range(0, n, BM):
        rows = start + tl.arange(0, BM)
        inside = (rows[:, None] < n) & (keys[None, :] < m)
        at = rows[:, None].to(tl.int64) * m + keys[None, :]
        w = tl.load(WEIGHTS + at, mask=inside, other=0.0)
        dout = load_rows(DOUT, rows, value_columns, stride_gn, n, DV, BDV, FULL)
        dvalue += tl.dot(tl.trans(w), dout.to(w.dtype), input_precision="ieee" if IEEE else "tf32")
        q = load_rows(Q, rows, columns, stride_qn, n, D, BD, FULL)
        ds = tl.load(DPHI + at, mask=inside, other=0.0)
        if NORMALIZED or PRIORS == ROWWISE:
            seen = visible(MASK, rows, keys, stride_mn, stride_mm, n, m, MASKED)
        if NORMALIZED:
            s = tl.dot(q, tl.trans(key), input_precision="ieee" if IEEE else "tf32") * factor
            if BIASED:
                s += LOG2_E * load_tile(BIAS, rows, keys, stride_bn, stride_bm, seen, FULL)
            score_lse = tl.load(SCORE_LSE + plane * n + rows, mask=rows < n, other=0.0)
            row_sum = tl.load(ROW_SUM + plane * n + rows, mask=rows < n, other=0.0)
            p = exp2(where_seen(seen, s - score_lse[:, None], LOWEST, FULL))
            ds = (ds.to(tl.float32) - p * row_sum[:, None]).to(w.dtype)
            if BIASED:
                tl.store(DPHI + at, ds, mask=inside)
        dkey += tl.dot(tl.trans(ds), q.to(ds.dtype), input_precision="ieee" if IEEE else "tf32")
        if PRIORS == ROWWISE:
            prior_lse = tl.load(PRIOR_LSE + plane * n + rows, mask=rows < n, other=0.0)
            prior_sum = tl.load(PRIOR_SUM + plane * n + rows, mask=rows < n, other=0.0)
            alpha = exp2(log_prior(PRIOR, keys, m, seen, prior_lse, PRIORS, FULL))
            dprior += tl.sum(tl.where(seen, alpha * prior_sum[:, None], 0.0), 0)
    inside = (keys < m)[:, None] & (columns < D)[None, :]
    tl.store(
        DK + (plane64 * m + keys)[:, None] * D + columns[None, :],
        (dkey * (factor * LN2)).to(DK.dtype.element_ty),
        mask=inside,
    )
    inside = (keys < m)[:, None] & (value_columns < DV)[None, :]
    tl.store(
        DV_ + (plane64 * m + keys)[:, None] * DV + value_columns[None, :],
        dvalue.to(DV_.dtype.element_ty),
        mask=inside,
    )
    if PRIORS == ROWWISE:
        tl.store(DPRIOR + plane64 * m + keys, dprior, mask=keys < m)
