"""What all kernels do with a tile of query-key pairs: load it, mask it, score it, normalise it."""

import triton
import triton.language as tl

from babn.kernels.special import INTERPRETED, LOG2_E, exp2

CONTEXTUAL = tl.constexpr(1)
CONSTANT = tl.constexpr(2)
ROWWISE = tl.constexpr(3)
"""Kinds of prior: normalised over all keys, one number, or to be normalised over the keys that each
row sees; 0 computes no divergence."""

PAIRWISE = tl.constexpr(1)
KEYWISE = tl.constexpr(2)
"""Kinds of mask: for pairs, or for keys alone; 0 is none."""

PACKED = tl.constexpr(3)
"""A kind of lift: two numbers for each pair, in half precision in 32 bits. 1 and 2 are how many
numbers there are, each by itself; 0 is none."""

LOWEST = tl.constexpr(-1e30)
"""Stands for minus infinity, which would make NaN of differences."""

BOTTOM = tl.constexpr(-5e29)
"""Where maxima begin: above what masked numbers are, so that these vanish beside it."""


@triton.jit
def at_head(X, strides, batch, head):
    """Where a head of an example begins."""
    return X + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]


@triton.jit
def load_rows(
    X, rows, columns, stride, row_count, SIZE: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr
):
    """Whole rows, zero beyond their number and their size."""
    at = X + rows[:, None] * stride + columns[None, :]
    if FULL and SIZE == BLOCK:
        return tl.load(at)
    else:
        inside = (rows[:, None] < row_count) & (columns[None, :] < SIZE)
        return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_rows(X, rows, columns, stride, row_count, values, SIZE: tl.constexpr):
    """Stores whole rows in the precision of the tensor."""
    inside = (rows[:, None] < row_count) & (columns[None, :] < SIZE)
    at = X + rows[:, None] * stride + columns[None, :]
    tl.store(at, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def pair_offsets(rows, keys, row_stride, key_stride):
    """Offsets of a tile's pairs, in 64 bits since there may be more than 32 can count."""
    return rows[:, None].to(tl.int64) * row_stride + keys[None, :] * key_stride


@triton.jit
def load_as_is(X, offsets, inside, FULL: tl.constexpr):
    """A number for each pair, zero outside."""
    if FULL:
        return tl.load(X + offsets)
    else:
        return tl.load(X + offsets, mask=inside, other=0.0)


@triton.jit
def load_pairs(X, offsets, inside, FULL: tl.constexpr):
    """The same in float32."""
    return load_as_is(X, offsets, inside, FULL).to(tl.float32)


@triton.jit
def unpack(x, HALF: tl.constexpr):
    """The two half-precision numbers in 32 bits, in float32."""
    low = (x & 0xFFFF).to(tl.uint16).to(HALF, bitcast=True).to(tl.float32)
    return low, (x >> 16).to(tl.uint16).to(HALF, bitcast=True).to(tl.float32)


@triton.jit
def pack(low, high, HALF: tl.constexpr):
    """Two numbers in half precision in 32 bits, by one instruction where there is a machine."""
    if INTERPRETED:
        low = low.to(HALF).to(tl.uint16, bitcast=True).to(tl.uint32)
        return low | (high.to(HALF).to(tl.uint16, bitcast=True).to(tl.uint32) << 16)
    elif tl.bfloat16 == HALF:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high],
            dtype=tl.uint32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high],
            dtype=tl.uint32, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def load_lift(U1, U2, rows, keys, row_stride, inside,
              LIFTS: tl.constexpr, HALF: tl.constexpr, FULL: tl.constexpr):  # fmt: skip
    """The upward path's numbers for shape and scale of each pair, which lie side by side."""
    if LIFTS == PACKED:
        at = pair_offsets(rows, keys, row_stride, 1)
        return unpack(load_as_is(U1, at, inside, FULL).to(tl.uint32, bitcast=True), HALF)
    else:
        at = pair_offsets(rows, keys, row_stride, LIFTS)
        u1 = load_pairs(U1, at, inside, FULL)
        u2 = u1
        if LIFTS == 2:
            u2 = load_pairs(U2, at, inside, FULL)
        return u1, u2


