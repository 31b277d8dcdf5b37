// Batch norm of stacked maps with features last: sums over examples and positions, of all orientations of a feature
// together. Maps are rows of channels, a channel for each (feature, orientation).
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "border.h"
#include "threads.h"
#include "vectors.h"

struct Rows {
    int64_t rows, features, order;
    Rows(int64_t size, int64_t features, int64_t order) : rows(0), features(features), order(order) {
        need(features > 0 && order > 0, "there are no features");
        need(size >= 0 && size % product({features, order}) == 0, "the input", WRONG_SIZE);
        rows = size / channels();
    }
    int64_t channels() const { return features * order; }
    // Rows that stay in the first-level cache, and how many such pieces a task has: both depend on sizes alone.
    int64_t piece() const { return std::max<int64_t>(1, 4096 / channels()); }
    int64_t tasks() const { return std::clamp<int64_t>(rows / (8 * piece()), 1, 32); }
    int64_t begin(int64_t task) const { return task * rows / tasks(); }
    template <class F> void each_piece(int64_t task, F f) const {
        for (int64_t r = begin(task); r < begin(task + 1); r += piece()) f(r, std::min(begin(task + 1), r + piece()));
    }
    std::vector<float> of_channels(const float* of_features) const {
        std::vector<float> all;
        for (int64_t c = 0; c < channels(); c++) all.push_back(of_features[c / order]);
        return all;
    }
};

// sum[c] = sum over rows of f(row, first channel), with vectors of channels in registers.
template <class F>
static inline void column_sums(int64_t first, int64_t end, int64_t channels, float* sum, F f) {
    int64_t c = 0;
    const auto run = [&]<int L>() {
        Vector<L> a{}, b{};  // two sums, so that additions need not wait for each other
        int64_t r = first;
        for (; r + 2 <= end; r += 2) a += f.template operator()<L>(r, c), b += f.template operator()<L>(r + 1, c);
        if (r < end) a += f.template operator()<L>(r, c);
        store<L>(sum + c, a + b);
        c += L;
    };
    while (c + LANES <= channels) run.template operator()<LANES>();
    while (c + 4 <= channels) run.template operator()<4>();
    for (; c < channels; c++) {
        sum[c] = 0;
        for (int64_t r = first; r < end; r++) sum[c] += f.template operator()<1>(r, c)[0];
    }
}

// Mean and variance of each feature: those of pieces, put together in double.
static inline void statistics(const Rows& shape, const float* x, float* mean, float* variance, int64_t threads,
                              Parallel parallel) {
    const int64_t channels = shape.channels(), tasks = shape.tasks();
    std::vector<double> sums(tasks * channels, 0.0), squares(tasks * channels, 0.0);
    in_parallel(tasks, threads, parallel, [&](int64_t task) {
        std::vector<float> sum(channels), middle(channels), square(channels);
        shape.each_piece(task, [&](int64_t first, int64_t end) {
            column_sums(first, end, channels, sum.data(),
                        [&]<int L>(int64_t r, int64_t c) { return load<L>(x + r * channels + c); });
            for (int64_t c = 0; c < channels; c++) middle[c] = sum[c] / static_cast<float>(end - first);
            column_sums(first, end, channels, square.data(), [&]<int L>(int64_t r, int64_t c) {
                const Vector<L> d = load<L>(x + r * channels + c) - load<L>(middle.data() + c);
                return d * d;
            });
            for (int64_t c = 0; c < channels; c++) {
                sums[task * channels + c] += sum[c];
                squares[task * channels + c] += square[c] + static_cast<double>(sum[c]) * middle[c];
            }
        });
    });
    const double count = static_cast<double>(shape.rows * shape.order);
    for (int64_t f = 0; f < shape.features; f++) {
        double sum = 0, square = 0;
        for (int64_t task = 0; task < tasks; task++)
            for (int64_t c = f * shape.order; c < (f + 1) * shape.order; c++)
                sum += sums[task * channels + c], square += squares[task * channels + c];
        mean[f] = static_cast<float>(sum / count);
        variance[f] = static_cast<float>(std::max(0.0, (square - sum / count * sum) / count));
    }
}

