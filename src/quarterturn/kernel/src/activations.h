// Activations, on numbers that lie side by side. Their numbers are those of ACTIVATIONS in border.py.
#pragma once
#include <algorithm>

#include "border.h"
#include "threads.h"
#include "vectors.h"

enum Activation : int64_t { NONE, RELU, RELU6, SIGMOID, HARDSIGMOID, SILU, HARDSWISH, GELU, ACTIVATIONS };

using Lanes = Vector<LANES>;
using Words [[gnu::vector_size(LANES * sizeof(int32_t))]] = int32_t;

// A comparison with NaN is false: NaN stays.
INLINE Lanes at_least(Lanes x, float low) { return x < low ? Lanes{} + low : x; }
INLINE Lanes at_most(Lanes x, float high) { return x > high ? Lanes{} + high : x; }

// To about two units in the last place; below -87 it is not quite zero, above 88 not infinite.
INLINE Lanes exponential(Lanes x) {
    constexpr float ROUND = 12582912.0f;  // adding it leaves no bits behind the point, its last bits are the whole number
    x = at_most(at_least(x, -87.0f), 88.0f);
    const Lanes shifted = x * 1.44269504f + ROUND, whole = shifted - ROUND;
    const Lanes rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Lanes sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + rest + 1.0f;
    const Words power = (reinterpret_cast<Words>(shifted) << 23) + (127 << 23);
    return sum * reinterpret_cast<Lanes>(power);
}

// x (1 + erf(x / sqrt 2)) / 2, with erf to 1.5e-7 (Abramowitz and Stegun 7.1.26).
INLINE Lanes gelu(Lanes x) {
    const Lanes size = (x < 0.0f ? -x : x) * 0.70710678f, t = 1.0f / (size * 0.3275911f + 1.0f);
    Lanes sum = t * 1.061405429f - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = (sum * t + 0.254829592f) * t;
    const Lanes tail = sum * exponential(-size * size) * 0.5f;  // of the normal distribution, beyond |x|
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

template <Activation A>
INLINE Lanes activated(Lanes x) {
    if constexpr (A == RELU) return at_least(x, 0.0f);
    if constexpr (A == RELU6) return at_most(at_least(x, 0.0f), 6.0f);
    if constexpr (A == SIGMOID) return 1.0f / (exponential(-x) + 1.0f);
    if constexpr (A == HARDSIGMOID) return at_most(at_least(x + 3.0f, 0.0f), 6.0f) / 6.0f;
    if constexpr (A == SILU) return x / (exponential(-x) + 1.0f);
    if constexpr (A == HARDSWISH) return x * at_most(at_least(x + 3.0f, 0.0f), 6.0f) / 6.0f;
    if constexpr (A == GELU) return gelu(x);
    return x;
}

template <Activation A>
[[gnu::noinline]] static void activate_all(float* x, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store<LANES>(x + i, activated<A>(load<LANES>(x + i)));
    if (i == count) return;
    float last[LANES] = {};
    std::copy(x + i, x + count, last);
    store<LANES>(last, activated<A>(load<LANES>(last)));
    std::copy(last, last + count - i, x + i);
}

static inline void activate(Activation activation, float* x, int64_t count) {
    switch (activation) {
        case RELU: return activate_all<RELU>(x, count);
        case RELU6: return activate_all<RELU6>(x, count);
        case SIGMOID: return activate_all<SIGMOID>(x, count);
        case HARDSIGMOID: return activate_all<HARDSIGMOID>(x, count);
        case SILU: return activate_all<SILU>(x, count);
        case HARDSWISH: return activate_all<HARDSWISH>(x, count);
        case GELU: return activate_all<GELU>(x, count);
        default: return;
    }
}

static inline Activation activation_of(int64_t number) {
    need(0 <= number && number < ACTIVATIONS, "the activation is unknown");
    return static_cast<Activation>(number);
}

// x = activation(x + other), in pieces that stay in the first-level cache; `other` may be missing.
static inline void finish(float* x, int64_t count, const float* other, Activation activation, int64_t threads,
                          Parallel parallel) {
    constexpr int64_t PIECE = 4096;
    in_parallel((count + 16 * PIECE - 1) / (16 * PIECE), threads, parallel, [&](int64_t task) {
        const int64_t end = std::min(count, (task + 1) * 16 * PIECE);
        for (int64_t i = task * 16 * PIECE; i < end; i += PIECE) {
            const int64_t size = std::min(PIECE, end - i);
            if (other)
                for (int64_t k = 0; k < size; k++) x[i + k] += other[i + k];
            activate(activation, x + i, size);
        }
    });
}
