// Group convolutions of volumes: a library of its own, so that neither waits for the other to be compiled. The border is
// that of ../kernel.cpp: every list and every tensor is followed by its length or size, and a status is given back.
#include "gradient.h"

extern "C" {

// Compared by Python before this file is loaded; see compiler.py.
[[gnu::used]] extern const char quarterturn_built_from[] = "quarterturn kernel built from " QUARTERTURN_FINGERPRINT;

const char* quarterturn_reason() { return last_reason; }

// Forward, and with other numbers the gradient to the input. Weights come in the Fourier basis.
int quarterturn_volume_convolve(const int64_t* numbers, int64_t length, const float* x, int64_t x_size,
                                const float* weight, int64_t weight_size, const float* bias, int64_t bias_size, float* y,
                                int64_t y_size, int64_t threads, Parallel parallel) {
    return guarded([&] {
        need(length >= 0, "its length is negative");
        const volumes::Layer layer({numbers, static_cast<size_t>(length)});
        layer.check(x_size, y_size);
        layer.check_weight(weight_size);
        need_size(bias_size, layer.out, "the bias");
        layer.forward(x, weight, bias, y, volumes::shared_room(), threads, parallel);
    });
}

// The gradient to the weights, in the Fourier basis too.
int quarterturn_volume_weight_gradient(const int64_t* numbers, int64_t length, const float* x, int64_t x_size,
                                       const float* grad, int64_t grad_size, float* weight, int64_t weight_size,
                                       int64_t threads, Parallel parallel) {
    return guarded([&] {
        need(length >= 0, "its length is negative");
        const volumes::WeightGradient layer({numbers, static_cast<size_t>(length)});
        layer.check(x_size, grad_size);
        layer.check_weight(weight_size);
        layer.run(x, grad, weight, volumes::shared_room(), threads, parallel);
    });
}
}
