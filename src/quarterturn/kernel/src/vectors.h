// Vectors of floats through GCC and Clang's vector types, and the two products that all the time goes into.
// No fast-math: a sum is a chain of fused multiply-adds in a fixed order, so that turned inputs give turned bits.
#pragma once
#include <cstdint>

// What all the time goes through is part of its caller, however much of it there is: compilers give up on large files.
#define INLINE [[gnu::always_inline]] static inline

// Tests define QUARTERTURN_WIDE to compile wide vectors for machines that have none.
#if defined(__AVX512F__) || defined(QUARTERTURN_WIDE)
constexpr int LANES = 16, WIDE_ROWS = 12, NARROW_ROWS = 24;  // 24 sums in registers, out of 32
#elif defined(__AVX2__)
constexpr int LANES = 8, WIDE_ROWS = 6, NARROW_ROWS = 12;  // 12 sums in registers, out of 16
#else
constexpr int LANES = 8, WIDE_ROWS = 3, NARROW_ROWS = 6;  // the same on registers of four floats
#endif
constexpr int IN_FLIGHT = 8;       // sums that a processor works on at once: two units, four steps each
constexpr int GRANULE = 8;         // output features are padded to a multiple of this
constexpr int DEPTH = 256;         // words of a row of a panel in use at most
constexpr int PITCH = DEPTH + 16;  // words from row to row of a panel: an odd number of cache lines

// As a value, and as it lies in memory: anywhere. The second is for load and store alone, since templates lose what it
// says of its alignment.
template <int L>
using Vector [[gnu::vector_size(L * sizeof(float))]] = float;
template <int L>
using InMemory [[gnu::vector_size(L * sizeof(float)), gnu::aligned(4), gnu::may_alias]] = float;

template <int L>
INLINE Vector<L> load(const float* p) {
    return *reinterpret_cast<const InMemory<L>*>(p);
}
template <int L>
INLINE void store(float* p, Vector<L> v) {
    *reinterpret_cast<InMemory<L>*>(p) = v;
}

#define UNROLL _Pragma("GCC unroll 32")

// What is in the words of panels and packed weights, and how words are multiplied into a sum: here a float in each, in
// bf16.h two numbers in bf16.
struct Floats {
    using Number = float;
    static constexpr int PER_WORD = 1;
    template <int L> INLINE Vector<L> add(Vector<L> sum, Vector<L> w, float x) { return sum + w * x; }
};

// y[row][column] += sum over parts and k of a[part][row][k] * b[part][k][column], for ROWS rows and N*L columns; k
// counts words.
template <class P, int ROWS, int N, int L>
[[gnu::noinline]] static void multiply(const float* a, int64_t part, const float* b, int64_t parts, int64_t depth, float* y,
                     int64_t pitch, bool first) {
    Vector<L> sum[ROWS][N];
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int n = 0; n < N; n++) sum[r][n] = first ? Vector<L>{} : load<L>(y + r * pitch + n * L);
    for (int64_t j = 0; j < parts; j++) {
        const float* column = a + j * part;
        for (int64_t k = 0; k < depth; k++) {
            Vector<L> w[N];
            UNROLL for (int n = 0; n < N; n++) w[n] = load<L>(b + n * L);
            UNROLL for (int r = 0; r < ROWS; r++) {
                const float x = column[r * PITCH];
                UNROLL for (int n = 0; n < N; n++) sum[r][n] = P::template add<L>(sum[r][n], w[n], x);
            }
            column++;
            b += N * L;
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int n = 0; n < N; n++) store<L>(y + r * pitch + n * L, sum[r][n]);
}

// Call f<count>() for a count from 1 to MOST that is known only now.
template <int MOST, class F>
INLINE void exactly(int64_t count, F f) {
    if constexpr (MOST > 0) {
        if (count == MOST)
            f.template operator()<MOST>();
        else
            exactly<MOST - 1>(count, f);
    }
}

