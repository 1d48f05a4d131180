"""Operations of all kernels on a tile of query-key pairs: load, mask, score, normalise, store."""

import triton
import triton.language as tl

from babn.kernels.settings import LogitsType, MaskType, Precision, Prior
from babn.kernels.special import INTERPRETED, LOG2_E, exp2

CONTEXTUAL = tl.constexpr(Prior.CONTEXTUAL.value)
CONSTANT = tl.constexpr(Prior.CONSTANT.value)
ROWWISE = tl.constexpr(Prior.ROWWISE.value)
MASK_OF_PAIRS = tl.constexpr(MaskType.PAIRS.value)
MASK_OF_KEYS = tl.constexpr(MaskType.KEYS.value)
TWO = tl.constexpr(LogitsType.TWO.value)
PACKED = tl.constexpr(LogitsType.PACKED.value)
IEEE = tl.constexpr(Precision.IEEE.value)

LOWEST = tl.constexpr(-1e30)
"""Stands for minus infinity, differences of which are NaN."""

BOTTOM = tl.constexpr(-5e29)
"""Start of running maxima: above masked numbers, so that their exponentials vanish."""


@triton.jit
def at_head(X, strides, batch, head):
    """Address of a head of an example."""
    return X + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]


@triton.jit
def load_rows(
    X,
    rows,
    columns,
    stride,
    row_count,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN_MN: tl.constexpr,
):
    """Loads rows, with zeros beyond their number and their size."""
    at = X + rows[:, None] * stride + columns[None, :]
    if EVEN_MN and SIZE == BLOCK:
        return tl.load(at)
    else:
        inside = (rows[:, None] < row_count) & (columns[None, :] < SIZE)
        return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_rows(X, rows, columns, stride, row_count, values, SIZE: tl.constexpr):
    """Stores rows in the precision of the tensor."""
    inside = (rows[:, None] < row_count) & (columns[None, :] < SIZE)
    at = X + rows[:, None] * stride + columns[None, :]
    tl.store(at, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def pair_offsets(rows, keys, row_stride, key_stride):
    """Offsets of the pairs of a tile, in 64 bits since 32 may not suffice."""
    return rows[:, None].to(tl.int64) * row_stride + keys[None, :] * key_stride


@triton.jit
def load_as_is(X, offsets, inside, EVEN_MN: tl.constexpr):
    """Loads a number for each pair, with zeros outside."""
    if EVEN_MN:
        return tl.load(X + offsets)
    else:
        return tl.load(X + offsets, mask=inside, other=0.0)


@triton.jit
def load_pairs(X, offsets, inside, EVEN_MN: tl.constexpr):
    """The same in float32."""
    return load_as_is(X, offsets, inside, EVEN_MN).to(tl.float32)


@triton.jit
def unpack(x, DTYPE: tl.constexpr):
    """The two half-precision numbers in 32 bits, in float32."""
    low = (x & 0xFFFF).to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)
    return low, (x >> 16).to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def pack(low, high, DTYPE: tl.constexpr):
    """Two numbers in half precision in 32 bits.

    The PTX instruction converts and packs both at once. Its gain has not been recorded by itself.
    """
    if INTERPRETED:
        low = low.to(DTYPE).to(tl.uint16, bitcast=True).to(tl.uint32)
        return low | (high.to(DTYPE).to(tl.uint16, bitcast=True).to(tl.uint32) << 16)
    elif tl.bfloat16 == DTYPE:
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
def load_logits(SHAPE_LOGITS, SCALE_LOGITS, rows, keys, row_stride, inside,
              LOGITS_TYPE: tl.constexpr, DTYPE: tl.constexpr, EVEN_MN: tl.constexpr):  # fmt: skip
    """Shape and scale logits of each pair, which are interleaved."""
    if LOGITS_TYPE == PACKED:
        at = pair_offsets(rows, keys, row_stride, 1)
        return unpack(
            load_as_is(SHAPE_LOGITS, at, inside, EVEN_MN).to(tl.uint32, bitcast=True), DTYPE
        )
    else:
        at = pair_offsets(rows, keys, row_stride, LOGITS_TYPE)
        shape_logits = load_pairs(SHAPE_LOGITS, at, inside, EVEN_MN)
        scale_logits = shape_logits
        if LOGITS_TYPE == TWO:
            scale_logits = load_pairs(SCALE_LOGITS, at, inside, EVEN_MN)
        return shape_logits, scale_logits


