// Numbers in bf16: reading and writing them, and products of pairs of them.
#pragma once
#include <cstring>

#include "vectors.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

struct Bf16 {
    uint16_t bits;  // the upper half of a float
};

template <class T, int L>
using Bits [[gnu::vector_size(L * sizeof(T)), gnu::aligned(2), gnu::may_alias]] = T;

template <int L>
INLINE Vector<L> load(const Bf16* p) {
    const Bits<uint16_t, L> bits = *reinterpret_cast<const Bits<uint16_t, L>*>(p);
    return reinterpret_cast<Vector<L>>(__builtin_convertvector(bits, Bits<uint32_t, L>) << 16);
}

// Rounded to nearest, ties to even.
template <int L>
INLINE void store(Bf16* p, Vector<L> v) {
    const Bits<uint32_t, L> bits = reinterpret_cast<Bits<uint32_t, L>>(v);
    const Bits<uint32_t, L> rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    const Bits<uint32_t, L> kept =
        v == v ? rounded : Bits<uint32_t, L>{} + 0x7FC0u;  // rounding could make NaN infinite
    *reinterpret_cast<Bits<uint16_t, L>*>(p) = __builtin_convertvector(kept, Bits<uint16_t, L>);
}

// Two numbers in a word, the first in its lower half. The processor's instruction adds the product of the second ones,
// then that of the first ones; elsewhere the same is done with two fused multiply-adds, which keep subnormal numbers
// where the instruction takes them for zero.
struct Pairs {
    using Number = Bf16;
    static constexpr int PER_WORD = 2;
#if defined(__AVX512BF16__)
    template <int L> INLINE Vector<L> add(Vector<L> sum, Vector<L> w, float x) {
        if constexpr (L == 16)
            return (Vector<L>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)_mm512_set1_ps(x));
        else
            return (Vector<L>)_mm256_dpbf16_ps((__m256)sum, (__m256bh)w, (__m256bh)_mm256_set1_ps(x));
    }
#else
    template <int L> INLINE Vector<L> add(Vector<L> sum, Vector<L> w, float x) {
        uint32_t word;
        std::memcpy(&word, &x, sizeof word);
        const Bits<uint32_t, L> ours = reinterpret_cast<Bits<uint32_t, L>>(w), theirs = Bits<uint32_t, L>{} + word;
        sum += second(ours) * second(theirs);
        return sum + first(ours) * first(theirs);
    }
    template <class V> INLINE auto first(V words) {
        return reinterpret_cast<Vector<sizeof(V) / 4>>(words << 16);
    }
    template <class V> INLINE auto second(V words) {
        return reinterpret_cast<Vector<sizeof(V) / 4>>(words & 0xFFFF0000u);
    }
#endif
};