// Call f<n>(first) for pieces of `count` of at most MOST each. A last piece of fewer than ENOUGH, whose sums would wait for
// each other, shares with the one before.
template <int MOST, int ENOUGH, class F>
INLINE void in_pieces(int64_t count, F f) {
    constexpr int LEAST = ENOUGH < MOST ? ENOUGH : MOST;
    int64_t first = 0;
    for (; count - first >= MOST + LEAST || count - first == MOST; first += MOST) f.template operator()<MOST>(first);
    if (const int64_t left = count - first, half = (left + 1) / 2; left > MOST) {
        exactly<MOST>(half, [&]<int N>() { f.template operator()<N>(first); });
        first += half;
    }
    exactly<MOST - 1>(count - first, [&]<int N>() { f.template operator()<N>(first); });
}

// The same for any number of rows.
template <class P, int ROWS, int N, int L>
static void multiply_rows(int64_t rows, const float* a, int64_t part, const float* b, int64_t parts, int64_t depth,
                          float* y, int64_t pitch, bool first) {
    in_pieces<ROWS, IN_FLIGHT / N>(rows, [&]<int R>(int64_t r) {
        multiply<P, R, N, L>(a + r * PITCH, part, b, parts, depth, y + r * pitch, pitch, first);
    });
}

// sum[k][column] += sum over rows of a[row][k] * g[row][column], for KS columns k of a and N*L columns of g.
template <int KS, int N, int L>
[[gnu::noinline]] static void correlate(const float* a, const float* g, int64_t pitch, int64_t rows, float* out, int64_t out_pitch) {
    Vector<L> sum[KS][N];
    UNROLL for (int k = 0; k < KS; k++)
        UNROLL for (int n = 0; n < N; n++) sum[k][n] = Vector<L>{};
    for (int64_t r = 0; r < rows; r++) {
        Vector<L> v[N];
        UNROLL for (int n = 0; n < N; n++) v[n] = load<L>(g + n * L);
        UNROLL for (int k = 0; k < KS; k++) {
            const float x = a[k];
            UNROLL for (int n = 0; n < N; n++) sum[k][n] += v[n] * x;
        }
        a += PITCH;
        g += pitch;
    }
    UNROLL for (int k = 0; k < KS; k++)
        UNROLL for (int n = 0; n < N; n++) {
            float* p = out + k * out_pitch + n * L;
            store<L>(p, load<L>(p) + sum[k][n]);
        }
}

template <int KS, int N, int L>
static void correlate_columns(int64_t columns, const float* a, const float* g, int64_t pitch, int64_t rows, float* out,
                              int64_t out_pitch) {
    in_pieces<KS, IN_FLIGHT / N>(columns, [&]<int K>(int64_t k) {
        correlate<K, N, L>(a + k, g, pitch, rows, out + k * out_pitch, out_pitch);
    });
}

// Call f<N, L>(first column) for blocks of columns: as wide as the registers allow, then what is left.
template <class F>
static void blocks_of_columns(int64_t columns, F f) {
    int64_t n = 0;
    for (; n + 2 * LANES <= columns; n += 2 * LANES) f.template operator()<2, LANES>(n);
    for (; n + LANES <= columns; n += LANES) f.template operator()<1, LANES>(n);
    if constexpr (LANES > GRANULE) {
        for (; n < columns; n += GRANULE) f.template operator()<1, GRANULE>(n);
    }
}

// Four rows of four floats, transposed.
INLINE void transpose4(const Vector<4> (&in)[4], Vector<4> (&out)[4]) {
    const Vector<4> a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
    const Vector<4> b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
    const Vector<4> c = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    const Vector<4> d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
    out[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    out[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// The same for two blocks side by side, each in its half of the vectors.
INLINE void transpose4(const Vector<8> (&in)[4], Vector<8> (&out)[4]) {
    const Vector<8> a = __builtin_shufflevector(in[0], in[1], 0, 8, 1, 9, 4, 12, 5, 13);
    const Vector<8> b = __builtin_shufflevector(in[2], in[3], 0, 8, 1, 9, 4, 12, 5, 13);
    const Vector<8> c = __builtin_shufflevector(in[0], in[1], 2, 10, 3, 11, 6, 14, 7, 15);
    const Vector<8> d = __builtin_shufflevector(in[2], in[3], 2, 10, 3, 11, 6, 14, 7, 15);
    out[0] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
    out[1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    out[2] = __builtin_shufflevector(c, d, 0, 1, 8, 9, 4, 5, 12, 13);
    out[3] = __builtin_shufflevector(c, d, 2, 3, 10, 11, 6, 7, 14, 15);
}