@triton.jit
def load_packed(U, rows, keys, row_stride, inside, more, EVEN_MN: tl.constexpr):
    """Loads both logits of each pair as 32 bits, if there are `more` tiles."""
    at = pair_offsets(rows, keys, row_stride, 1)
    if EVEN_MN:
        return tl.load(U + at, mask=more, other=0)
    else:
        return tl.load(U + at, mask=inside & more, other=0)


@triton.jit
def beside(x, other):
    """`x` in the threads that hold `other`, by a PTX move that takes both.

    Without it the compiler computes with the loaded numbers in the threads that loaded them, and
    moves four results through shared memory in every tile. Its gain has not been recorded.
    """
    if INTERPRETED:
        return x
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r,f", [x, other], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def keys_of_tile(start, BLOCK_N: tl.constexpr, IN_REGISTERS: tl.constexpr):
    """The keys of a tile; with IN_REGISTERS in an order in which each thread has adjacent keys.

    After a product of matrices, each of the four threads of a row holds two columns of every eight.
    In this order they are a quarter of the row, which the thread loads and stores at once. The
    compiler's own layout moves tiles through shared memory, with barriers between warps. The gain
    has not been recorded by itself.
    """
    columns = tl.arange(0, BLOCK_N)
    if IN_REGISTERS:
        columns = (BLOCK_N // 4) * (columns % 8 // 2) + 2 * (columns // 8) + columns % 2
    return start + columns


@triton.jit
def by_quarters(x, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile as the numbers at even and at odd keys of the quarters of each row."""
    return tl.split(tl.permute(tl.reshape(x, [BLOCK_M, BLOCK_N // 8, 4, 2]), [0, 2, 1, 3]))


@triton.jit
def quarters(X, rows, start, row_stride, BLOCK_N: tl.constexpr):
    """Addresses of the quarters of each row of a tile."""
    first = start + (BLOCK_N // 4) * tl.arange(0, 4)
    return (X + pair_offsets(rows, first, row_stride, 1)).to(tl.int64)


@triton.jit
def load_packed_in_registers(U, rows, start, row_stride, other, BLOCK_M: tl.constexpr):
    """Loads 32-bit numbers of a full tile of 16 keys into the threads that hold `other`."""
    beside, _ = by_quarters(other, BLOCK_M, 16)
    beside, _ = tl.split(beside)
    even1, odd1, even2, odd2 = tl.inline_asm_elementwise(
        "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l,f",
        [quarters(U, rows, start, row_stride, 16), beside],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    both = tl.join(tl.join(even1, even2), tl.join(odd1, odd2))
    return tl.reshape(tl.permute(both, [0, 2, 1, 3]), [BLOCK_M, 16])


@triton.jit
def store_in_registers(
    X, rows, start, row_stride, values, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Stores a full tile of half-precision numbers, or of 16 keys with 32 bits each."""
    even, odd = by_quarters(values, BLOCK_M, BLOCK_N)
    places = quarters(X, rows, start, row_stride, BLOCK_N)
    if X.dtype.element_ty == tl.int32:
        even1, even2 = tl.split(even)
        odd1, odd2 = tl.split(odd)
        store_four(places, even1, odd1, even2, odd2)
    else:
        both = pack(even, odd, X.dtype.element_ty)
        if BLOCK_N == 16:
            first, second = tl.split(both)
            tl.inline_asm_elementwise(
                "st.global.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0;", "=r,l,r,r",
                [places, first, second], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            front, back = tl.split(tl.reshape(both, [BLOCK_M, 4, 2, 2]))
            first, third = tl.split(front)
            second, fourth = tl.split(back)
            store_four(places, first, second, third, fourth)


@triton.jit
def store_four(places, first, second, third, fourth):
    """Stores four adjacent 32-bit numbers at each place."""
    tl.inline_asm_elementwise(
        "st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;", "=r,l,r,r,r,r",
        [places, first, second, third, fourth], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def store_tile(X, rows, start, row_stride, values, inside,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN_MN: tl.constexpr,
               IN_REGISTERS: tl.constexpr):  # fmt: skip
    """Stores a number for each pair of a tile, in the order of `keys_of_tile`."""
    if IN_REGISTERS:
        store_in_registers(X, rows, start, row_stride, values, BLOCK_M, BLOCK_N)
    else:
        at = pair_offsets(rows, start + tl.arange(0, BLOCK_N), row_stride, 1)
        store_pairs(X, at, values, inside, EVEN_MN)


@triton.jit
def store_logits(
    SHAPE_LOGITS, SCALE_LOGITS, rows, start, row_stride, shape_logits, scale_logits, inside,
    DTYPE: tl.constexpr, IS_SHAPE: tl.constexpr, IN_REGISTERS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Stores numbers as `load_logits` loads them; of one kind, those of the shape if IS_SHAPE."""
    if C.LOGITS_TYPE == PACKED:
        both = pack(shape_logits, scale_logits, DTYPE).to(tl.int32, bitcast=True)
        store_tile(
            SHAPE_LOGITS,
            rows,
            start,
            row_stride,
            both,
            inside,
            C.BLOCK_M,
            C.BLOCK_N,
            C.EVEN_MN,
            IN_REGISTERS,
        )
    else:
        at = pair_offsets(rows, start + tl.arange(0, C.BLOCK_N), row_stride, C.LOGITS_TYPE)
        if C.LOGITS_TYPE == TWO:
            store_pairs(SHAPE_LOGITS, at, shape_logits, inside, C.EVEN_MN)
            store_pairs(SCALE_LOGITS, at, scale_logits, inside, C.EVEN_MN)
        elif IS_SHAPE:
            store_pairs(SHAPE_LOGITS, at, shape_logits, inside, C.EVEN_MN)
        else:
            store_pairs(SHAPE_LOGITS, at, scale_logits, inside, C.EVEN_MN)


@triton.jit
def store_pairs(X, offsets, values, inside, EVEN_MN: tl.constexpr):
    """Stores a number for each pair in the precision of the tensor."""
    if EVEN_MN:
        tl.store(X + offsets, values.to(X.dtype.element_ty))
    else:
        tl.store(X + offsets, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def visible(MASK, strides, rows, keys, n, m, C: tl.constexpr):
    """The pairs of a tile that take part, or one row for all queries."""
    inside = (keys < m)[None, :]
    if C.MASK_TYPE == MASK_OF_KEYS:
        inside = (tl.load(MASK + keys * strides[3], mask=keys < m, other=0) != 0)[None, :]
    elif C.MASK_TYPE == MASK_OF_PAIRS:
        inside = (rows < n)[:, None] & inside
        offsets = pair_offsets(rows, keys, strides[2], strides[3])
        if C.EVEN_MN:
            inside = tl.load(MASK + offsets) != 0
        else:
            inside = tl.load(MASK + offsets, mask=inside, other=0) != 0
    return inside


@triton.jit
def where_seen(seen, x, other, ALL_SEEN: tl.constexpr):
    """`x` at pairs that take part, unless all do."""
    if ALL_SEEN:
        return x
    else:
        return tl.where(seen, x, other)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """A product of matrices, of float32 with all digits or in TF32."""
    return tl.dot(a, b, input_precision="ieee" if PRECISION == IEEE else "tf32")


@triton.jit
def scores(q, k, BIAS, strides, rows, keys, factor, inside, C: tl.constexpr):
    """Scaled dot products of a tile, plus bias, to base 2."""
    s = dot(q, tl.trans(k), C.PRECISION) * factor
    if C.HAS_BIAS:
        offsets = pair_offsets(rows, keys, strides[2], strides[3])
        s += LOG2_E * load_pairs(BIAS, offsets, inside, C.EVEN_MN)
    return s


@triton.jit
def load_prior(PRIOR, keys, m):
    """The prior's shapes, or their unnormalised logarithms if rows normalise them."""
    return tl.load(PRIOR + keys, mask=keys < m, other=0.0)[None, :]


@triton.jit
def log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, ALL_SEEN: tl.constexpr):
    """Base-2 logarithms of shapes, normalised over the keys that each row sees."""
    return where_seen(seen, LOG2_E * load_prior(PRIOR, keys, m) - prior_lse[:, None], 0.0, ALL_SEEN)


@triton.jit
def prior_shape(PRIOR, keys, m, seen, prior_lse, PRIOR_TYPE: tl.constexpr, ALL_SEEN: tl.constexpr):
    """The prior's shapes."""
    if PRIOR_TYPE == ROWWISE:
        return exp2(log_shape_of_rows(PRIOR, keys, m, seen, prior_lse, ALL_SEEN))
    else:
        return load_prior(PRIOR, keys, m)


@triton.jit
def add_exponentials(top, total, x, seen, ALL_SEEN: tl.constexpr):
    """One step of an online log-sum-exp to base 2, whose maximum starts at `BOTTOM`."""
    x = where_seen(seen, x, LOWEST, ALL_SEEN)
    higher = tl.maximum(top, tl.max(x, 1))
    return higher, total * exp2(top - higher) + tl.sum(exp2(x - higher[:, None]), 1)
