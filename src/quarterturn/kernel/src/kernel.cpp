// The group convolution in the group-Fourier basis: forward (and, with other numbers, the gradient to the input) and
// the gradient to the weights; and planes from place to place. Plain C at the border, no torch. How it works:
// ../README.md.
#include <type_traits>

#include "depthwise.h"
#include "layer_norm.h"
#include "narrow.h"
#include "norms.h"
#include "pixels.h"
#include "pooling.h"
#include "tokens.h"

namespace {

using Plan = std::span<const int64_t>;

Plan list(const int64_t* numbers, int64_t length) {
    need(length >= 0, "its length is negative");
    return {numbers, static_cast<size_t>(length)};
}

template <class F>
void with_structure(Plan numbers, F f) {
    need(!numbers.empty(), "it is too short");
    switch (numbers[0]) {
        case 0: return f(Layer<Order2>(numbers));
        case 1: return f(Layer<Klein>(numbers));
        case 2: return f(Layer<Cyclic4Exact>(numbers));
        case 3: return f(Layer<Cyclic4Gauss>(numbers));
        case 4: return f(Layer<Dihedral4>(numbers));
        case 5: return f(Layer<Apart4>(numbers));
        case 6: return f(Layer<Apart8>(numbers));
        case 7: return f(Layer<Spread4>(numbers));
    }
    need(false, "the structure is unknown");
}

// The same with values of two types, of the maps in memory and of what is multiplied: 0 both are float32, 1 maps are
// bf16, 2 both are.
template <class F>
void with_types(Plan numbers, int64_t precision, F f) {
    with_structure(numbers, [&](const auto& layer) {
        switch (precision) {
            case 0: return f(layer, float{}, Floats{});
            case 1: return f(layer, Bf16{}, Floats{});
            case 2: return f(layer, Bf16{}, Pairs{});
        }
        need(false, "the precision is unknown");
    });
}

// A number for each feature, then more of them; all the same where none are given.
std::vector<float> padded(const float* given, int64_t count, int64_t size, float otherwise) {
    std::vector<float> all(size, otherwise);
    if (given) std::copy(given, given + count, all.begin());
    return all;
}

}  // namespace

