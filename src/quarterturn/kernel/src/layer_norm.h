// Layer norm of stacked features, last in memory: over the features of each orientation by itself. A row has a channel for
// each (feature, orientation), so that lanes of a vector are orientations.
#pragma once
#include <cmath>
#include <utility>

#include "activations.h"
#include "norms.h"

template <int STEP, int... I>
INLINE Lanes exchanged(Lanes v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, (I ^ STEP)...);
}

// Each lane becomes the sum of all lanes of its orientation, of G. Two lanes that are exchanged get the same sum, so that
// no orientation is rounded in another way than others.
template <int G>
INLINE Lanes over_features(Lanes v) {
    constexpr auto ALL = std::make_integer_sequence<int, LANES>{};
    if constexpr (LANES > 8 && G <= 8) v += exchanged<8>(v, ALL);
    if constexpr (G <= 4) v += exchanged<4>(v, ALL);
    if constexpr (G <= 2) v += exchanged<2>(v, ALL);
    if constexpr (G <= 1) v += exchanged<1>(v, ALL);
    return v;
}

template <int G>
struct LayerNorm {
    const Rows& shape;
    int64_t channels = shape.channels(), whole = channels / LANES * LANES;  // those in whole vectors come first

    // The last vector of a row may be a PART: its other lanes are zero, and not written.
    template <bool PART> Lanes from(const float* row, int64_t k) const {
        if constexpr (!PART) return load<LANES>(row + k);
        float last[LANES] = {};
        std::copy(row + k, row + channels, last);
        return load<LANES>(last);
    }
    template <bool PART> void to(float* row, int64_t k, Lanes v) const {
        if constexpr (!PART) return store<LANES>(row + k, v);
        float last[LANES];
        store<LANES>(last, v);
        std::copy(last, last + channels - k, row + k);
    }
    template <bool PART> Lanes within(Lanes v) const {
        if constexpr (PART)
            for (int64_t lane = channels - whole; lane < LANES; lane++) v[lane] = 0.0f;
        return v;
    }
    template <class F> void each(F f) const {
        for (int64_t k = 0; k < whole; k += LANES) f.template operator()<false>(k);
        if (whole < channels) f.template operator()<true>(whole);
    }

    // The sum of f(first channel) over the features of each orientation; four sums, so that additions need not wait.
    template <class F> Lanes sum(F f) const {
        Lanes a[4] = {};
        int64_t k = 0;
        for (; k + 4 * LANES <= whole; k += 4 * LANES)
            UNROLL for (int i = 0; i < 4; i++) a[i] += f.template operator()<false>(k + i * LANES);
        for (; k < whole; k += LANES) a[0] += f.template operator()<false>(k);
        if (k < channels) a[1] += f.template operator()<true>(k);
        return over_features<G>((a[0] + a[1]) + (a[2] + a[3]));
    }

    std::vector<float> of_channels(const float* of_features, float otherwise) const {
        std::vector<float> all(whole + LANES, otherwise);
        for (int64_t c = 0; of_features && c < channels; c++) all[c] = of_features[c / G];
        return all;
    }

    // Mean and 1 / sqrt(variance + eps) of each row and orientation are kept if there is room for them.
    void forward(const float* x, const float* weight, const float* bias, double eps, float* means, float* scales, float* y,
                 int64_t threads, Parallel parallel) const {
        const auto weights = of_channels(weight, 1.0f), biases = of_channels(bias, 0.0f);
        const float features = static_cast<float>(shape.features);
        in_parallel(shape.tasks(), threads, parallel, [&](int64_t task) {
            for (int64_t r = shape.begin(task); r < shape.begin(task + 1); r++) {
                const float* row = x + r * channels;
                float* out = y + r * channels;
                const Lanes mean = sum([&]<bool PART>(int64_t k) { return from<PART>(row, k); }) / features;
                const Lanes variance = sum([&]<bool PART>(int64_t k) {
                                           const Lanes d = within<PART>(from<PART>(row, k) - mean);
                                           return d * d;
                                       }) /
                                       features;
                const Lanes scale = inverse_root(variance + static_cast<float>(eps));
                each([&]<bool PART>(int64_t k) {
                    const Lanes along = scale * load<LANES>(weights.data() + k), add = load<LANES>(biases.data() + k);
                    to<PART>(out, k, (from<PART>(row, k) - mean) * along + add);
                });
                if (means) keep(means + r * G, mean), keep(scales + r * G, scale);
            }
        });
    }

