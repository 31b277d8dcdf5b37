// The two products that the time goes into, and how they are cut so that their sums stay in registers.
#pragma once
#include <array>

#include "sums.h"

namespace volumes {

#if defined(__AVX512F__) || defined(QUARTERTURN_WIDE)
constexpr int SUMS = 24, MOST_VECTORS = 6, MOST_COLUMNS = 12;  // sums in registers; vectors and columns of a product
#elif defined(__AVX2__)
constexpr int SUMS = 12, MOST_VECTORS = 4, MOST_COLUMNS = 6;
#else  // few, so that a compiler without such vectors is done soon
constexpr int SUMS = 3, MOST_VECTORS = 3, MOST_COLUMNS = 3;
#endif

// y[column][vector] += sum over parts and k of b[part][k][column] * a[part][k][vector], a chain in this order. The columns
// of b lie together.
template <int M, int N>
[[gnu::noinline]] static void multiply(const float* a, int64_t a_part, int64_t a_pitch, const float* b, int64_t parts,
                                       int64_t depth, float* y, bool first) {
    V sum[N][M];
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int m = 0; m < M; m++) sum[n][m] = first ? V{} : load<LANES>(y + (n * M + m) * LANES);
    for (int64_t p = 0; p < parts; p++) {
        const float* x = a + p * a_part;
        for (int64_t k = 0; k < depth; k++, x += a_pitch, b += N) {
            V v[M];
            UNROLL for (int m = 0; m < M; m++) v[m] = load<LANES>(x + m * LANES);
            UNROLL for (int n = 0; n < N; n++)
                UNROLL for (int m = 0; m < M; m++) sum[n][m] += v[m] * b[n];
        }
    }
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int m = 0; m < M; m++) store<LANES>(y + (n * M + m) * LANES, sum[n][m]);
}

// sum[n][k] += sum over vectors of a[k] * g[n], lanes kept apart.
template <int K, int N>
[[gnu::noinline]] static void correlate(const float* a, int64_t a_pitch, const float* g, int64_t g_pitch, int64_t vectors,
                                        float* out) {
    V sum[N][K];
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int k = 0; k < K; k++) sum[n][k] = load<LANES>(out + (n * K + k) * LANES);
    for (int64_t i = 0; i < vectors * LANES; i += LANES) {
        V x[K];
        UNROLL for (int k = 0; k < K; k++) x[k] = load<LANES>(a + k * a_pitch + i);
        UNROLL for (int n = 0; n < N; n++) {
            const V v = load<LANES>(g + n * g_pitch + i);
            UNROLL for (int k = 0; k < K; k++) sum[n][k] += x[k] * v;
        }
    }
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int k = 0; k < K; k++) store<LANES>(out + (n * K + k) * LANES, sum[n][k]);
}

// Both for all sizes that fit the registers, as tables [M - 1][N - 1].
template <class F, class Pick>
constexpr auto table_of(Pick pick) {
    std::array<std::array<F, MOST_COLUMNS>, MOST_VECTORS> table{};
    [&]<size_t... I>(std::index_sequence<I...>) {
        const auto one = [&]<size_t J>() {
            constexpr int M = J / MOST_COLUMNS + 1, N = J % MOST_COLUMNS + 1;
            if constexpr (M * N <= SUMS) table[M - 1][N - 1] = pick.template operator()<M, N>();
        };
        (one.template operator()<I>(), ...);
    }(std::make_index_sequence<MOST_VECTORS * MOST_COLUMNS>());
    return table;
}
using Multiply = decltype(&multiply<1, 1>);
using Correlate = decltype(&correlate<1, 1>);
static constexpr auto MULTIPLY = table_of<Multiply>([]<int M, int N>() -> Multiply { return multiply<M, N>; });
static constexpr auto CORRELATE = table_of<Correlate>([]<int M, int N>() -> Correlate { return correlate<M, N>; });

// Call f(first, count) for pieces of `count`, as equal as can be, of at most `most` each.
template <class F>
INLINE void in_equal_pieces(int64_t count, int64_t most, F f) {
    const int64_t pieces = (count + most - 1) / most;
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t first = i * count / pieces;
        f(first, (i + 1) * count / pieces - first);
    }
}

// Call f(row, rows, column, columns) for pieces that fit the registers, for rows of so many vectors each. They are chosen by
// what they take: two products in a step, or two numbers that are read, or four steps until a sum can be added to again.
template <class F>
void in_products(int64_t rows, int64_t vectors, int64_t columns, F f) {
    int64_t least = -1, high = 1, wide = 1;
    for (int64_t m = 1; m <= rows && m * vectors <= MOST_VECTORS; m++) {
        const int64_t most = std::min<int64_t>(MOST_COLUMNS, SUMS / (m * vectors));
        int64_t steps = 0;
        in_equal_pieces(rows, m, [&](int64_t, int64_t tall) {
            in_equal_pieces(columns, most, [&](int64_t, int64_t n) {
                steps += std::max<int64_t>({tall * vectors * n, tall * vectors + n, 8}) + 1;
            });
        });
        if (least < 0 || steps <= least) least = steps, high = m, wide = most;
    }
    in_equal_pieces(columns, wide, [&](int64_t n, int64_t width) {
        in_equal_pieces(rows, high, [&](int64_t r, int64_t tall) { f(r, tall, n, width); });
    });
}

}  // namespace volumes
