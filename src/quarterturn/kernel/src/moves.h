// Turned planes from place to place: slice, stack, roll, and their transposes, which add (ops.py). Every output plane
// is made in one pass: blocks of all planes that arrive there are turned and summed in registers, in the order of the
// moves, and written once.
#pragma once
#include <algorithm>

#include "layout.h"
#include "threads.h"

constexpr int64_t LINE = 16;          // floats in a line of the cache
constexpr int64_t LARGE = 2048;       // floats of a plane from which the next one is not fetched ahead
constexpr int64_t AT_ONCE = 1 << 16;  // floats of the output that a task writes, about

struct Source {
    int64_t pathway, orientation;
    int64_t first, row, column;  // the source of output position (i, j) is first + i * row + j * column
    bool again;                  // whether the plane was read for another target already
};

struct Target {
    int64_t pathway, orientation;
    bool along_rows;  // whether every source's rows are rows of the output
    std::vector<Source> sources;
};

struct Turned {  // a source at hand
    const float* from;
    int64_t row, column;
    const float* ahead;  // the plane to fetch while this one is worked through, or null
};

static inline Vector<4> reversed(Vector<4> v) { return __builtin_shufflevector(v, v, 3, 2, 1, 0); }
static inline Vector<8> reversed(Vector<8> v) { return __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0); }

// Columns of floats, `step` apart, as rows: take(row number, row), for blocks of 4 x 4 and of 8 x 8.
template <class F>
static inline void load_turned(Vector<4>, const float* p, int64_t step, F take) {
    const Vector<4> in[4] = {load<4>(p), load<4>(p + step), load<4>(p + 2 * step), load<4>(p + 3 * step)};
    Vector<4> rows[4];
    transpose4(in, rows);
    UNROLL for (int a = 0; a < 4; a++) take(a, rows[a]);
}

template <class F>
static inline void load_turned(Vector<8>, const float* p, int64_t step, F take) {
    UNROLL for (int half = 0; half < 8; half += 4) {
        Vector<8> in[4], rows[4];
        UNROLL for (int b = 0; b < 4; b++) load_features(p + b * step + half, step, in[b]);
        transpose4(in, rows);
        UNROLL for (int a = 0; a < 4; a++) take(half + a, rows[a]);
    }
}

// Add the block of SIZE x SIZE outputs at (i, j) that a source gives to the sum, or begin the sum with it.
template <int SIZE, bool ADD>
static inline void take_block(const Turned& t, int64_t i, int64_t j, Vector<SIZE> (&sum)[SIZE]) {
    const float* from = t.from + i * t.row + j * t.column;
    auto take = [&](int a, Vector<SIZE> v) { sum[a] = ADD ? sum[a] + v : v; };  // a copy keeps every bit
    if (t.column == 1) {
        UNROLL for (int a = 0; a < SIZE; a++) take(a, load<SIZE>(from + a * t.row));
    } else if (t.column == -1) {
        UNROLL for (int a = 0; a < SIZE; a++) take(a, reversed(load<SIZE>(from + a * t.row - (SIZE - 1))));
    } else if (t.row == 1) {
        load_turned(Vector<SIZE>{}, from, t.column, take);
    } else {
        auto upward = [&](int a, Vector<SIZE> v) { take(SIZE - 1 - a, v); };
        load_turned(Vector<SIZE>{}, from - (SIZE - 1), t.column, upward);
    }
}

static inline void fetch_ahead(const Turned* sources, size_t number, int64_t begin, int64_t end) {
    for (size_t s = 0; s < number; s++)
        if (sources[s].ahead)
            for (int64_t k = begin; k < end; k += LINE) __builtin_prefetch(sources[s].ahead + k, 0, 2);
}

// In blocks of SIZE x SIZE; the last ones of each axis overlap those before, and write the same numbers again.
template <int SIZE>
static void write_plane(const Turned* sources, size_t number, float* to, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += SIZE) {
        const int64_t i = std::min(r, rows - SIZE);
        fetch_ahead(sources, number, r * columns, std::min(r + SIZE, rows) * columns);
        for (int64_t c = 0; c < columns; c += SIZE) {
            const int64_t j = std::min(c, columns - SIZE);
            Vector<SIZE> sum[SIZE];
            take_block<SIZE, false>(sources[0], i, j, sum);
            for (size_t s = 1; s < number; s++) take_block<SIZE, true>(sources[s], i, j, sum);
            UNROLL for (int a = 0; a < SIZE; a++) store<SIZE>(to + (i + a) * columns + j, sum[a]);
        }
    }
}

