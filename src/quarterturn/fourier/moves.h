// Turned planes from place to place: slice, stack, roll, and their transposes, which add (ops.py).
#pragma once
#include "threads.h"
#include "vectors.h"

struct Move {
    int64_t to, from;            // which plane of a feature: pathway * orientations + orientation
    int64_t first, row, column;  // the source of output position (i, j) is first + i * row + j * column
    bool add;
};

template <bool ADD, int L>
static inline void put(float* to, Vector<L> v) {
    store<L>(to, ADD ? load<L>(to) + v : v);
}

template <bool ADD>
static inline void put(float* to, float v) {
    *to = ADD ? *to + v : v;  // a copy keeps every bit
}

template <bool ADD>
static void move_plane(const float* from, const Move& m, float* to, int64_t rows, int64_t columns) {
    from += m.first;
    if (m.column == 1 || m.column == -1) {
        for (int64_t i = 0; i < rows; i++, from += m.row, to += columns) {
            int64_t j = 0;
            if (m.column == 1)
                for (; j + 8 <= columns; j += 8) put<ADD, 8>(to + j, load<8>(from + j));
            else
                for (; j + 8 <= columns; j += 8) {
                    const Vector<8> v = load<8>(from - j - 7);
                    put<ADD, 8>(to + j, __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0));
                }
            for (; j < columns; j++) put<ADD>(to + j, from[j * m.column]);
        }
        return;
    }
    int64_t i = 0;  // the row step is 1 or -1: blocks of 4 x 4 turn in registers
    for (; i + 4 <= rows; i += 4) {
        int64_t j = 0;
        for (; j + 4 <= columns; j += 4) {
            Vector<4> in[4], out[4];
            const float* corner = from + i * m.row + j * m.column - (m.row < 0 ? 3 : 0);
            UNROLL for (int b = 0; b < 4; b++) in[b] = load<4>(corner + b * m.column);
            transpose4(in, out);
            UNROLL for (int a = 0; a < 4; a++) put<ADD, 4>(to + (i + a) * columns + j, out[m.row < 0 ? 3 - a : a]);
        }
        for (; j < columns; j++)
            for (int64_t a = i; a < i + 4; a++)
                put<ADD>(to + a * columns + j, from[a * m.row + j * m.column]);
    }
    for (; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            put<ADD>(to + i * columns + j, from[i * m.row + j * m.column]);
}

// Numbers: examples and features of one place, pathways and orientations of input and output, rows and columns of the
// input and of the output, how many moves, then for each (to pathway, to orientation, from pathway, from orientation,
// the element's two signed axes).
static inline void carry_out(const int64_t* n, const float* x, float* y, int64_t threads, Parallel parallel) {
    const int64_t examples = n[0], features = n[1], orientations_in = n[3], orientations_out = n[5];
    const int64_t size_in[2] = {n[6], n[7]}, size_out[2] = {n[8], n[9]}, step[2] = {n[7], 1};
    std::vector<Move> moves(n[10]);
    std::vector<bool> written(n[4] * n[5], false);
    const int64_t* next = n + 11;
    for (Move& m : moves) {
        m.to = next[0] * orientations_out + next[1], m.from = next[2] * orientations_in + next[3];
        int64_t steps[2];
        m.first = 0;
        for (int axis = 0; axis < 2; axis++) {
            const int64_t a = next[4 + axis], old = (a < 0 ? -a : a) - 1;
            steps[axis] = a < 0 ? -step[old] : step[old];
            m.first += a < 0 ? (size_in[old] - 1) * step[old] : 0;
        }
        m.row = steps[0], m.column = steps[1];
        m.add = written[m.to];
        written[m.to] = true;
        next += 6;
    }
    const int64_t plane_in = size_in[0] * size_in[1], plane_out = size_out[0] * size_out[1];
    auto place = [&](int64_t which, int64_t orientations, int64_t example, int64_t feature) {
        const int64_t pathway = which / orientations, orientation = which % orientations;
        return ((pathway * examples + example) * features + feature) * orientations + orientation;
    };
    in_parallel(examples * features, threads, parallel, [&](int64_t i) {
        for (const Move& m : moves) {
            const float* from = x + place(m.from, orientations_in, i / features, i % features) * plane_in;
            float* to = y + place(m.to, orientations_out, i / features, i % features) * plane_out;
            if (m.add)
                move_plane<true>(from, m, to, size_out[0], size_out[1]);
            else
                move_plane<false>(from, m, to, size_out[0], size_out[1]);
        }
    });
}
