"""The forward kernel: rows of queries against blocks of keys, nothing of their product stored."""

import triton
import triton.language as tl

from babn.kernels.noise import log_exponential, row_keys, uniform_bits
from babn.kernels.posterior import (
    LIFTED,
    divergence,
    inverse,
    log_gamma,
    log_moment,
    prior_rest,
    scale,
    shape,
)
from babn.kernels.special import LOG2_E, exp2, log2

CONTEXTUAL = tl.constexpr(1)
CONSTANT = tl.constexpr(2)
ROWWISE = tl.constexpr(3)
"""Kinds of prior: normalised over all keys, one number, or to be normalised over the keys that each
row sees; 0 computes no divergence."""

LOWEST = tl.constexpr(-1e30)
"""Stands for minus infinity, which would make NaN of differences."""


@triton.jit
def load_rows(
    X, rows, columns, stride, row_count, SIZE: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr
):
    """A tile of whole rows, zero beyond their number and their size."""
    at = X + rows[:, None] * stride + columns[None, :]
    if FULL and SIZE == BLOCK:
        return tl.load(at)
    else:
        inside = (rows[:, None] < row_count) & (columns[None, :] < SIZE)
        return tl.load(at, mask=inside, other=0.0)


@triton.jit
def load_tile(X, rows, keys, stride_row, stride_key, inside, FULL: tl.constexpr):
    """A tile of query-key pairs in float32, zero outside."""
    at = X + rows[:, None].to(tl.int64) * stride_row + keys[None, :] * stride_key
    if FULL:
        return tl.load(at).to(tl.float32)
    else:
        return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def where_seen(seen, x, other, FULL: tl.constexpr):
    """`x` at pairs that take part; all do in a full tile."""
    if FULL:
        return x
    else:
        return tl.where(seen, x, other)


@triton.jit
def visible(MASK, rows, keys, stride_row, stride_key, n, m, MASKED: tl.constexpr):
    """The pairs of a tile that take part."""
    inside = (rows[:, None] < n) & (keys[None, :] < m)
    if MASKED:
        at = MASK + rows[:, None].to(tl.int64) * stride_row + keys[None, :] * stride_key
        inside &= tl.load(at, mask=inside, other=0) != 0
    return inside


@triton.jit
def scores(
    q,
    K,
    BIAS,
    rows,
    keys,
    columns,
    stride_k,
    stride_bn,
    stride_bm,
    factor,
    m,
    seen,
    BIASED: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    IEEE: tl.constexpr,
    FULL: tl.constexpr,
):
    """Scaled dot products of a tile to base 2, with bias; and its keys."""
    k = load_rows(K, keys, columns, stride_k, m, D, BD, FULL)
    s = tl.dot(q, tl.trans(k), input_precision="ieee" if IEEE else "tf32") * factor
    if BIASED:
        s += LOG2_E * load_tile(BIAS, rows, keys, stride_bn, stride_bm, seen, FULL)
    return s, k


@triton.jit
def log_prior(PRIOR, keys, m, seen, prior_lse, PRIORS: tl.constexpr, FULL: tl.constexpr):
    """Log of the prior's shapes to base 2."""
    a = LOG2_E * tl.load(PRIOR + keys, mask=keys < m, other=0.0)[None, :]
    if PRIORS == ROWWISE:
        a = where_seen(seen, a - prior_lse[:, None], 0.0, FULL)
    return a


@triton.jit
def add_exponentials(top, total, x, seen, FULL: tl.constexpr):
    """One step of an online log-sum-exp to base 2."""
    x = where_seen(seen, x, LOWEST, FULL)
    higher = tl.maximum(top, tl.max(x, 1))
    terms = where_seen(seen, exp2(x - higher[:, None]), 0.0, FULL)
    return higher, total * exp2(top - higher) + tl.sum(terms, 1)