// The same where no source exchanges rows and columns: along the rows.
static void write_rows(const Turned* sources, size_t number, float* to, int64_t rows, int64_t columns) {
    auto take = [](const Turned& t, int64_t i, int64_t j) {
        const float* from = t.from + i * t.row + j * t.column;
        return t.column == 1 ? load<8>(from) : reversed(load<8>(from - 7));
    };
    for (int64_t i = 0; i < rows; i++, to += columns) {
        fetch_ahead(sources, number, i * columns, (i + 1) * columns);
        for (int64_t c = 0; c < columns; c += 8) {
            const int64_t j = std::min(c, columns - 8);
            Vector<8> sum = take(sources[0], i, j);
            for (size_t s = 1; s < number; s++) sum += take(sources[s], i, j);
            store<8>(to + j, sum);
        }
    }
}

static void write_small_plane(const Turned* sources, size_t number, float* to, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float sum = sources[0].from[i * sources[0].row + j * sources[0].column];
            for (size_t s = 1; s < number; s++) sum += sources[s].from[i * sources[s].row + j * sources[s].column];
            to[i * columns + j] = sum;
        }
}

// A turned plane is read across its rows, which no processor foresees. So large planes are run through once beforehand,
// line by line, and of small ones the next is asked for while one is worked through.
static inline void run_through(const float* plane, int64_t size) {
    for (int64_t k = 0; k < size; k += LINE) static_cast<void>(*static_cast<const volatile float*>(plane + k));
}

// Numbers: examples and features of one place, pathways and orientations of input and output, rows and columns of the
// input and of the output, how many moves, then for each (to pathway, to orientation, from pathway, from orientation,
// the element's two signed axes).
static inline std::vector<Target> read_moves(const int64_t* n) {
    const int64_t size[2] = {n[6], n[7]}, step[2] = {n[7], 1};
    std::vector<Target> targets;
    std::vector<bool> read(n[2] * n[3], false);
    const int64_t* next = n + 11;
    for (int64_t i = 0; i < n[10]; i++, next += 6) {
        const int64_t which = next[2] * n[3] + next[3];
        Source source{next[2], next[3], 0, 0, 0, read[which]};
        read[which] = true;
        for (int axis = 0; axis < 2; axis++) {
            const int64_t a = next[4 + axis], old = (a < 0 ? -a : a) - 1;
            (axis ? source.column : source.row) = a < 0 ? -step[old] : step[old];
            source.first += a < 0 ? (size[old] - 1) * step[old] : 0;
        }
        auto same = std::find_if(targets.begin(), targets.end(), [&](const Target& t) {
            return t.pathway == next[0] && t.orientation == next[1];
        });
        if (same == targets.end()) same = targets.insert(targets.end(), {next[0], next[1], true, {}});
        same->along_rows = same->along_rows && (source.column == 1 || source.column == -1);
        same->sources.push_back(source);
    }
    return targets;
}

static inline void carry_out_planes(const int64_t* n, const float* x, float* y, int64_t threads, Parallel parallel) {
    const int64_t count = n[0] * n[1], rows = n[8], columns = n[9], size = rows * columns;
    const std::vector<Target> targets = read_moves(n);
    const int64_t side = std::min(rows, columns), few = size * static_cast<int64_t>(targets.size());
    const bool by_eight = side % 8 == 0 || side > 16;  // else the overlap costs more than the larger blocks save
    const auto write_turned = by_eight ? write_plane<8> : side >= 4 ? write_plane<4> : write_small_plane;
    const int64_t at_once = std::max<int64_t>(1, AT_ONCE / std::max<int64_t>(1, few));
    in_parallel((count + at_once - 1) / at_once, threads, parallel, [&](int64_t task) {
        std::vector<Turned> turned;
        for (int64_t i = task * at_once; i < std::min(count, (task + 1) * at_once); i++)
            for (const Target& target : targets) {
                turned.clear();
                for (const Source& s : target.sources) {
                    const float* from = x + ((s.pathway * count + i) * n[3] + s.orientation) * size;
                    const bool ahead = !s.again && size < LARGE && i + 1 < count;
                    if (!s.again && size >= LARGE) run_through(from, size);
                    turned.push_back({from + s.first, s.row, s.column, ahead ? from + n[3] * size : nullptr});
                }
                const auto write = target.along_rows && columns >= 8 ? write_rows : write_turned;
                float* to = y + ((target.pathway * count + i) * n[5] + target.orientation) * size;
                write(turned.data(), turned.size(), to, rows, columns);
            }
    });
}