@triton.jit
def load_packed(U, rows, keys, row_stride, inside, more, FULL: tl.constexpr):
    """Both numbers of each pair in 32 bits, unless there are no more."""
    at = pair_offsets(rows, keys, row_stride, 1)
    if FULL:
        return tl.load(U + at, mask=more, other=0)
    else:
        return tl.load(U + at, mask=inside & more, other=0)


@triton.jit
def beside(x, other):
    """32-bit numbers in the threads that have those of `other`.

    Left to itself, the compiler computes with what was loaded in the threads that loaded it, and
    moves each of several results instead.
    """
    if INTERPRETED:
        return x
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r,f", [x, other], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def store_lift(U1, U2, rows, keys, row_stride, u1, u2, inside,
               LIFTS: tl.constexpr, HALF: tl.constexpr, SHAPED: tl.constexpr,
               FULL: tl.constexpr):  # fmt: skip
    """Stores numbers as `load_lift` loads them; with one map, that for the shape or the scale."""
    if LIFTS == PACKED:
        at = pair_offsets(rows, keys, row_stride, 1)
        store_pairs(U1, at, pack(u1, u2, HALF).to(tl.int32, bitcast=True), inside, FULL)
    else:
        at = pair_offsets(rows, keys, row_stride, LIFTS)
        if LIFTS == 2:
            store_pairs(U1, at, u1, inside, FULL)
            store_pairs(U2, at, u2, inside, FULL)
        elif SHAPED:
            store_pairs(U1, at, u1, inside, FULL)
        else:
            store_pairs(U1, at, u2, inside, FULL)


@triton.jit
def store_pairs(X, offsets, values, inside, FULL: tl.constexpr):
    """Stores a number for each pair in the precision of the tensor."""
    if FULL:
        tl.store(X + offsets, values.to(X.dtype.element_ty))
    else:
        tl.store(X + offsets, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def visible(MASK, strides, rows, keys, n, m, MASKED: tl.constexpr, FULL: tl.constexpr):
    """The pairs of a tile that take part, or one row for all; rows beyond the last do no harm."""
    inside = (keys < m)[None, :]
    if MASKED == KEYWISE:
        inside = (tl.load(MASK + keys * strides[3], mask=keys < m, other=0) != 0)[None, :]
    elif MASKED == PAIRWISE:
        inside = (rows < n)[:, None] & inside
        offsets = pair_offsets(rows, keys, strides[2], strides[3])
        if FULL:
            inside = tl.load(MASK + offsets) != 0
        else:
            inside = tl.load(MASK + offsets, mask=inside, other=0) != 0
    return inside


@triton.jit
def where_seen(seen, x, other, ALL: tl.constexpr):
    """`x` at pairs that take part, unless all do."""
    if ALL:
        return x
    else:
        return tl.where(seen, x, other)


@triton.jit
def dot(a, b, IEEE: tl.constexpr):
    """A product of matrices; float32 is cut to fewer digits only if torch would do so."""
    return tl.dot(a, b, input_precision="ieee" if IEEE == 1 else "tf32")


@triton.jit
def scores(q, k, BIAS, strides, rows, keys, factor, inside,
           BIASED: tl.constexpr, IEEE: tl.constexpr, FULL: tl.constexpr):  # fmt: skip
    """Scaled dot products of a tile to base 2, with bias."""
    s = dot(q, tl.trans(k), IEEE) * factor
    if BIASED:
        offsets = pair_offsets(rows, keys, strides[2], strides[3])
        s += LOG2_E * load_pairs(BIAS, offsets, inside, FULL)
    return s


@triton.jit
def log_prior(PRIOR, keys, m, seen, prior_lse, PRIORS: tl.constexpr, ALL: tl.constexpr):
    """Log of the prior's shapes to base 2."""
    a = LOG2_E * tl.load(PRIOR + keys, mask=keys < m, other=0.0)[None, :]
    if PRIORS == ROWWISE:
        a = where_seen(seen, a - prior_lse[:, None], 0.0, ALL)
    return a


@triton.jit
def add_exponentials(top, total, x, seen, ALL: tl.constexpr):
    """One step of an online log-sum-exp to base 2, whose maximum begins at `BOTTOM`."""
    x = where_seen(seen, x, LOWEST, ALL)
    higher = tl.maximum(top, tl.max(x, 1))
    return higher, total * exp2(top - higher) + tl.sum(exp2(x - higher[:, None]), 1)
