// Max pooling of stacked maps, features last, where each orientation starts its windows at a place of its own: one pass
// over all offsets that any of them sees, and the way back from the offset that each output took.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "activations.h"
#include "border.h"
#include "threads.h"
#include "vectors.h"

struct MaxPool {
    int64_t batch, features, order, source[2], target[2], window[2], stride[2], dilation[2];
    struct Offset {
        int64_t at[2];
        std::array<int32_t, LANES> sees;  // -1 in the lanes of orientations whose window has it, else 0
    };
    std::vector<Offset> offsets;  // row by row, as torch looks at its windows

    // In the order in which pool_numbers in border.py writes them.
    explicit MaxPool(std::span<const int64_t> numbers) {
        Numbers n(numbers);
        batch = n.size("the batch is negative"), features = n.size("there are no features", 1);
        order = n.between(1, 8, "there are too many orientations");
        need(LANES % order == 0, "a vector has no whole number of orientations");
        for (int64_t& size : source) size = n.size("the source has a negative size");
        for (int64_t& size : target) size = n.size("the target has a negative size");
        for (int64_t& size : window) size = n.size("the window is empty", 1);
        for (int64_t& step : stride) step = n.size("there is no stride", 1);
        for (int64_t& step : dilation) step = n.size("there is no dilation", 1);
        need(product({window[0], window[1]}) <= 4096, "the window is too large");
        std::map<std::pair<int64_t, int64_t>, std::array<int32_t, LANES>> found;
        for (int64_t h = 0; h < order; h++) {
            const int64_t top = n.position("a window starts too far away"), left = n.position("a window starts too far away");
            for (int64_t i = 0; i < window[0]; i++)
                for (int64_t j = 0; j < window[1]; j++) {
                    auto& sees = found[{top + i * dilation[0], left + j * dilation[1]}];
                    for (int64_t lane = h; lane < LANES; lane += order) sees[lane] = -1;
                }
        }
        n.end();
        for (const auto& [at, sees] : found) offsets.push_back({{at.first, at.second}, sees});
    }
    int64_t channels() const { return features * order; }

    // For channels from c on: the largest value that each sees and the number of its offset; NaN is the largest of all.
    // places[k] is where offset numbers[k] is.
    template <int L, bool KEEP>
    void largest(const float* const* places, const int32_t* numbers, size_t count, int64_t c, float* y,
                 int32_t* taken) const {
        using Ints [[gnu::vector_size(L * sizeof(int32_t))]] = int32_t;
        Vector<L> most = Vector<L>{} - __builtin_inff();
        Ints number = Ints{} - 1;
        for (size_t k = 0; k < count; k++) {
            Ints sees;
            std::memcpy(&sees, offsets[numbers[k]].sees.data() + c % LANES, sizeof sees);
            const Vector<L> x = load<L>(places[k] + c);
            const Ints take = ((x > most) | (x != x) | (KEEP ? number < 0 : Ints{})) & sees;
            most = take ? x : most;
            if constexpr (KEEP) number = take ? Ints{} + numbers[k] : number;
        }
        store<L>(y + c, most);
        if constexpr (KEEP) std::memcpy(taken + c, &number, sizeof number);
    }

    template <bool KEEP>
    void pool(const float* x, float* y, int32_t* taken, int64_t threads, Parallel parallel) const {
        const int64_t all = channels();
        in_parallel(batch * target[0], threads, parallel, [&](int64_t row) {
            const int64_t n = row / target[0], i = row % target[0];
            std::vector<const float*> places;
            std::vector<int32_t> numbers;
            for (int64_t j = 0; j < target[1]; j++) {
                places.clear(), numbers.clear();
                for (size_t k = 0; k < offsets.size(); k++) {
                    const int64_t r = i * stride[0] + offsets[k].at[0], c = j * stride[1] + offsets[k].at[1];
                    if (r < 0 || r >= source[0] || c < 0 || c >= source[1]) continue;
                    places.push_back(x + ((n * source[0] + r) * source[1] + c) * all);
                    numbers.push_back(static_cast<int32_t>(k));
                }
                const int64_t to = (row * target[1] + j) * all;
                int32_t* kept = KEEP ? taken + to : nullptr;
                int64_t c = 0;
                for (; c + LANES <= all; c += LANES)
                    largest<LANES, KEEP>(places.data(), numbers.data(), places.size(), c, y + to, kept);
                for (; c < all; c++) largest<1, KEEP>(places.data(), numbers.data(), places.size(), c, y + to, kept);
            }
        });
    }

    // What each position of the source gave to outputs that took it.
    template <int L>
    static void gather(const std::vector<std::pair<int64_t, int32_t>>& takers, const float* grad, const int32_t* taken,
                       int64_t c, float* out) {
        using Ints [[gnu::vector_size(L * sizeof(int32_t))]] = int32_t;
        Vector<L> sum{};
        for (const auto& [from, number] : takers) {
            Ints took;
            std::memcpy(&took, taken + from + c, sizeof took);
            sum += took == number ? load<L>(grad + from + c) : Vector<L>{};
        }
        store<L>(out + c, sum);
    }

    void gradient(const float* grad, const int32_t* taken, float* out, int64_t threads, Parallel parallel) const {
        const int64_t all = channels();
        in_parallel(batch * source[0], threads, parallel, [&](int64_t row) {
            const int64_t n = row / source[0], r = row % source[0];
            std::vector<std::pair<int64_t, int32_t>> takers;  // where an output is, and by which offset it sees this
            for (int64_t q = 0; q < source[1]; q++) {
                takers.clear();
                for (size_t k = 0; k < offsets.size(); k++) {
                    const int64_t i = r - offsets[k].at[0], j = q - offsets[k].at[1];
                    if (i < 0 || j < 0 || i % stride[0] || j % stride[1]) continue;
                    if (i / stride[0] >= target[0] || j / stride[1] >= target[1]) continue;
                    const int64_t pixel = (n * target[0] + i / stride[0]) * target[1] + j / stride[1];
                    takers.push_back({pixel * all, static_cast<int32_t>(k)});
                }
                float* to = out + (row * source[1] + q) * all;
                int64_t c = 0;
                for (; c + LANES <= all; c += LANES) gather<LANES>(takers, grad, taken, c, to);
                for (; c < all; c++) gather<1>(takers, grad, taken, c, to);
            }
        });
    }
};