// Every list and every tensor is followed by its length or size in elements. What is given back is a status
// (border.h), FINE where all went well; quarterturn_reason says more.
extern "C" {

// Compared by Python before this file is loaded; see compiler.py.
[[gnu::used]] extern const char quarterturn_built_from[] = "quarterturn kernel built from " QUARTERTURN_FINGERPRINT;

const char* quarterturn_reason() { return last_reason; }

int quarterturn_packed_size(const int64_t* numbers, int64_t length, int64_t precision, int64_t* size) {
    return guarded([&] {
        with_types(list(numbers, length), precision, [&](const auto& layer, auto, auto products) {
            *size = layer.template packed_size<decltype(products)>();
        });
    });
}

int quarterturn_pack(const int64_t* numbers, int64_t length, int64_t precision, const float* weight,
                     int64_t weight_size, int64_t out_stride, int64_t in_stride, const int64_t* index,
                     int64_t index_length, float* packed, int64_t packed_size, int64_t threads, Parallel parallel) {
    return guarded([&] {
        with_types(list(numbers, length), precision, [&](const auto& layer, auto, auto products) {
            using P = decltype(products);
            layer.check_weight(weight_size, out_stride, in_stride, list(index, index_length));
            layer.template check_packed<P>(packed_size);
            layer.template pack<P>(weight, out_stride, in_stride, index, packed, threads, parallel);
        });
    });
}

// Bias, scale and other may be null: see Finish.
int quarterturn_convolve(const int64_t* numbers, int64_t length, int64_t precision, const void* x, int64_t x_size,
                         const float* packed, int64_t packed_size, const float* bias, int64_t bias_size,
                         const float* scale, int64_t scale_size, const void* other, int64_t other_size,
                         int64_t activation, void* y, int64_t y_size, int64_t threads, Parallel parallel) {
    return guarded([&] {
        with_types(list(numbers, length), precision, [&](const auto& layer, auto one, auto products) {
            using T = decltype(one);
            using P = decltype(products);
            layer.check_source(x_size);
            layer.check_target(y_size);
            layer.template check_packed<P>(packed_size);
            if (bias) layer.check_bias(bias_size);
            if (scale) layer.check_scale(scale_size);
            if (other) layer.check_target(other_size);
            const auto scales = padded(scale, layer.g.out, layer.out_pitch, 1.0f);
            const auto biases = padded(bias, layer.g.out, layer.out_pitch, 0.0f);
            const Finish<T> finish{scales.data(), biases.data(), static_cast<const T*>(other),
                                   activation_of(activation)};
            if constexpr (std::is_same_v<P, Floats>) {
                if (const Narrow narrow(layer); narrow.suits())
                    return narrow.forward(static_cast<const T*>(x), packed, finish, static_cast<T*>(y), threads,
                                          parallel);
            }
            layer.template forward<P>(static_cast<const T*>(x), packed, finish, static_cast<T*>(y), threads, parallel);
        });
    });
}

// Other may be null.
int quarterturn_finish(float* x, int64_t size, const float* other, int64_t other_size, int64_t activation,
                       int64_t threads, Parallel parallel) {
    return guarded([&] {
        need(size >= 0, "the input has a negative size");
        if (other) need_size(other_size, size, "what is added");
        finish(x, size, other, activation_of(activation), threads, parallel);
    });
}

// Its products are float32 in any case.
int quarterturn_weight_gradient(const int64_t* numbers, int64_t length, int64_t precision, const void* x,
                                int64_t x_size, const void* grad, int64_t grad_size, int64_t out_stride,
                                int64_t in_stride, const int64_t* index, int64_t index_length, float* weight,
                                int64_t weight_size, float* bias, int64_t bias_size, int64_t threads,
                                Parallel parallel) {
    return guarded([&] {
        with_types(list(numbers, length), precision, [&](const auto& layer, auto one, auto) {
            using T = decltype(one);
            need(layer.g.phases.size() == 1, "a gradient to weights has one phase");
            layer.check_source(x_size);
            layer.check_target(grad_size);
            layer.check_weight(weight_size, out_stride, in_stride, list(index, index_length));
            layer.check_bias(bias_size);
            const auto run = [&](const auto& how) {
                layer.weight_gradient(how, static_cast<const T*>(x), static_cast<const T*>(grad), out_stride, in_stride,
                                      index, weight, bias, threads, parallel);
            };
            if (const Narrow narrow(layer); narrow.suits_gradient())
                run(narrow);
            else
                run(layer);
        });
    });
}

// Batch norm in training: statistics, and the maps that they make. Weight and bias may be null.
int quarterturn_normalise(const float* x, int64_t size, int64_t features, int64_t order, const float* weight,
                          int64_t weight_size, const float* bias, int64_t bias_size, double eps, float* mean,
                          int64_t mean_size, float* variance, int64_t variance_size, float* y, int64_t y_size,
                          int64_t threads, Parallel parallel) {
    return guarded([&] {
        const Rows shape(size, features, order);
        need_size(y_size, size, "the output");
        for (int64_t given : {mean_size, variance_size}) need_size(given, features, "a number for each feature");
        if (weight) need_size(weight_size, features, "the weight");
        if (bias) need_size(bias_size, features, "the bias");
        normalise(shape, x, weight, bias, eps, mean, variance, y, threads, parallel);
    });
}

// Weight and the gradient to x may be null.
int quarterturn_normalise_gradient(const float* grad, int64_t grad_size, const float* x, int64_t size, int64_t features,
                                   int64_t order, const float* weight, int64_t weight_size, double eps,
                                   const float* mean, int64_t mean_size, const float* variance, int64_t variance_size,
                                   float* of_x, int64_t of_x_size, float* of_weight, int64_t of_weight_size,
                                   float* of_bias, int64_t of_bias_size, int64_t threads, Parallel parallel) {
    return guarded([&] {
        const Rows shape(size, features, order);
        need_size(grad_size, size, "the gradient");
        for (int64_t given : {mean_size, variance_size, of_weight_size, of_bias_size})
            need_size(given, features, "a number for each feature");
        if (weight) need_size(weight_size, features, "the weight");
        if (of_x) need_size(of_x_size, size, "the gradient to the input");
        normalise_gradient(shape, grad, x, weight, eps, mean, variance, of_x, of_weight, of_bias, threads, parallel);
    });
}

// Layer norm of rows. Weight and bias may be null, and so may means and scales, which its gradient needs.
int quarterturn_layer_norm(const float* x, int64_t size, int64_t features, int64_t order, const float* weight,
                           int64_t weight_size, const float* bias, int64_t bias_size, double eps, float* means,
                           int64_t means_size, float* scales, int64_t scales_size, float* y, int64_t y_size,
                           int64_t threads, Parallel parallel) {
    return guarded([&] {
        const Rows shape(size, features, order);
        need_size(y_size, size, "the output");
        if (weight) need_size(weight_size, features, "the weight");
        if (bias) need_size(bias_size, features, "the bias");
        need(!means == !scales, "it keeps means without scales");
        if (means)
            for (int64_t given : {means_size, scales_size}) need_size(given, shape.rows * order, "what is kept");
        with_layer_norm(shape, [&](const auto& norm) {
            norm.forward(x, weight, bias, eps, means, scales, y, threads, parallel);
        });
    });
}

// Weight and the gradient to x may be null.
int quarterturn_layer_norm_gradient(const float* grad, int64_t grad_size, const float* x, int64_t size,
                                    int64_t features, int64_t order, const float* weight, int64_t weight_size,
                                    const float* means, int64_t means_size, const float* scales, int64_t scales_size,
                                    float* of_x, int64_t of_x_size, float* of_weight, int64_t of_weight_size,
                                    float* of_bias, int64_t of_bias_size, int64_t threads, Parallel parallel) {
    return guarded([&] {
        const Rows shape(size, features, order);
        need_size(grad_size, size, "the gradient");
        for (int64_t given : {means_size, scales_size}) need_size(given, shape.rows * order, "what was kept");
        for (int64_t given : {of_weight_size, of_bias_size}) need_size(given, features, "a number for each feature");
        if (weight) need_size(weight_size, features, "the weight");
        if (of_x) need_size(of_x_size, size, "the gradient to the input");
        with_layer_norm(shape, [&](const auto& norm) {
            norm.gradient(grad, x, weight, means, scales, of_x, of_weight, of_bias, threads, parallel);
        });
    });
}

// Tokens and their orientations, (token, feature, orientation), as (orientation, place of the token, feature); or back.
// Places may be null.
int quarterturn_beside(int64_t tokens, int64_t features, int64_t order, const int64_t* places, int64_t places_size,
                       int64_t back, const float* x, int64_t x_size, float* y, int64_t y_size, int64_t threads,
                       Parallel parallel) {
    return guarded([&] {
        const Tokens shape(x_size, tokens, features, order, list(places, places_size));
        need_size(y_size, x_size, "the output");
        if (back)
            shape.join(x, y, threads, parallel);
        else
            shape.split(x, y, threads, parallel);
    });
}

// The gradient to the filters of a depthwise convolution, offset by offset.
int quarterturn_depthwise_gradient(const int64_t* numbers, int64_t length, const float* x, int64_t x_size,
                                   const float* grad, int64_t grad_size, float* weight, int64_t weight_size,
                                   int64_t threads, Parallel parallel) {
    return guarded([&] {
        const Depthwise layer(list(numbers, length));
        need_size(x_size, product({layer.batch, layer.source[0], layer.source[1], layer.channels}), "the input");
        need_size(grad_size, product({layer.batch, layer.target[0], layer.target[1], layer.channels}), "the gradient");
        need_size(weight_size, product({layer.window[0], layer.window[1], layer.channels}), "the weight");
        layer.gradient(x, grad, weight, threads, parallel);
    });
}

// Max pooling; which offset each output took is kept for the gradient if there is room for it.
int quarterturn_max_pool(const int64_t* numbers, int64_t length, const float* x, int64_t x_size, float* y,
                         int64_t y_size, int32_t* taken, int64_t taken_size, int64_t threads, Parallel parallel) {
    return guarded([&] {
        const MaxPool layer(list(numbers, length));
        need_size(x_size, product({layer.batch, layer.source[0], layer.source[1], layer.channels()}), "the input");
        need_size(y_size, product({layer.batch, layer.target[0], layer.target[1], layer.channels()}), "the output");
        if (taken) need_size(taken_size, y_size, "what is kept");
        if (taken)
            layer.pool<true>(x, y, taken, threads, parallel);
        else
            layer.pool<false>(x, y, nullptr, threads, parallel);
    });
}

int quarterturn_max_pool_gradient(const int64_t* numbers, int64_t length, const float* grad, int64_t grad_size,
                                  const int32_t* taken, int64_t taken_size, float* x, int64_t x_size, int64_t threads,
                                  Parallel parallel) {
    return guarded([&] {
        const MaxPool layer(list(numbers, length));
        need_size(grad_size, product({layer.batch, layer.target[0], layer.target[1], layer.channels()}), "the gradient");
        need_size(taken_size, grad_size, "what was kept");
        need_size(x_size, product({layer.batch, layer.source[0], layer.source[1], layer.channels()}), "the input");
        layer.gradient(grad, taken, x, threads, parallel);
    });
}

int quarterturn_move(const int64_t* numbers, int64_t length, int64_t features_last, const float* x, int64_t x_size,
                     float* y, int64_t y_size, int64_t threads, Parallel parallel) {
    return guarded([&] {
        const Moves moves = read_moves(list(numbers, length), x_size, y_size);
        (features_last ? carry_out_pixels : carry_out_planes)(moves, x, y, threads, parallel);
    });
}

// A number that changes with the values, for caches of packed weights. Each step can be undone, so that a change of one
// value always shows; the shifts carry high bits down, or two changed signs would cancel.
int64_t quarterturn_checksum(const float* values, int64_t count) {
    constexpr int ROWS = 8;
    using Bits [[gnu::vector_size(LANES * sizeof(uint32_t))]] = uint32_t;
    Bits sum[ROWS];
    uint64_t all = 0;
    const auto mix = [](auto from, auto bits) {
        const auto mixed = (from ^ bits) * 0x9E3779B1u;
        return mixed ^ mixed >> 15;
    };
    for (int row = 0; row < ROWS; row++)
        for (int lane = 0; lane < LANES; lane++) sum[row][lane] = static_cast<uint32_t>(row * LANES + lane + 1);
    int64_t i = 0;
    for (; i + ROWS * LANES <= count; i += ROWS * LANES)
        UNROLL for (int row = 0; row < ROWS; row++) {
            Bits bits;
            std::memcpy(&bits, values + i + row * LANES, sizeof bits);
            sum[row] = mix(sum[row], bits);
        }
    const auto put = [&](uint32_t bits) { all = (all ^ bits) * 0x9E3779B97F4A7C15u, all ^= all >> 29; };
    for (; i < count; i++) {
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        put(bits);
    }
    for (int row = 0; row < ROWS; row++)
        for (int lane = 0; lane < LANES; lane++) put(sum[row][lane]);
    return static_cast<int64_t>(all);
}

// The best code that this processor runs: 3 AVX-512 with bf16, 2 AVX-512, 1 AVX2, 0 any.
int quarterturn_processor() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma"))
        return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}
}
