// Where a layer reads and writes, as numbers from Python (plan.py), and the cuts that make its work fit the caches.
// All cuts depend on sizes alone, never on the number of threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "border.h"
#include "vectors.h"

// One set of output positions (start + step * (i, j)) whose windows read the same offsets relative to
// (base + stride * (i, j)) of the source. A forward pass has one; a gradient through stride 2 has four.
struct Phase {
    int64_t start[2], step[2], count[2], base[2], stride[2];
    int64_t offsets;          // how many offsets of the window are read
    const int64_t* offset;    // for each: its number, then (read, row, column) for each orientation, see plan_numbers
    bool all;                 // whether every orientation reads at every offset
    int64_t low[2], high[2];  // the smallest and largest row and column offset that is read
    int64_t number(int64_t u, int order) const { return offset[u * (1 + 3 * order)]; }
    const int64_t* place(int64_t u, int order, int t) const { return offset + u * (1 + 3 * order) + 1 + 3 * t; }
};

struct Geometry {
    int64_t structure, batch, in, out, source[2], target[2], offsets;
    int64_t orientation[8];  // where the layout keeps element t of the structure
    std::vector<Phase> phases;
};

static inline Phase read_phase(Numbers& n, int order, const Geometry& g) {
    Phase p;
    for (int64_t& start : p.start) start = n.size("a phase starts outside the output");
    for (int64_t& step : p.step) step = n.size("a phase has no step", 1);
    for (int64_t& count : p.count) count = n.size("a phase has a negative count");
    for (int64_t& base : p.base) base = n.position("a phase reads too far away");
    for (int64_t& stride : p.stride) stride = n.size("a phase has no stride", 1);
    for (int axis = 0; axis < 2; axis++)
        need(!p.count[axis] || p.start[axis] + (p.count[axis] - 1) * p.step[axis] < g.target[axis],
             "a phase writes outside the output");
    p.offsets = n.between(0, g.offsets, "a phase has more offsets than the window");
    p.offset = n.take(p.offsets * (1 + 3 * order));
    p.all = true;
    bool any = false;
    for (int axis = 0; axis < 2; axis++) p.low[axis] = p.high[axis] = 0;
    Numbers rows({p.offset, static_cast<size_t>(p.offsets * (1 + 3 * order))});
    for (int64_t u = 0; u < p.offsets; u++) {
        rows.between(0, g.offsets - 1, "an offset has a number that the window does not have");
        for (int t = 0; t < order; t++) {
            const bool reads = rows.between(0, order, "an orientation is read that the group does not have");
            p.all = p.all && reads;
            for (int axis = 0; axis < 2; axis++) {
                const int64_t at = rows.position("an orientation reads too far away");
                if (!reads) continue;
                p.low[axis] = any ? std::min(p.low[axis], at) : at;
                p.high[axis] = any ? std::max(p.high[axis], at) : at;
            }
            any = any || reads;
        }
    }
    return p;
}

// The numbers in the order in which plan_numbers in border.py writes them. They must outlive what is given back.
static inline Geometry read_geometry(std::span<const int64_t> numbers, int order) {
    Numbers n(numbers);
    Geometry g;
    g.structure = n.position("the structure is unknown");
    g.batch = n.size("the batch is empty", 1);
    g.in = n.size("there are no input features", 1), g.out = n.size("there are no output features", 1);
    for (int64_t& size : g.source) size = n.size("the source has a negative size");
    for (int64_t& size : g.target) size = n.size("the target is empty", 1);
    g.offsets = n.size("the window has a negative size");
    bool taken[8] = {};
    for (int t = 0; t < order; t++) {
        g.orientation[t] = n.between(0, order - 1, "an orientation has a number that the group does not have");
        need(!taken[g.orientation[t]], "two orientations have the same number");
        taken[g.orientation[t]] = true;
    }
    const int64_t phases = n.size("the number of phases is negative");
    int64_t unwritten = g.target[0] * g.target[1];
    for (int64_t i = 0; i < phases; i++) {
        g.phases.push_back(read_phase(n, order, g));
        unwritten -= g.phases.back().count[0] * g.phases.back().count[1];
        need(unwritten >= 0, "its phases write a position twice");
    }
    n.end();
    need(unwritten == 0, "its phases leave a position unwritten");
    return g;
}

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A piece of the sum over offsets and input features: whole offsets, or a range of features of one.
struct Block {
    int64_t first_offset, end_offset, first_feature, end_feature;
    int64_t depth() const { return (end_offset - first_offset) * (end_feature - first_feature); }
};

static inline std::vector<Block> blocks_of_depth(int64_t offsets, int64_t features, int64_t depth) {
    std::vector<Block> blocks;
    if (features > depth) {
        const int64_t pieces = (features + depth - 1) / depth, size = round_up((features + pieces - 1) / pieces, LANES);
        for (int64_t u = 0; u < offsets; u++)
            for (int64_t c = 0; c < features; c += size) blocks.push_back({u, u + 1, c, std::min(features, c + size)});
    } else if (offsets) {
        const int64_t most = std::max<int64_t>(1, depth / features), pieces = (offsets + most - 1) / most;
        const int64_t size = (offsets + pieces - 1) / pieces;
        for (int64_t u = 0; u < offsets; u += size) blocks.push_back({u, std::min(offsets, u + size), 0, features});
    }
    return blocks;
}

// A piece of the output: some rows of a phase, of one example or of several whole ones.
struct Task {
    const Phase* phase;
    int64_t first_example, examples, first_row, rows;
    int64_t pixels() const { return examples * rows * phase->count[1]; }
    int64_t source_rows() const { return (rows - 1) * phase->stride[0] + phase->high[0] - phase->low[0] + 1; }
    int64_t source_columns() const {
        return (phase->count[1] - 1) * phase->stride[1] + phase->high[1] - phase->low[1] + 1;
    }
    int64_t source_pixels() const { return examples * source_rows() * source_columns(); }
};

// Tasks whose source, realigned and padded with zeros, takes about `room` floats.
static inline std::vector<Task> cut(const Geometry& g, int64_t floats_per_pixel, int64_t room, int64_t pixels) {
    std::vector<Task> tasks;
    for (const Phase& phase : g.phases) {
        if (!phase.count[0] || !phase.count[1]) continue;
        Task whole{&phase, 0, 1, 0, phase.count[0]};
        const int64_t row = whole.source_columns() * floats_per_pixel;
        if (whole.source_rows() * row <= room) {
            const int64_t fit = room / (whole.source_rows() * row);
            const int64_t wanted = (pixels + whole.pixels() - 1) / whole.pixels();
            const int64_t most = std::max<int64_t>(1, std::min(fit, wanted));
            const int64_t pieces = (g.batch + most - 1) / most;
            for (int64_t i = 0; i < pieces; i++) {
                Task task = whole;
                task.first_example = i * g.batch / pieces;
                task.examples = (i + 1) * g.batch / pieces - task.first_example;
                if (task.examples) tasks.push_back(task);
            }
        } else {
            const int64_t halo = phase.high[0] - phase.low[0] + 1;
            const int64_t most = std::max<int64_t>(1, (room / row - halo) / phase.stride[0] + 1);
            const int64_t pieces = (phase.count[0] + most - 1) / most;
            for (int64_t n = 0; n < g.batch; n++)
                for (int64_t i = 0; i < pieces; i++) {
                    const int64_t first = i * phase.count[0] / pieces, end = (i + 1) * phase.count[0] / pieces;
                    if (end > first) tasks.push_back({&phase, n, 1, first, end - first});
                }
        }
    }
    return tasks;
}
