// Between the public layout, pixels of (feature, orientation) in float32 or bf16, and ours, (orientation, feature) in
// float32. What is stored in bf16 is rounded to nearest, ties to even, once.
#pragma once
#include "bf16.h"

INLINE float load1(const float* p) { return *p; }
INLINE void store1(float* p, float v) { *p = v; }
INLINE float load1(const Bf16* p) {
    const uint32_t bits = static_cast<uint32_t>(p->bits) << 16;
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}
INLINE void store1(Bf16* p, float v) {
    Bf16 same[4];
    store<4>(same, Vector<4>{v, v, v, v});
    *p = same[0];
}

// The same four numbers of one feature, or of two that are four apart, `step` from feature to feature.
template <class T> INLINE void load_features(const T* p, int64_t, Vector<4>& v) { v = load<4>(p); }
template <class T> INLINE void load_features(const T* p, int64_t step, Vector<8>& v) {
    v = __builtin_shufflevector(load<4>(p), load<4>(p + 4 * step), 0, 1, 2, 3, 4, 5, 6, 7);
}
template <class T> INLINE void store_features(T* p, int64_t, Vector<4> v) { store<4>(p, v); }
template <class T> INLINE void store_features(T* p, int64_t step, Vector<8> v) {
    store<4>(p, __builtin_shufflevector(v, v, 0, 1, 2, 3));
    store<4>(p + 4 * step, __builtin_shufflevector(v, v, 4, 5, 6, 7));
}

// Call f<number of features>(first feature) for blocks that turn in registers; gives the first feature that is left.
template <int G, class F>
INLINE int64_t blocks_of_features(int64_t features, F f) {
    int64_t c = 0;
    if constexpr (G % 4 == 0) {
        for (; c + 8 <= features; c += 8) f.template operator()<8>(c);
        for (; c + 4 <= features; c += 4) f.template operator()<4>(c);
    }
    return c;
}

// The features of each orientation t of a pixel, to where `to(t)` says.
template <int G, class T, class F>
INLINE void split_orientations(const T* pixel, int64_t features, F to) {
    int64_t c = blocks_of_features<G>(features, [&]<int W>(int64_t first) {
        UNROLL for (int t = 0; t < G; t += 4) {
            Vector<W> in[4], turned[4];
            UNROLL for (int i = 0; i < 4; i++) load_features(pixel + (first + i) * G + t, G, in[i]);
            transpose4(in, turned);
            UNROLL for (int i = 0; i < 4; i++) store<W>(to(t + i) + first, turned[i]);
        }
    });
    for (; c < features; c++)
        for (int t = 0; t < G; t++) to(t)[c] = load1(pixel + c * G + t);
}

// The way back, from where `from(t)` says.
template <int G, class T, class F>
INLINE void join_orientations(F from, int64_t features, T* pixel) {
    int64_t c = blocks_of_features<G>(features, [&]<int W>(int64_t first) {
        UNROLL for (int t = 0; t < G; t += 4) {
            Vector<W> rows[4], turned[4];
            UNROLL for (int i = 0; i < 4; i++) rows[i] = load<W>(from(t + i) + first);
            transpose4(rows, turned);
            UNROLL for (int i = 0; i < 4; i++) store_features(pixel + (first + i) * G + t, G, turned[i]);
        }
    });
    for (; c < features; c++)
        for (int t = 0; t < G; t++) store1(pixel + c * G + t, from(t)[c]);
}