    static Lanes inverse_root(Lanes v) {
        float each[LANES];
        store<LANES>(each, v);
        for (float& number : each) number = 1.0f / std::sqrt(number);
        return load<LANES>(each);
    }
    static void keep(float* to, Lanes v) {
        for (int t = 0; t < G; t++) to[t] = v[t];
    }
    static Lanes kept(const float* from) {
        Lanes v;
        for (int lane = 0; lane < LANES; lane++) v[lane] = from[lane % G];
        return v;
    }

    // The gradient to x may be missing.
    void gradient(const float* grad, const float* x, const float* weight, const float* means, const float* scales,
                  float* of_x, float* of_weight, float* of_bias, int64_t threads, Parallel parallel) const {
        const auto weights = of_channels(weight, 1.0f);
        const float features = static_cast<float>(shape.features);
        const int64_t room = static_cast<int64_t>(weights.size());
        std::vector<float> sums(shape.tasks() * 2 * room, 0.0f);
        in_parallel(shape.tasks(), threads, parallel, [&](int64_t task) {
            float *products = sums.data() + task * 2 * room, *plain = products + room;
            for (int64_t r = shape.begin(task); r < shape.begin(task + 1); r++) {
                const float *row = x + r * channels, *given = grad + r * channels;
                const Lanes mean = kept(means + r * G), scale = kept(scales + r * G);
                const auto normal = [&]<bool PART>(int64_t k) { return (from<PART>(row, k) - mean) * scale; };
                const auto weighted = [&]<bool PART>(int64_t k) {
                    return from<PART>(given, k) * load<LANES>(weights.data() + k);
                };
                each([&]<bool PART>(int64_t k) {
                    const Lanes g = from<PART>(given, k), y = normal.template operator()<PART>(k);
                    store<LANES>(products + k, load<LANES>(products + k) + g * y);
                    store<LANES>(plain + k, load<LANES>(plain + k) + g);
                });
                if (!of_x) continue;
                const Lanes of_one = sum(weighted) / features;
                const Lanes of_normal = sum([&]<bool PART>(int64_t k) {
                                            return weighted.template operator()<PART>(k) *
                                                   normal.template operator()<PART>(k);
                                        }) /
                                        features;
                each([&]<bool PART>(int64_t k) {
                    const Lanes g = weighted.template operator()<PART>(k), y = normal.template operator()<PART>(k);
                    to<PART>(of_x + r * channels, k, (g - of_one - y * of_normal) * scale);
                });
            }
        });
        for (int64_t f = 0; f < shape.features; f++) {
            double product = 0, sum = 0;
            for (int64_t task = 0; task < shape.tasks(); task++)
                for (int64_t c = f * G; c < (f + 1) * G; c++)
                    product += sums[task * 2 * room + c], sum += sums[(task * 2 + 1) * room + c];
            of_weight[f] = static_cast<float>(product), of_bias[f] = static_cast<float>(sum);
        }
    }
};

// Call f(layer norm) for rows of 1, 2, 4 or 8 orientations.
template <class F>
static void with_layer_norm(const Rows& shape, F f) {
    switch (shape.order) {
        case 1: return f(LayerNorm<1>{shape});
        case 2: return f(LayerNorm<2>{shape});
        case 4: return f(LayerNorm<4>{shape});
        case 8: return f(LayerNorm<8>{shape});
    }
    need(false, "it has another number of orientations");
}
