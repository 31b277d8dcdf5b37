// The transforms: programs of sums that Python hands over (fourier/transforms.py says why their order gives turned bits for
// turned inputs). Vectors are neighbouring positions. Sums that programs.h lists as well are compiled; the others are looked
// up one by one.
#pragma once
#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "../border.h"
#include "../vectors.h"
#include "programs.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace volumes {

using V = Vector<LANES>;
#define ALWAYS __attribute__((always_inline))

// The smaller and the larger of two, or if one is not a number the second and the first: none is lost.
INLINE void in_order(V a, V b, V& low, V& high) {
#if defined(__AVX512F__)
    low = _mm512_maskz_min_ps(-1, a, b), high = _mm512_maskz_max_ps(-1, b, a);  // the plain ones make GCC warn
#elif defined(__AVX2__) && !defined(QUARTERTURN_WIDE)
    low = _mm256_min_ps(a, b), high = _mm256_max_ps(b, a);
#else
    low = a < b ? a : b, high = b > a ? b : a;
#endif
}

// The sum of three that does not depend on their order, and changes its sign with theirs.
INLINE V sum3(V a, V b, V c) {
    V low, high, least, other, middle, most;
    in_order(a, b, low, high);
    in_order(low, c, least, other);
    in_order(other, high, middle, most);
    return (most + least) + middle;
}

// One sum: one to three terms, each with a place and a sign. Places are the inputs, then the outputs, then what is between.
struct Sum {
    int to = 0, terms = 0, place[3] = {}, minus[3] = {};
};

INLINE V add(const Sum& sum, V a, V b, V c) {
    if (sum.terms == 1) return sum.minus[0] ? -a : a;
    if (sum.terms == 3) return sum3(sum.minus[0] ? -a : a, sum.minus[1] ? -b : b, sum.minus[2] ? -c : c);
    if (sum.minus[0] && sum.minus[1]) return -(a + b);
    return sum.minus[0] ? b - a : sum.minus[1] ? a - b : a + b;
}

// --- compiled --------------------------------------------------------------------------------------------------------

template <class P>
constexpr auto sums_of() {
    std::array<Sum, P::NUMBERS[1]> sums;
    const int16_t* next = P::NUMBERS + 2;
    for (Sum& sum : sums) {
        sum.to = *next++, sum.terms = *next++;
        for (int i = 0; i < sum.terms; i++) sum.place[i] = *next++, sum.minus[i] = *next++ < 0;
    }
    return sums;
}

// Inputs are read when they are needed first, outputs are written at once, all else stays in registers. N vectors of
// positions, or if N is 0 `vectors`.
template <class P, int N>
[[gnu::noinline]] static void run_compiled(const float* from, const int64_t* where, float* to, int64_t runs, int64_t vectors) {
    static constexpr auto SUMS = sums_of<P>();
    static constexpr auto known = [](size_t before, int place) {
        for (size_t i = 0; i < before; i++)
            for (int k = 0; k < SUMS[i].terms; k++)
                if (SUMS[i].place[k] == place) return true;
        return false;
    };
    const int64_t many = N ? N : vectors;
    const auto run = [&](const float* from, float* to) ALWAYS {
        V value[P::NUMBERS[0]];
        const auto step = [&]<size_t I>() ALWAYS {
            constexpr Sum sum = SUMS[I];
            const auto term = [&]<int K>() ALWAYS {
                if constexpr (K >= sum.terms) return V{};
                else {
                    constexpr int place = sum.place[K];
                    if constexpr (place < P::INPUTS && !known(I, place)) value[place] = load<LANES>(from + where[place]);
                    return value[place];
                }
            };
            const V a = term.template operator()<0>(), b = term.template operator()<1>(), c = term.template operator()<2>();
            value[sum.to] = add(sum, a, b, c);
            if constexpr (sum.to < P::INPUTS + P::OUTPUTS) store<LANES>(to + (sum.to - P::INPUTS) * many * LANES, value[sum.to]);
        };
        [&]<size_t... I>(std::index_sequence<I...>) ALWAYS {
            (step.template operator()<I>(), ...);
        }(std::make_index_sequence<SUMS.size()>());
    };
    for (int64_t r = 0; r < runs; r++, where += P::INPUTS, to += P::OUTPUTS * many * LANES)
        for (int64_t v = 0; v < many * LANES; v += LANES) run(from + v, to + v);
}

using Compiled = void (*)(const float*, const int64_t*, float*, int64_t, int64_t);
constexpr int64_t MOST_COMPILED = 3;  // vectors; for more there is one function

// --- any program -----------------------------------------------------------------------------------------------------

struct Program {
    int64_t inputs, outputs, places;
    std::vector<Sum> sums;
    Compiled compiled[MOST_COMPILED + 1] = {};

    Program(Numbers& list, int64_t from, int64_t into) : inputs(from), outputs(into) {
        std::vector<int64_t> seen;
        const auto next = [&](int64_t low, int64_t high, const char* reason) {
            return static_cast<int>(seen.emplace_back(list.between(low, high, reason)));
        };
        places = next(from + into, 1 << 14, "a program has a wrong number of places");
        const int64_t steps = next(0, 1 << 14, "a program has a wrong length");
        for (int64_t i = 0; i < steps; i++) {
            Sum sum;
            sum.to = next(from, places - 1, "a sum goes to a wrong place");
            sum.terms = next(1, 3, "a sum has one to three terms");
            for (int k = 0; k < sum.terms; k++) {
                sum.place[k] = next(0, places - 1, "a sum has a wrong term");
                sum.minus[k] = next(-1, 1, "a sign is 1 or -1") < 0;
            }
            sums.push_back(sum);
        }
#if defined(__AVX2__) || defined(QUARTERTURN_WIDE)
        each_program([&]<class P>() {
            if (inputs == P::INPUTS && outputs == P::OUTPUTS &&
                std::equal(seen.begin(), seen.end(), std::begin(P::NUMBERS), std::end(P::NUMBERS)))
                compiled[0] = run_compiled<P, 0>, compiled[1] = run_compiled<P, 1>, compiled[2] = run_compiled<P, 2>,
                compiled[3] = run_compiled<P, 3>;
        });
#endif
    }

    // As often as `runs` says: inputs are at `from` + `where`, next ones further in that list, and outputs one after the
    // other, each of so many vectors. `between` has room for a vector at each place.
    void run(const float* from, const int64_t* where, float* to, int64_t runs, int64_t vectors, float* between) const {
        if (compiled[0]) return compiled[vectors <= MOST_COMPILED ? vectors : 0](from, where, to, runs, vectors);
        for (int64_t r = 0; r < runs; r++, where += inputs, to += outputs * vectors * LANES)
            for (int64_t v = 0; v < vectors * LANES; v += LANES) {
                for (int64_t i = 0; i < inputs; i++) store<LANES>(between + i * LANES, load<LANES>(from + where[i] + v));
                for (const Sum& sum : sums) {
                    const auto term = [&](int k) { return load<LANES>(between + sum.place[k] * LANES); };
                    store<LANES>(between + sum.to * LANES, add(sum, term(0), term(1), term(2)));
                }
                for (int64_t i = 0; i < outputs; i++)
                    store<LANES>(to + i * vectors * LANES + v, load<LANES>(between + (inputs + i) * LANES));
            }
    }
};

}  // namespace volumes
