// The group convolution in the group-Fourier basis: forward (and, with other numbers, the gradient to the input) and
// the gradient to the weights; and planes from place to place. Plain C at the border, no torch. How it works:
// docs/decisions/0030.
#include "layer.h"
#include "pixels.h"

namespace {

template <class F>
int with_structure(const int64_t* numbers, F f) {
    try {
        switch (numbers[0]) {
            case 0: f(Layer<Order2>(numbers)); return 0;
            case 1: f(Layer<Klein>(numbers)); return 0;
            case 2: f(Layer<Cyclic4Exact>(numbers)); return 0;
            case 3: f(Layer<Cyclic4Gauss>(numbers)); return 0;
            case 4: f(Layer<Dihedral4>(numbers)); return 0;
        }
        return 1;
    } catch (...) {
        return 2;
    }
}

// The same with values of two types, of the maps in memory and of what is multiplied: 0 both are float32, 1 maps are
// bf16, 2 both are.
template <class F>
int with_types(const int64_t* numbers, int64_t precision, F f) {
    return with_structure(numbers, [&](const auto& layer) {
        switch (precision) {
            case 0: return f(layer, float{}, Floats{});
            case 1: return f(layer, Bf16{}, Floats{});
            default: return f(layer, Bf16{}, Pairs{});
        }
    });
}

}  // namespace

extern "C" {

int64_t quarterturn_packed_size(const int64_t* numbers, int64_t precision) {
    int64_t size = -1;
    with_types(numbers, precision, [&](const auto& layer, auto, auto products) {
        size = layer.template packed_size<decltype(products)>();
    });
    return size;
}

int quarterturn_pack(const int64_t* numbers, int64_t precision, const float* weight, int64_t out_stride,
                     int64_t in_stride, const int64_t* index, float* packed, int64_t threads, Parallel parallel) {
    return with_types(numbers, precision, [&](const auto& layer, auto, auto products) {
        layer.template pack<decltype(products)>(weight, out_stride, in_stride, index, packed, threads, parallel);
    });
}

int quarterturn_convolve(const int64_t* numbers, int64_t precision, const void* x, const float* packed,
                         const float* bias, void* y, int64_t threads, Parallel parallel) {
    return with_types(numbers, precision, [&](const auto& layer, auto one, auto products) {
        using T = decltype(one);
        layer.template forward<decltype(products)>(static_cast<const T*>(x), packed, bias, static_cast<T*>(y), threads,
                                                   parallel);
    });
}

// Its products are float32 in any case.
int quarterturn_weight_gradient(const int64_t* numbers, int64_t precision, const void* x, const void* grad,
                                int64_t out_stride, int64_t in_stride, const int64_t* index, float* weight, float* bias,
                                int64_t threads, Parallel parallel) {
    return with_types(numbers, precision, [&](const auto& layer, auto one, auto) {
        using T = decltype(one);
        layer.weight_gradient(static_cast<const T*>(x), static_cast<const T*>(grad), out_stride, in_stride, index, weight,
                              bias, threads, parallel);
    });
}

int quarterturn_move(const int64_t* numbers, int64_t features_last, const float* x, float* y, int64_t threads,
                     Parallel parallel) {
    try {
        (features_last ? carry_out_pixels : carry_out_planes)(numbers, x, y, threads, parallel);
        return 0;
    } catch (...) {
        return 2;
    }
}

// A number that changes with the values, for caches of packed weights.
int64_t quarterturn_fingerprint(const float* values, int64_t count) {
    uint64_t sum[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int64_t i = 0;
    auto mix = [&](int lane, int64_t at) {
        uint32_t bits;
        std::memcpy(&bits, values + at, sizeof bits);
        sum[lane] = (sum[lane] ^ bits) * 0x9E3779B97F4A7C15u;
        sum[lane] ^= sum[lane] >> 29;
    };
    for (; i + 8 <= count; i += 8)
        UNROLL for (int lane = 0; lane < 8; lane++) mix(lane, i + lane);
    for (; i < count; i++) mix(0, i);
    for (int lane = 1; lane < 8; lane++) sum[0] = (sum[0] ^ sum[lane]) * 0x9E3779B97F4A7C15u ^ sum[lane] >> 31;
    return static_cast<int64_t>(sum[0]);
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