@triton.jit
def attend_forward(
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
    KL,
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
    stride_ub,
    stride_uh,
    stride_un,
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
    rest_constant,
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
    batch64 = batch.to(tl.int64)
    Q += batch64 * stride_qb + head * stride_qh
    K += batch64 * stride_kb + (head // groups) * stride_kh
    V += batch64 * stride_vb + (head // groups) * stride_vh
    U1 += batch64 * stride_ub + head * stride_uh
    U2 += batch64 * stride_ub + head * stride_uh
    MASK += batch64 * stride_mb + head * stride_mh
    BIAS += batch64 * stride_bb + head * stride_bh
    PRIOR += (batch64 * (heads // groups) + head // groups) * m
    q = load_rows(Q, rows, columns, stride_qn, n, D, BD, FULL)

    score_lse = tl.zeros([BM], tl.float32)
    prior_lse = tl.zeros([BM], tl.float32)
    if NORMALIZED or PRIORS == ROWWISE:
        top = tl.full([BM], LOWEST, tl.float32)
        total = tl.zeros([BM], tl.float32)
        prior_top = tl.full([BM], LOWEST, tl.float32)
        prior_total = tl.zeros([BM], tl.float32)
        for start in range(0, m, BN):
            keys = start + tl.arange(0, BN)
            seen = visible(MASK, rows, keys, stride_mn, stride_mm, n, m, MASKED)
            if NORMALIZED:
                s, _ = scores(
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
                top, total = add_exponentials(top, total, s, seen, FULL)
            if PRIORS == ROWWISE:
                a = log_prior(PRIOR, keys, m, seen, prior_lse, PRIORS, FULL)
                prior_top, prior_total = add_exponentials(prior_top, prior_total, a, seen, FULL)
        if NORMALIZED:
            score_lse = tl.where(total > 0, top + log2(total), 0.0)
            tl.store(SCORE_LSE + plane * n + rows, score_lse, mask=in_rows)
        if PRIORS == ROWWISE:
            prior_lse = tl.where(prior_total > 0, prior_top + log2(prior_total), 0.0)
            tl.store(PRIOR_LSE + plane * n + rows, prior_lse, mask=in_rows)

    if SAMPLE:
        first, second = row_keys(SEEDS, batch, head, heads, rows, call, rows_per_seed)
    top = tl.full([BM], LOWEST, tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, BDV], tl.float32)
    kl = tl.zeros([BM], tl.float32)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        seen = visible(MASK, rows, keys, stride_mn, stride_mm, n, m, MASKED)
        s, _ = scores(
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
        k, _, _ = shape(phi, u1, rho_ln2, fixed_k, SHAPE, IEEE)
        t, y = inverse(k)
        log_y = log2(y)
        log_m = log_moment(t, y, log_y, OWN_MOMENT)
        log_lam, _, _, _, _ = scale(phi - log_m, u2, sigma_ln2, LIFT, NORMALIZED, IEEE)
        if SAMPLE:
            bits = uniform_bits(first, second, keys)
            logits = log_lam + t * log_exponential(bits, TRUNCATED)
        else:
            logits = log_lam + log_m
        logits = where_seen(seen, logits, LOWEST, FULL)
        higher = tl.maximum(top, tl.max(logits, 1))
        shrink = exp2(top - higher)
        w = where_seen(seen, exp2(logits - higher[:, None]), 0.0, FULL)
        total = total * shrink + tl.sum(w, 1)
        v = load_rows(V, keys, value_columns, stride_vn, m, DV, BDV, FULL)
        out = out * shrink[:, None] + tl.dot(
            w.to(v.dtype), v, input_precision="ieee" if IEEE else "tf32"
        )
        top = higher
        if PRIORS != 0:
            log_gam = log_m
            if OWN_MOMENT:
                log_gam = log_gamma(t, y, log_y)
            if PRIORS == CONSTANT:
                alpha = alpha_constant
                rest = rest_constant
            else:
                log_alpha = log_prior(PRIOR, keys, m, seen, prior_lse, PRIORS, FULL)
                alpha = exp2(log_alpha)
                rest = prior_rest(alpha, log_alpha)
            pairs = divergence(k, t, log_lam, log_gam, alpha, rest, log_beta)
            kl += tl.sum(where_seen(seen, pairs, 0.0, FULL), 1)

    found = total > 0
    out = out / tl.where(found, total, 1.0)[:, None]
    tl.store(LSE + plane * n + rows, tl.where(found, top + log2(total), 0.0), mask=in_rows)
    inside = in_rows[:, None] & (value_columns < DV)[None, :]
    OUT += batch64 * stride_ob + head * stride_oh
    tl.store(
        OUT + rows[:, None] * stride_on + value_columns[None, :],
        out.to(OUT.dtype.element_ty),
        mask=inside,
    )
    if PRIORS != 0:
        tl.store(KL + plane * n + rows, kl, mask=in_rows)
