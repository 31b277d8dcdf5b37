// The gradient to the filters of a depthwise convolution, features last: for each channel and offset the sum over
// positions of grad * x. torch has it as one matrix product for each offset.
#pragma once
#include <algorithm>
#include <vector>

#include "border.h"
#include "threads.h"
#include "vectors.h"

struct Depthwise {
    int64_t batch, channels, source[2], target[2], window[2], stride[2], dilation[2], padding[2];

    // In the order in which depthwise_numbers in border.py writes them.
    explicit Depthwise(std::span<const int64_t> numbers) {
        Numbers n(numbers);
        batch = n.size("the batch is negative"), channels = n.size("there are no channels", 1);
        for (int64_t& size : source) size = n.size("the source has a negative size");
        for (int64_t& size : target) size = n.size("the target has a negative size");
        for (int64_t& size : window) size = n.size("the window is empty", 1);
        for (int64_t& step : stride) step = n.size("there is no stride", 1);
        for (int64_t& step : dilation) step = n.size("there is no dilation", 1);
        for (int64_t& size : padding) size = n.size("the padding is negative");
        n.end();
    }

    // The first output position along an axis whose offset k lies inside the source, and the first beyond.
    std::pair<int64_t, int64_t> inside(int axis, int64_t k) const {
        const int64_t shift = padding[axis] - k * dilation[axis];  // source = output * stride - shift
        const int64_t first = shift > 0 ? (shift + stride[axis] - 1) / stride[axis] : 0;
        const int64_t last = source[axis] - 1 + shift;
        const int64_t end = last < 0 ? 0 : std::min(target[axis], last / stride[axis] + 1);
        return {std::min(first, end), end};
    }

    // One row of the output and one of the source, COUNT offsets of the row from k on, L channels.
    template <int L, int COUNT>
    void add_row(const float* x, const float* grad, int64_t k, int64_t c, float* sums) const {
        int64_t first = 0, end = target[1];
        for (int i = 0; i < COUNT; i++) {
            const auto [from, to] = inside(1, k + i);
            first = std::max(first, from), end = std::min(end, to);
        }
        end = std::max(first, end);
        Vector<L> sum[COUNT];
        UNROLL for (int i = 0; i < COUNT; i++) sum[i] = load<L>(sums + (k + i) * channels + c);
        const float* at = x + (first * stride[1] - padding[1] + k * dilation[1]) * channels + c;
        for (int64_t j = first; j < end; j++, at += stride[1] * channels) {
            const Vector<L> g = load<L>(grad + j * channels + c);
            UNROLL for (int i = 0; i < COUNT; i++) sum[i] += g * load<L>(at + i * dilation[1] * channels);
        }
        for (int i = 0; i < COUNT && COUNT > 1; i++) {  // at the ends only some offsets lie inside
            const auto [from, to] = inside(1, k + i);
            for (int64_t j = from; j < to; j++) {
                if (j == first) j = end;
                if (j >= to) break;
                const int64_t place = j * stride[1] - padding[1] + (k + i) * dilation[1];
                sum[i] += load<L>(grad + j * channels + c) * load<L>(x + place * channels + c);
            }
        }
        UNROLL for (int i = 0; i < COUNT; i++) store<L>(sums + (k + i) * channels + c, sum[i]);
    }

    template <int L> void add_offsets(const float* x, const float* grad, int64_t c, float* sums) const {
        int64_t k = 0;
        for (; k + 5 <= window[1]; k += 5) add_row<L, 5>(x, grad, k, c, sums);
        for (; k + 4 <= window[1]; k += 4) add_row<L, 4>(x, grad, k, c, sums);
        for (; k + 3 <= window[1]; k += 3) add_row<L, 3>(x, grad, k, c, sums);
        for (; k < window[1]; k++) add_row<L, 1>(x, grad, k, c, sums);
    }

    void gradient(const float* x, const float* grad, float* weight, int64_t threads, Parallel parallel) const {
        const int64_t size = window[0] * window[1] * channels, rows = batch * target[0];
        const int64_t chunks = std::clamp<int64_t>(rows / 16, 1, 16);
        std::vector<float> sums(chunks * size, 0.0f);
        in_parallel(chunks, threads, parallel, [&](int64_t chunk) {
            for (int64_t row = chunk * rows / chunks; row < (chunk + 1) * rows / chunks; row++)
                for (int64_t k = 0; k < window[0]; k++) {
                    const int64_t n = row / target[0], i = row % target[0];
                    const int64_t from = i * stride[0] - padding[0] + k * dilation[0];
                    if (from < 0 || from >= source[0]) continue;
                    const float* line = x + (n * source[0] + from) * source[1] * channels;
                    const float* of_line = grad + row * target[1] * channels;
                    float* sum = sums.data() + chunk * size + k * window[1] * channels;
                    int64_t c = 0;
                    for (; c + LANES <= channels; c += LANES) add_offsets<LANES>(line, of_line, c, sum);
                    for (; c + 4 <= channels; c += 4) add_offsets<4>(line, of_line, c, sum);
                    for (; c < channels; c++) add_offsets<1>(line, of_line, c, sum);
                }
        });
        std::copy(sums.begin(), sums.begin() + size, weight);
        for (int64_t chunk = 1; chunk < chunks; chunk++)
            for (int64_t k = 0; k < size; k++) weight[k] += sums[chunk * size + k];
    }
};
