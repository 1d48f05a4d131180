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
def keys_of_tile(start, BN: tl.constexpr, HERE: tl.constexpr):
    """The keys of a tile; with HERE in an order in which a thread has neighbours.

    Products leave a thread of four that share a row two columns of every eight. In this order they
    are a quarter of the row, which it loads and stores at once. Left to itself, the compiler moves
    tiles through shared memory for that, and has all warps wait for each other.
    """
    columns = tl.arange(0, BN)
    if HERE:
        columns = (BN // 4) * (columns % 8 // 2) + 2 * (columns // 8) + columns % 2
    return start + columns


@triton.jit
def by_quarters(x, BM: tl.constexpr, BN: tl.constexpr):
    """A tile as the numbers of even and of odd keys of each row's quarters."""
    return tl.split(tl.permute(tl.reshape(x, [BM, BN // 8, 4, 2]), [0, 2, 1, 3]))


@triton.jit
def quarters(X, rows, start, row_stride, BN: tl.constexpr):
    """Addresses of the quarters of each row of a tile."""
    first = start + (BN // 4) * tl.arange(0, 4)
    return (X + pair_offsets(rows, first, row_stride, 1)).to(tl.int64)


@triton.jit
def load_packed_here(U, rows, start, row_stride, other, BM: tl.constexpr):
    """32-bit numbers of a whole tile of 16 keys, in the threads that have those of `other`."""
    beside, _ = by_quarters(other, BM, 16)
    beside, _ = tl.split(beside)
    even1, odd1, even2, odd2 = tl.inline_asm_elementwise(
        "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l,f",
        [quarters(U, rows, start, row_stride, 16), beside],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    both = tl.join(tl.join(even1, even2), tl.join(odd1, odd2))
    return tl.reshape(tl.permute(both, [0, 2, 1, 3]), [BM, 16])


@triton.jit
def store_from_here(X, rows, start, row_stride, values, BM: tl.constexpr, BN: tl.constexpr):
    """Stores a whole tile of half-precision numbers, or of 16 keys with 32 bits each."""
    even, odd = by_quarters(values, BM, BN)
    places = quarters(X, rows, start, row_stride, BN)
    if X.dtype.element_ty == tl.int32:
        even1, even2 = tl.split(even)
        odd1, odd2 = tl.split(odd)
        store_four(places, even1, odd1, even2, odd2)
    else:
        both = pack(even, odd, X.dtype.element_ty)
        if BN == 16:
            first, second = tl.split(both)
            tl.inline_asm_elementwise(
                "st.global.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0;", "=r,l,r,r",
                [places, first, second], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            front, back = tl.split(tl.reshape(both, [BM, 4, 2, 2]))
            first, third = tl.split(front)
            second, fourth = tl.split(back)
            store_four(places, first, second, third, fourth)


@triton.jit
def store_four(places, first, second, third, fourth):
    """Stores four 32-bit numbers side by side at each place."""
    tl.inline_asm_elementwise(
        "st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;", "=r,l,r,r,r,r",
        [places, first, second, third, fourth], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def store_tile(X, rows, start, row_stride, values, inside,
               BM: tl.constexpr, BN: tl.constexpr, FULL: tl.constexpr,
               HERE: tl.constexpr):  # fmt: skip
    """Stores a number for each pair of a tile, from HERE or as the compiler likes it."""
    if HERE:
        store_from_here(X, rows, start, row_stride, values, BM, BN)
    else:
        at = pair_offsets(rows, start + tl.arange(0, BN), row_stride, 1)
        store_pairs(X, at, values, inside, FULL)


@triton.jit
def store_lift(U1, U2, rows, start, row_stride, u1, u2, inside,
               LIFTS: tl.constexpr, HALF: tl.constexpr, SHAPED: tl.constexpr,
               BM: tl.constexpr, BN: tl.constexpr, FULL: tl.constexpr,
               HERE: tl.constexpr):  # fmt: skip
    """Stores numbers as `load_lift` loads them; with one map, that for the shape or the scale."""
    if LIFTS == PACKED:
        both = pack(u1, u2, HALF).to(tl.int32, bitcast=True)
        store_tile(U1, rows, start, row_stride, both, inside, BM, BN, FULL, HERE)
    else:
        at = pair_offsets(rows, start + tl.arange(0, BN), row_stride, LIFTS)
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
def load_prior(PRIOR, keys, m):
    """What the prior's network made of keys: its shapes, or their logs if rows normalise them."""
    return tl.load(PRIOR + keys, mask=keys < m, other=0.0)[None, :]


@triton.jit
def log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, ALL: tl.constexpr):
    """Logs of shapes to base 2, normalised over the keys that each row sees."""
    return where_seen(seen, LOG2_E * load_prior(PRIOR, keys, m) - prior_lse[:, None], 0.0, ALL)


@triton.jit
def prior_shape(PRIOR, keys, m, seen, prior_lse, PRIORS: tl.constexpr, ALL: tl.constexpr):
    """The prior's shapes."""
    if PRIORS == ROWWISE:
        return exp2(log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, ALL))
    else:
        return load_prior(PRIOR, keys, m)


@triton.jit
def add_exponentials(top, total, x, seen, ALL: tl.constexpr):
    """One step of an online log-sum-exp to base 2, whose maximum begins at `BOTTOM`."""
    x = where_seen(seen, x, LOWEST, ALL)
    higher = tl.maximum(top, tl.max(x, 1))
    return higher, total * exp2(top - higher) + tl.sum(exp2(x - higher[:, None]), 1)