// For each feature the sum of grad, and of grad * (x - mean).
static inline void gradient_sums(const Rows& shape, const float* grad, const float* x, const float* mean, float* of_one,
                                 float* of_x, int64_t threads, Parallel parallel) {
    const int64_t channels = shape.channels(), tasks = shape.tasks();
    const auto middle = shape.of_channels(mean);
    std::vector<double> sums(tasks * channels, 0.0), products(tasks * channels, 0.0);
    in_parallel(tasks, threads, parallel, [&](int64_t task) {
        std::vector<float> sum(channels), product(channels);
        shape.each_piece(task, [&](int64_t first, int64_t end) {
            column_sums(first, end, channels, sum.data(),
                        [&]<int L>(int64_t r, int64_t c) { return load<L>(grad + r * channels + c); });
            column_sums(first, end, channels, product.data(), [&]<int L>(int64_t r, int64_t c) {
                return load<L>(grad + r * channels + c) *
                       (load<L>(x + r * channels + c) - load<L>(middle.data() + c));
            });
            for (int64_t c = 0; c < channels; c++) {
                sums[task * channels + c] += sum[c];
                products[task * channels + c] += product[c];
            }
        });
    });
    for (int64_t f = 0; f < shape.features; f++) {
        double sum = 0, product = 0;
        for (int64_t task = 0; task < tasks; task++)
            for (int64_t c = f * shape.order; c < (f + 1) * shape.order; c++)
                sum += sums[task * channels + c], product += products[task * channels + c];
        of_one[f] = static_cast<float>(sum), of_x[f] = static_cast<float>(product);
    }
}

// y = x * a + other * b + c, with numbers a, b, c for each feature; `other` may be missing.
static inline void combine(const Rows& shape, const float* x, const float* a, const float* other, const float* b,
                           const float* c, float* y, int64_t threads, Parallel parallel) {
    const int64_t channels = shape.channels();
    const auto along = shape.of_channels(a), across = other ? shape.of_channels(b) : along, add = shape.of_channels(c);
    in_parallel(shape.tasks(), threads, parallel, [&](int64_t task) {
        for (int64_t r = shape.begin(task); r < shape.begin(task + 1); r++) {
            const auto run = [&]<int L>(int64_t k) {
                const int64_t at = r * channels + k;
                Vector<L> sum = load<L>(x + at) * load<L>(along.data() + k) + load<L>(add.data() + k);
                if (other) sum += load<L>(other + at) * load<L>(across.data() + k);
                store<L>(y + at, sum);
            };
            int64_t k = 0;
            for (; k + LANES <= channels; k += LANES) run.template operator()<LANES>(k);
            for (; k + 4 <= channels; k += 4) run.template operator()<4>(k);
            for (; k < channels; k++) run.template operator()<1>(k);
        }
    });
}

// Batch norm with statistics of its own: (x - mean) / sqrt(variance + eps) * weight + bias.
static inline void normalise(const Rows& shape, const float* x, const float* weight, const float* bias, double eps,
                             float* mean, float* variance, float* y, int64_t threads, Parallel parallel) {
    statistics(shape, x, mean, variance, threads, parallel);
    std::vector<float> scale(shape.features), shift(shape.features);
    for (int64_t f = 0; f < shape.features; f++) {
        const double along = (weight ? weight[f] : 1.0) / std::sqrt(variance[f] + eps);
        scale[f] = static_cast<float>(along);
        shift[f] = static_cast<float>((bias ? bias[f] : 0.0) - mean[f] * along);
    }
    combine(shape, x, scale.data(), nullptr, nullptr, shift.data(), y, threads, parallel);
}

// Its gradients; that to x may be missing.
static inline void normalise_gradient(const Rows& shape, const float* grad, const float* x, const float* weight,
                                      double eps, const float* mean, const float* variance, float* of_x,
                                      float* of_weight, float* of_bias, int64_t threads, Parallel parallel) {
    gradient_sums(shape, grad, x, mean, of_bias, of_weight, threads, parallel);
    const double count = static_cast<double>(shape.rows * shape.order);
    std::vector<float> along_grad(shape.features), along_x(shape.features), constant(shape.features);
    for (int64_t f = 0; f < shape.features; f++) {
        const double scale = 1.0 / std::sqrt(variance[f] + eps), of_scaled = of_weight[f] * scale;
        const double along = weight ? scale * weight[f] : scale, across = -along * scale * of_scaled / count;
        along_grad[f] = static_cast<float>(along), along_x[f] = static_cast<float>(across);
        constant[f] = static_cast<float>(-along * of_bias[f] / count - across * mean[f]);
        of_weight[f] = static_cast<float>(of_scaled);
    }
    if (of_x)
        combine(shape, grad, along_grad.data(), x, along_x.data(), constant.data(), of_x, threads, parallel);
}
