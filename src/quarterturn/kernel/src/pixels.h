// The moves of moves.h for maps with features last in memory, and for dense features, which are maps of one pixel: rows
// of features go from pixel to pixel, the features of an orientation a step apart.
#pragma once
#include "moves.h"

struct Pixels {  // a source at hand: features of one orientation, from pixel to pixel
    const float* from;
    int64_t next;
};

// One orientation of a row of pixels. Sums are in the order of the moves, as for planes. STEP is the input's, or 0
// where only the run knows it.
template <int64_t STEP>
static void write_orientation(const Pixels* sources, size_t number, int64_t from_step, float* to, int64_t to_step,
                              int64_t features, int64_t columns) {
    const int64_t step = STEP ? STEP : from_step;
    for (int64_t j = 0; j < columns; j++, to += features * to_step) {
        auto from = [&](size_t s, int64_t c) { return sources[s].from + j * sources[s].next + c * step; };
        int64_t c = blocks_of_features<4>(features, [&]<int W>(int64_t first) {
        auto take = [&](size_t s) {
                const float* p = from(s, first);
                Vector<W> v;
    UNROLL for (int k = 0; k < W; k++) v[k] = p[k * step];
                return v;
            };
            Vector<W> sum = take(0);
            for (size_t s = 1; s < number; s++) sum += take(s);
            UNROLL for (int k = 0; k < W; k++) to[(first + k) * to_step] = sum[k];
        });
        for (; c < features; c++) {
            float sum = *from(0, c);
            for (size_t s = 1; s < number; s++) sum += *from(s, c);
            to[c * to_step] = sum;
        }
    }
}

// All orientations of a row of pixels, where each has one source of one orientation: four by four.
static void write_pixels(const Pixels* sources, int64_t orientations, float* to, int64_t features, int64_t columns) {
    for (int64_t j = 0; j < columns; j++, to += features * orientations) {
        auto from = [&](int64_t t) { return sources[t].from + j * sources[t].next; };
        int64_t c = 0;
        for (; orientations % 4 == 0 && c + 4 <= features; c += 4)
            for (int64_t t = 0; t < orientations; t += 4) {
                Vector<4> rows[4], turned[4];
                UNROLL for (int k = 0; k < 4; k++) rows[k] = load<4>(from(t + k) + c);
                transpose4(rows, turned);
                UNROLL for (int k = 0; k < 4; k++) store<4>(to + (c + k) * orientations + t, turned[k]);
            }
        for (; c < features; c++)
            for (int64_t t = 0; t < orientations; t++) to[c * orientations + t] = from(t)[c];
    }
}

static inline void carry_out_pixels(const Moves& m, const float* x, float* y, int64_t threads, Parallel parallel) {
    const int64_t examples = m.examples, features = m.features, from_step = m.in[1], to_step = m.out[1];
    const int64_t rows = m.target[0], columns = m.target[1], size = rows * columns, count = examples * rows;
    std::vector<Target> targets = m.targets;
    auto place = [&](const Target& t) { return t.pathway * to_step + t.orientation; };
    std::sort(targets.begin(), targets.end(), [&](const Target& a, const Target& b) { return place(a) < place(b); });
    bool single = from_step == 1 && to_step > 1;
    for (const Target& target : targets) single = single && target.sources.size() == 1;
    const auto write = from_step == 1   ? write_orientation<1>
                       : from_step == 4 ? write_orientation<4>
                       : from_step == 8 ? write_orientation<8>
                                        : write_orientation<0>;
    const int64_t few = columns * features * static_cast<int64_t>(targets.size());
    const int64_t at_once = std::max<int64_t>(1, AT_ONCE / std::max<int64_t>(1, few));
    in_parallel((count + at_once - 1) / at_once, threads, parallel, [&](int64_t task) {
        std::vector<Pixels> sources;
        for (int64_t at = task * at_once; at < std::min(count, (task + 1) * at_once); at++) {
            const int64_t example = at / rows, i = at % rows;
            sources.clear();
            for (const Target& target : targets) {
                for (const Source& s : target.sources) {
                    const int64_t pixel = (s.pathway * examples + example) * size + s.first + i * s.row;
                    sources.push_back({x + pixel * features * from_step + s.orientation,
                                       s.column * features * from_step});
                }
                if (single && target.orientation + 1 < to_step) continue;  // until all orientations are at hand
                float* to = y + ((target.pathway * examples + example) * size + i * columns) * features * to_step;
                if (single)
                    write_pixels(sources.data(), to_step, to, features, columns);
                else
                    write(sources.data(), sources.size(), from_step, to + target.orientation, to_step, features, columns);
                sources.clear();
            }
        }
    });
}
