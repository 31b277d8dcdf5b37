// Tokens with orientations as their fastest index, brought beside the examples, and back. Each orientation has an order
// of its tokens of its own, such as that of windows.
#pragma once
#include <span>
#include <vector>

#include "border.h"
#include "layout.h"
#include "moves.h"

struct Tokens {
    int64_t examples, tokens, features, order;
    std::span<const int64_t> places;  // for each orientation the place of each token; empty where all stay in order

    Tokens(int64_t size, int64_t tokens, int64_t features, int64_t order, std::span<const int64_t> places)
        : examples(0), tokens(tokens), features(features), order(order), places(places) {
        need(tokens > 0 && features > 0 && order > 0, "there are no tokens");
        const int64_t one = product({tokens, features, order});
        need(size >= 0 && size % one == 0, "the input", WRONG_SIZE);
        examples = size / one;
        if (places.empty()) return;
        need_size(static_cast<int64_t>(places.size()), product({tokens, order}), "the list of places");
        std::vector<int64_t> taken(tokens, -1);
        for (int64_t t = 0; t < order; t++)
            for (int64_t i = 0; i < tokens; i++) {
                const int64_t place = places[t * tokens + i];
                need(0 <= place && place < tokens && taken[place] != t, "its places are no order of the tokens");
                taken[place] = t;
            }
    }

    // Call f(where the token is with its orientations, where those of orientation t are beside the examples).
    template <class F> void each(int64_t threads, Parallel parallel, F f) const {
        const int64_t count = examples * tokens, step = tokens * features;
        const int64_t at_once = std::max<int64_t>(1, AT_ONCE / (features * order));
        in_parallel((count + at_once - 1) / at_once, threads, parallel, [&](int64_t task) {
            for (int64_t at = task * at_once; at < std::min(count, (task + 1) * at_once); at++) {
                const int64_t start = at / tokens * order * step, i = at % tokens;
                f(at * features * order, [&](int64_t t) {
                    return start + t * step + (places.empty() ? i : places[t * tokens + i]) * features;
                });
            }
        });
    }

    // With a number of orientations that is known to the compiler: f<2>(), f<4>() or f<8>(); else f<0>().
    template <class F> void with_order(F f) const {
        switch (order) {
            case 2: return f.template operator()<2>();
            case 4: return f.template operator()<4>();
            case 8: return f.template operator()<8>();
            default: return f.template operator()<0>();
        }
    }

    void split(const float* x, float* y, int64_t threads, Parallel parallel) const {
        with_order([&]<int G>() {
            each(threads, parallel, [&](int64_t at, auto beside) {
                if constexpr (G)
                    split_orientations<G>(x + at, features, [&](int t) { return y + beside(t); });
                else
                    for (int64_t t = 0; t < order; t++)
                        for (int64_t c = 0; c < features; c++) y[beside(t) + c] = x[at + c * order + t];
            });
        });
    }

    void join(const float* x, float* y, int64_t threads, Parallel parallel) const {
        with_order([&]<int G>() {
            each(threads, parallel, [&](int64_t at, auto beside) {
                if constexpr (G)
                    join_orientations<G>([&](int t) { return x + beside(t); }, features, y + at);
                else
                    for (int64_t t = 0; t < order; t++)
                        for (int64_t c = 0; c < features; c++) y[at + c * order + t] = x[beside(t) + c];
            });
        });
    }
};
