// Turned planes from place to place: slice, stack, roll, and their transposes, which add (ops.py). Every output plane
// is made in one pass: blocks of all planes that arrive there are turned and summed in registers, in the order of the
// moves, and written once.
#pragma once
#include <algorithm>

#include "border.h"
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

struct Moves {
    int64_t examples, features;  // of one place
    int64_t in[2], out[2];       // pathways and orientations
    int64_t source[2], target[2];  // rows and columns
    std::vector<Target> targets;
};

static inline Source read_source(Numbers& n, const Moves& m) {
    Source source{};
    source.pathway = n.between(0, m.in[0] - 1, "a move comes from a pathway that the input does not have");
    source.orientation = n.between(0, m.in[1] - 1, "a move comes from an orientation that the input does not have");
    const int64_t step[2] = {m.source[1], 1};
    int64_t axes = 0;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t a = n.between(-2, 2, "an element has an axis that images do not have");
        need(a != 0, "an element has an axis that images do not have");
        const int64_t old = (a < 0 ? -a : a) - 1;
        axes += old;
        (axis ? source.column : source.row) = a < 0 ? -step[old] : step[old];
        source.first += a < 0 ? (m.source[old] - 1) * step[old] : 0;
        need(m.target[axis] == m.source[old], "an element makes images of another size than the output");
    }
    need(axes == 1, "an element has the same axis twice");
    return source;
}

// The numbers in the order in which move_numbers in border.py writes them, for tensors of so many elements.
static inline Moves read_moves(std::span<const int64_t> numbers, int64_t x_size, int64_t y_size) {
    Numbers n(numbers);
    Moves m;
    m.examples = n.size("there are no examples", 1), m.features = n.size("there are no features", 1);
    for (int64_t* places : {m.in, m.out})
        for (int i = 0; i < 2; i++) places[i] = n.size("there are no places", 1);
    for (int64_t* size : {m.source, m.target})
        for (int axis = 0; axis < 2; axis++) size[axis] = n.size("there are no pixels", 1);
    const int64_t all = product({m.examples, m.features});
    need_size(x_size, product({all, m.in[0], m.in[1], m.source[0], m.source[1]}), "the input");
    need_size(y_size, product({all, m.out[0], m.out[1], m.target[0], m.target[1]}), "the output");
    std::vector<bool> read(m.in[0] * m.in[1], false);
    const int64_t moves = n.size("the number of moves is negative");
    for (int64_t i = 0; i < moves; i++) {
        const int64_t pathway = n.between(0, m.out[0] - 1, "a move goes to a pathway that the output does not have");
        const int64_t orientation = n.between(0, m.out[1] - 1, "a move goes to an orientation that the output does not have");
        Source source = read_source(n, m);
        const int64_t which = source.pathway * m.in[1] + source.orientation;
        source.again = read[which];
        read[which] = true;
        auto same = std::find_if(m.targets.begin(), m.targets.end(), [&](const Target& t) {
            return t.pathway == pathway && t.orientation == orientation;
        });
        if (same == m.targets.end()) same = m.targets.insert(m.targets.end(), {pathway, orientation, true, {}});
        same->along_rows = same->along_rows && (source.column == 1 || source.column == -1);
        same->sources.push_back(source);
    }
    n.end();
    need(static_cast<int64_t>(m.targets.size()) == m.out[0] * m.out[1], "no move goes to some place of the output");
    return m;
}

static inline void carry_out_planes(const Moves& m, const float* x, float* y, int64_t threads, Parallel parallel) {
    const int64_t count = m.examples * m.features, rows = m.target[0], columns = m.target[1], size = rows * columns;
    const int64_t side = std::min(rows, columns), few = size * static_cast<int64_t>(m.targets.size());
    const bool by_eight = side % 8 == 0 || side > 16;  // else the overlap costs more than the larger blocks save
    const auto write_turned = by_eight ? write_plane<8> : side >= 4 ? write_plane<4> : write_small_plane;
    const int64_t at_once = std::max<int64_t>(1, AT_ONCE / std::max<int64_t>(1, few));
    in_parallel((count + at_once - 1) / at_once, threads, parallel, [&](int64_t task) {
        std::vector<Turned> turned;
        for (int64_t i = task * at_once; i < std::min(count, (task + 1) * at_once); i++)
            for (const Target& target : m.targets) {
                turned.clear();
                for (const Source& s : target.sources) {
                    const float* from = x + ((s.pathway * count + i) * m.in[1] + s.orientation) * size;
                    const bool ahead = !s.again && size < LARGE && i + 1 < count;
                    if (!s.again && size >= LARGE) run_through(from, size);
                    turned.push_back({from + s.first, s.row, s.column, ahead ? from + m.in[1] * size : nullptr});
                }
                const auto write = target.along_rows && columns >= 8 ? write_rows : write_turned;
                float* to = y + ((target.pathway * count + i) * m.out[1] + target.orientation) * size;
                write(turned.data(), turned.size(), to, rows, columns);
            }
    });
}
