// Group convolutions of volumes, for any group: the transform is a list of sums that Python hands over
// (fourier/transforms.py says why their order gives turned bits for turned inputs). Vectors are neighbouring positions.
#pragma once
#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "../border.h"
#include "../threads.h"
#include "../vectors.h"

namespace volumes {

#if defined(__AVX512F__) || defined(QUARTERTURN_WIDE)
constexpr int COLUMNS[5] = {0, 12, 12, 8, 6};      // of a product, for 1 to 4 vectors of positions: 24 sums in registers
constexpr int WEIGHT_ROWS = 4, WEIGHT_COLUMNS = 6;  // of a product for the gradient to the weights
#elif defined(__AVX2__)
constexpr int COLUMNS[5] = {0, 6, 6, 4, 3};
constexpr int WEIGHT_ROWS = 3, WEIGHT_COLUMNS = 4;
#else  // few, so that a compiler without such vectors is done soon
constexpr int COLUMNS[5] = {0, 3, 2, 1, 1};
constexpr int WEIGHT_ROWS = 2, WEIGHT_COLUMNS = 2;
#endif
constexpr int64_t MOST = 12, TILE = MOST * LANES;              // vectors and positions at once, forward
constexpr int64_t GRADIENT_MOST = 16, GRADIENT_TILE = GRADIENT_MOST * LANES;
constexpr int64_t PANEL_ROOM = 64 * 1024;                     // floats of panels: part of a second-level cache
constexpr int64_t GRADIENT_ROOM = 48 * 1024;
using V = Vector<LANES>;
#define ALWAYS __attribute__((always_inline))

// The sum of three that does not depend on their order, and changes its sign with theirs. Numbers are exchanged, none is
// lost: not a number stays one.
INLINE V sum3(V a, V b, V c) {
    const V low = a < b ? a : b, high = b > a ? b : a;
    const V least = low < c ? low : c, other = c > low ? c : low;
    const V middle = other < high ? other : high, most = high > other ? high : other;
    return (most + least) + middle;
}

}  // namespace volumes

#include "programs.h"

namespace volumes {

// Call f(first, count) for pieces of `count`, as equal as can be, of at most `most` each.
template <class F>
INLINE void in_equal_pieces(int64_t count, int64_t most, F f) {
    const int64_t pieces = (count + most - 1) / most;
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t first = i * count / pieces;
        f(first, (i + 1) * count / pieces - first);
    }
}

// --- programs --------------------------------------------------------------------------------------------------------

enum Kind { COPY, NEGATE, ADD, SUBTRACT, NEGATE_SUM, BUTTERFLY, THREE };  // THREE + signs of the three as bits

struct Operation {
    int kind, to, also, a, b, c;
};

// For 1 to 4 vectors of positions; `at` says where each place is.
using Compiled = void (*)(float* const*);
template <class P, int N>
[[gnu::noinline]] static void run_compiled(float* const* at) {
    for (int64_t k = 0; k < N * LANES; k += LANES) P::run(at, k);
}

struct Program {
    int64_t inputs, outputs, places;
    std::vector<Operation> operations;
    Compiled compiled[5] = {};  // where the same sums are in programs.h

    Program(Numbers& list, int64_t from, int64_t into) : inputs(from), outputs(into) {
        std::vector<int64_t> seen;
        const auto next = [&](int64_t low, int64_t high, const char* reason) {
            return static_cast<int>(seen.emplace_back(list.between(low, high, reason)));
        };
        places = next(from + into, 1 << 14, "a program has a wrong number of places");
        const int64_t steps = next(0, 1 << 14, "a program has a wrong length");
        for (int64_t i = 0; i < steps; i++) {
            const int to = next(from, places - 1, "a sum goes to a wrong place");
            const int terms = next(1, 3, "a sum has one to three terms");
            int at[3] = {}, minus[3] = {};
            for (int k = 0; k < terms; k++) {
                at[k] = next(0, places - 1, "a sum has a wrong term");
                minus[k] = next(-1, 1, "a sign is 1 or -1") < 0;
            }
            add(to, terms, at, minus);
        }
#if defined(__AVX2__) || defined(QUARTERTURN_WIDE)
        each_program([&]<class P>() {
            if (!std::equal(seen.begin(), seen.end(), std::begin(P::NUMBERS), std::end(P::NUMBERS))) return;
            compiled[1] = run_compiled<P, 1>, compiled[2] = run_compiled<P, 2>;
            compiled[3] = run_compiled<P, 3>, compiled[4] = run_compiled<P, 4>;
        });
#endif
    }

    void add(int to, int terms, const int (&at)[3], const int (&minus)[3]) {
        Operation now{COPY, to, 0, at[0], at[1], at[2]};
        if (terms == 1) now.kind = minus[0] ? NEGATE : COPY;
        if (terms == 3) now.kind = THREE + minus[0] + 2 * minus[1] + 4 * minus[2];
        if (terms == 2) {
            now.kind = minus[0] && minus[1] ? NEGATE_SUM : minus[0] || minus[1] ? SUBTRACT : ADD;
            if (minus[0] && !minus[1]) std::swap(now.a, now.b);
            if (!operations.empty() && joins(operations.back(), now)) {
                const Operation before = operations.back();
                const bool sum_first = before.kind == ADD;
                const Operation& difference = sum_first ? now : before;
                const int sum = sum_first ? before.to : now.to;
                operations.back() = {BUTTERFLY, sum, difference.to, difference.a, difference.b, 0};
                return;
            }
        }
        operations.push_back(now);
    }

    static bool joins(const Operation& one, const Operation& two) {
        const bool same = (one.a == two.a && one.b == two.b) || (one.a == two.b && one.b == two.a);
        const bool apart = one.to != two.a && one.to != two.b;
        return same && apart && ((one.kind == ADD && two.kind == SUBTRACT) || (one.kind == SUBTRACT && two.kind == ADD));
    }

    // `at` says where each place is; N vectors of positions.
    template <int N>
    void run(float* const* at) const {
        if (compiled[N]) return compiled[N](at);
        for (const Operation& now : operations) {
            float* to = at[now.to];
            const float *a = at[now.a], *b = at[now.b], *c = at[now.c];
            const auto each = [&](auto f) ALWAYS {
                UNROLL for (int64_t i = 0; i < N * LANES; i += LANES) store<LANES>(to + i, f(i));
            };
            const auto three = [&]<int SIGNS>() ALWAYS {
                each([&](int64_t i) ALWAYS {
                    const V x = load<LANES>(a + i), y = load<LANES>(b + i), z = load<LANES>(c + i);
                    return sum3(SIGNS & 1 ? -x : x, SIGNS & 2 ? -y : y, SIGNS & 4 ? -z : z);
                });
            };
            switch (now.kind) {
                case COPY: each([&](int64_t i) ALWAYS { return load<LANES>(a + i); }); break;
                case NEGATE: each([&](int64_t i) ALWAYS { return -load<LANES>(a + i); }); break;
                case ADD: each([&](int64_t i) ALWAYS { return load<LANES>(a + i) + load<LANES>(b + i); }); break;
                case SUBTRACT: each([&](int64_t i) ALWAYS { return load<LANES>(a + i) - load<LANES>(b + i); }); break;
                case NEGATE_SUM: each([&](int64_t i) ALWAYS { return -(load<LANES>(a + i) + load<LANES>(b + i)); }); break;
                case BUTTERFLY: {
                    float* also = at[now.also];
                    UNROLL for (int64_t i = 0; i < N * LANES; i += LANES) {
                        const V x = load<LANES>(a + i), y = load<LANES>(b + i);
                        store<LANES>(to + i, x + y);
                        store<LANES>(also + i, x - y);
                    }
                    break;
                }
                case THREE: three.template operator()<0>(); break;
                case THREE + 1: three.template operator()<1>(); break;
                case THREE + 2: three.template operator()<2>(); break;
                case THREE + 3: three.template operator()<3>(); break;
                case THREE + 4: three.template operator()<4>(); break;
                case THREE + 5: three.template operator()<5>(); break;
                case THREE + 6: three.template operator()<6>(); break;
                default: three.template operator()<7>(); break;
            }
        }
    }
};

// --- products --------------------------------------------------------------------------------------------------------

// y[column][position] += sum over parts and k of b[part][k][column] * a[part][k][position].
template <int M, int N>
[[gnu::noinline]] static void multiply(const float* a, int64_t a_part, int64_t a_pitch, const float* b, int64_t b_part,
                                       int64_t b_pitch, int64_t parts, int64_t depth, float* y, bool first) {
    V sum[N][M];
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int m = 0; m < M; m++) sum[n][m] = first ? V{} : load<LANES>(y + n * TILE + m * LANES);
    for (int64_t p = 0; p < parts; p++) {
        const float *x = a + p * a_part, *w = b + p * b_part;
        for (int64_t k = 0; k < depth; k++, x += a_pitch, w += b_pitch) {
            V v[M];
            UNROLL for (int m = 0; m < M; m++) v[m] = load<LANES>(x + m * LANES);
            UNROLL for (int n = 0; n < N; n++)
                UNROLL for (int m = 0; m < M; m++) sum[n][m] += v[m] * w[n];
        }
    }
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int m = 0; m < M; m++) store<LANES>(y + n * TILE + m * LANES, sum[n][m]);
}

// sum[k][n] += sum over rows and positions of a[row][k] * g[row][n], vectors kept apart.
template <int K, int N>
[[gnu::noinline]] static void correlate(const float* a, int64_t a_row, int64_t a_pitch, const float* g, int64_t g_row,
                                        int64_t g_pitch, int64_t rows, int64_t vectors, float* out, int64_t out_pitch) {
    V sum[K][N];
    UNROLL for (int k = 0; k < K; k++)
        UNROLL for (int n = 0; n < N; n++) sum[k][n] = load<LANES>(out + k * out_pitch + n * LANES);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < vectors * LANES; i += LANES) {
            V x[K];
            UNROLL for (int k = 0; k < K; k++) x[k] = load<LANES>(a + r * a_row + k * a_pitch + i);
            UNROLL for (int n = 0; n < N; n++) {
                const V v = load<LANES>(g + r * g_row + n * g_pitch + i);
                UNROLL for (int k = 0; k < K; k++) sum[k][n] += x[k] * v;
            }
        }
    UNROLL for (int k = 0; k < K; k++)
        UNROLL for (int n = 0; n < N; n++) store<LANES>(out + k * out_pitch + n * LANES, sum[k][n]);
}

// --- a layer ---------------------------------------------------------------------------------------------------------

struct Job {
    int64_t rows, parts, columns, part, product, weight;  // the last three: how many are before it
};

// Along an axis: positions that are read, from `low` on; rows share the zeros between them.
struct Axis {
    int64_t source, target, low, span, left, length, pitch;

    Axis(int64_t source, int64_t target, int64_t low, int64_t high, bool share) : source(source), target(target), low(low) {
        span = target + high - low;
        const int64_t first = std::max<int64_t>(0, low), end = std::min(source, target + high);
        left = std::clamp<int64_t>(-low, 0, span);
        length = std::max<int64_t>(0, end - first);
        const int64_t right = span - left - length;
        pitch = share && length > 0 ? std::max(target, span - std::min(left, right)) : span;
    }
    int64_t first() const { return std::max<int64_t>(0, low); }  // position of the source that is kept first
};

// Where a tile's positions go: runs of a row each.
struct Run {
    int64_t from, to, count;
};

struct Layer {
    int64_t order, batch, in, out, offsets, parts = 0, products = 0, weights = 0;
    std::vector<Job> jobs;
    std::vector<int64_t> gather, shift;
    std::vector<Axis> axes;  // planes, rows, columns
    std::vector<Program> programs;
    int64_t channel = 0;  // floats of a padded channel

    explicit Layer(std::span<const int64_t> numbers) {
        Numbers list(numbers);
        order = list.between(1, 1 << 10, "a group has a wrong order");
        batch = list.size("the batch is negative");
        in = list.size("there are no features", 1);
        out = list.size("there are no output features", 1);
        int64_t source[3], target[3];
        for (int64_t& size : source) size = list.size("a size is negative");
        for (int64_t& size : target) size = list.size("an output size is not positive", 1);
        offsets = list.size("a window has no offsets", 1);
        const int64_t number = list.between(1, 1 << 10, "there are no irreps");
        for (int64_t j = 0; j < number; j++) {
            Job job{};
            for (int64_t* size : {&job.rows, &job.parts, &job.columns}) *size = list.between(1, 16, "an irrep has a wrong size");
            job.part = parts, job.product = products, job.weight = weights;
            parts += job.rows * job.parts, products += job.rows * job.columns, weights += job.parts * job.columns;
            jobs.push_back(job);
        }
        for (int64_t i = 0; i < products; i++) {
            gather.push_back(list.between(0, parts - 1, "a product has a wrong part"));
            gather.push_back(list.between(-1, 1, "a sign is 1 or -1"));
        }
        programs.emplace_back(list, order, parts);
        programs.emplace_back(list, products, order);
        const int64_t* place = list.take(product({offsets, order, 3}));
        list.end();
        int64_t low[3], high[3];
        for (int k = 0; k < 3; k++) {
            low[k] = high[k] = place[k];
            for (int64_t i = k; i < offsets * order * 3; i += 3) {
                need(std::abs(place[i]) < int64_t{1} << 31, "an offset is too far away");
                low[k] = std::min(low[k], place[i]), high[k] = std::max(high[k], place[i]);
            }
            axes.emplace_back(source[k], target[k], low[k], high[k], k > 0);
        }
        const Axis &planes = axes[0], &rows = axes[1], &columns = axes[2];
        channel = product({planes.pitch, rows.pitch, columns.pitch});
        channel += (rows.span - rows.pitch + 1) * columns.pitch + columns.span - columns.pitch + GRADIENT_TILE + LANES;
        product({channel, in, order, 16});
        product({positions(), planes.target, std::max(products, order), out, 16});
        product({offsets, weights, in, out, 16, LANES});
        for (int64_t i = 0; i < offsets * order; i++, place += 3)
            shift.push_back(((place[0] - low[0]) * rows.pitch + place[1] - low[1]) * columns.pitch + place[2] - low[2]);
    }

    int64_t pairs() const { return offsets * in; }
    int64_t vectors() const { return ((axes[1].target - 1) * axes[2].pitch + axes[2].target + LANES - 1) / LANES; }
    int64_t positions() const { return vectors() * LANES; }  // of a plane
    int64_t plane() const { return axes[1].pitch * axes[2].pitch; }
    void check(int64_t x, int64_t y) const {
        need_size(x, product({batch, in, order, axes[0].source, axes[1].source, axes[2].source}), "the input");
        need_size(y, product({batch, out, order, axes[0].target, axes[1].target, axes[2].target}), "the output");
    }
    void check_weight(int64_t size) const { need_size(size, product({pairs(), weights, out}), "the weight"); }

    // An example with the zeros around it.
    void pad(const float* x, float* padded, int64_t threads, Parallel parallel) const {
        const Axis &planes = axes[0], &rows = axes[1], &columns = axes[2];
        in_parallel(in * order, threads, parallel, [&](int64_t c) {
            float* to = padded + c * channel;
            float* end = to + channel;
            const float* from = x + c * planes.source * rows.source * columns.source;
            for (int64_t i = 0; i < planes.pitch; i++)
                for (int64_t j = 0; j < rows.pitch; j++, to += columns.pitch) {
                    const int64_t z = i - planes.left, y = j - rows.left;
                    if (z < 0 || z >= planes.length || y < 0 || y >= rows.length) {
                        std::memset(to, 0, sizeof(float) * columns.pitch);
                        continue;
                    }
                    const float* row = from + ((z + planes.first()) * rows.source + y + rows.first()) * columns.source;
                    const int64_t left = columns.left, length = columns.length;
                    std::memset(to, 0, sizeof(float) * left);
                    std::memcpy(to + left, row + columns.first(), sizeof(float) * length);
                    std::memset(to + left + length, 0, sizeof(float) * (columns.pitch - left - length));
                }
            std::memset(to, 0, sizeof(float) * (end - to));
        });
    }

    // Panels of some pairs (feature, offset): for each part, rows of pairs, columns of N*LANES positions.
    template <int N>
    void analyse(const float* padded, int64_t first, int64_t count, int64_t depth, int64_t pitch, float** at,
                 float* panels) const {
        const Program& program = programs[0];
        for (int64_t k = 0; k < count; k++) {
            const int64_t u = (first + k) % offsets, c = (first + k) / offsets;  // offsets of a feature read the same lines
            for (int64_t t = 0; t < order; t++)
                at[t] = const_cast<float*>(padded) + (c * order + t) * channel + shift[u * order + t];
            for (int64_t i = 0; i < parts; i++) at[order + i] = panels + (i * depth + k) * pitch;
            const int64_t v = (first + k + 1) % offsets, d = (first + k + 1) / offsets;  // what comes next
            if (k + 1 < count)
                for (int64_t t = 0; t < order; t++) {
                    const float* next = padded + (d * order + t) * channel + shift[v * order + t];
                    UNROLL for (int i = 0; i <= N; i++) __builtin_prefetch(next + i * LANES);
                }
            program.run<N>(at);
        }
    }

    void analyse_all(const float* padded, int64_t first, int64_t count, int64_t depth, int64_t pitch, int64_t vectors,
                     float** at, float* panels) const {
        in_equal_pieces(vectors, 4, [&](int64_t v, int64_t many) {
            exactly<4>(many, [&]<int N>() {
                analyse<N>(padded + v * LANES, first, count, depth, pitch, at, panels + v * LANES);
            });
        });
    }

    int64_t depth(int64_t room, int64_t positions) const {
        const int64_t most = std::clamp<int64_t>(room / (parts * positions), 4, pairs());
        const int64_t blocks = (pairs() + most - 1) / most;
        return (pairs() + blocks - 1) / blocks;
    }

    void multiply_block(const float* panels, int64_t depth, int64_t first, int64_t count, const float* weight,
                        int64_t vectors, float* all) const {
        for (const Job& job : jobs) {
            const int64_t columns = job.columns * out;
            const float* b = weight + job.weight * pairs() * out + first * columns;
            for (int64_t r = 0; r < job.rows; r++) {
                const float* a = panels + (job.part + r * job.parts) * depth * TILE;
                float* y = all + (job.product + r * job.columns) * out * TILE;
                in_equal_pieces(vectors, columns > COLUMNS[4] ? 3 : 4, [&](int64_t v, int64_t many) {
                    exactly<4>(many, [&]<int M>() {
                        in_equal_pieces(columns, COLUMNS[M], [&](int64_t n, int64_t width) {
                            exactly<COLUMNS[M]>(width, [&]<int C>() {
                                multiply<M, C>(a + v * LANES, depth * TILE, TILE, b + n, pairs() * columns, columns,
                                               job.parts, count, y + n * TILE + v * LANES, first == 0);
                            });
                        });
                    });
                });
            }
        }
    }

    // The rows of the output that N vectors of a plane hold, from position `first` on.
    std::vector<Run> runs(int64_t first, int64_t count) const {
        const Axis &rows = axes[1], &columns = axes[2];
        std::vector<Run> found;
        for (int64_t i = first / columns.pitch; i < rows.target && i * columns.pitch < first + count; i++) {
            const int64_t from = std::max(first, i * columns.pitch);
            const int64_t end = std::min(first + count, i * columns.pitch + columns.target);
            if (from < end) found.push_back({from - first, i * columns.target + from - i * columns.pitch, end - from});
        }
        return found;
    }

    void tile(const float* padded, const float* weight, const float* bias, int64_t first, int64_t vectors, float* y,
              int64_t step, float* panels, float* all, float** at) const {
        const int64_t deep = depth(PANEL_ROOM, TILE);
        for (int64_t k = 0; k < pairs(); k += deep) {
            const int64_t count = std::min(deep, pairs() - k);
            analyse_all(padded + first, k, count, deep, TILE, vectors, at, panels);
            multiply_block(panels, deep, k, count, weight, vectors, all);
        }
        const auto found = runs(first, vectors * LANES);
        const int64_t last = found.empty() ? 0 : found.back().to + found.back().count;
        const Program& program = programs[1];
        float** places = at + programs[0].places;
        for (int64_t o = 0; o < out; o++) {
            in_equal_pieces(vectors, 4, [&](int64_t v, int64_t many) {
                for (int64_t q = 0; q < products; q++) places[q] = all + (q * out + o) * TILE + v * LANES;
                for (int64_t h = 0; h < order; h++) places[products + h] = panels + h * TILE + v * LANES;
                exactly<4>(many, [&]<int N>() { program.run<N>(places); });
            });
            for (int64_t h = 0; h < order; h++) {
                float* to = y + (o * order + h) * step;
                const float* from = panels + h * TILE;
                const V add = V{} + bias[o];
                for (size_t i = 0; i < found.size(); i++) {
                    const Run& run = found[i];
                    int64_t k = 0;
                    // whole vectors where what they write too much is written again by the next ones
                    const bool whole = run.to + round(run.count) <= last && i + 1 < found.size();
                    const int64_t end = whole ? run.count : run.count - LANES + 1;
                    for (; k < end; k += LANES) store<LANES>(to + run.to + k, load<LANES>(from + run.from + k) + add);
                    for (; k < run.count; k++) to[run.to + k] = from[run.from + k] + bias[o];
                }
            }
        }
    }
    static int64_t round(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

    // Places between of both programs, in scratch memory of `pitch` floats each.
    static int64_t between(const Program& program) { return program.places - program.inputs - program.outputs; }
    static void place(const Program& program, float** at, float* scratch, int64_t pitch) {
        for (int64_t i = 0; i < between(program); i++) at[program.inputs + program.outputs + i] = scratch + i * pitch;
    }

    void forward(const float* x, const float* weight, const float* bias, float* y, Room& shared, int64_t threads,
                 Parallel parallel) const {
        float* padded = shared.get(channel * in * order);
        const Axis& planes = axes[0];
        const int64_t target = planes.target * axes[1].target * axes[2].target;
        const int64_t most = (vectors() + MOST - 1) / MOST;  // tiles of a plane
        const int64_t panel = std::max(parts * depth(PANEL_ROOM, TILE), order) * TILE, sums = products * out * TILE;
        for (int64_t n = 0; n < batch; n++) {
            pad(x + n * in * order * planes.source * axes[1].source * axes[2].source, padded, threads, parallel);
            in_parallel(planes.target * most, threads, parallel, [&](int64_t i) {
                float* start = room_of_this_thread().get(
                    panel + sums + (between(programs[0]) + between(programs[1])) * TILE + LANES);
                std::vector<float*> at(programs[0].places + programs[1].places);
                float* scratch = start + panel + sums;
                place(programs[0], at.data(), scratch, TILE);
                place(programs[1], at.data() + programs[0].places, scratch + between(programs[0]) * TILE, TILE);
                const int64_t z = i / most, t = i % most;
                const int64_t begin = t * vectors() / most, count = (t + 1) * vectors() / most - begin;
                float* to = y + n * out * order * target + z * axes[1].target * axes[2].target;
                tile(padded + z * plane(), weight, bias, begin * LANES, count, to, target, start, start + panel, at.data());
            });
        }
    }

    // --- the gradient to the weights ---------------------------------------------------------------------------------

    // The gradient to the products, rows of all positions of all planes; zero where there is no output.
    void gather_plane(const float* grad, int64_t z, float* of_products, int64_t pitch, float* rows, float** at) const {
        const int64_t target = axes[0].target * axes[1].target * axes[2].target, row = positions();
        const auto found = runs(0, row);
        const Program& program = programs[0];
        for (int64_t o = 0; o < out; o++) {
            std::memset(rows, 0, sizeof(float) * order * row);
            for (int64_t h = 0; h < order; h++) {
                const float* from = grad + (o * order + h) * target + z * axes[1].target * axes[2].target;
                for (const Run& run : found)
                    std::memcpy(rows + h * row + run.from, from + run.to, sizeof(float) * run.count);
            }
            for (int64_t v = 0; v < row; v += LANES) {
                for (int64_t h = 0; h < order; h++) at[h] = rows + h * row + v;
                for (int64_t i = 0; i < parts; i++) at[order + i] = rows + order * row + i * LANES;
                program.run<1>(at);
                for (int64_t q = 0; q < products; q++) {
                    const V part = load<LANES>(at[order + gather[2 * q]]);
                    store<LANES>(of_products + (q * out + o) * pitch + z * row + v, gather[2 * q + 1] < 0 ? -part : part);
                }
            }
        }
    }

    void correlate_block(const float* panels, int64_t depth, int64_t count, const float* grad, int64_t pitch,
                         int64_t vectors, float* sums) const {
        for (const Job& job : jobs) {
            const int64_t columns = job.columns * out;
            for (int64_t p = 0; p < job.parts; p++) {
                const float* a = panels + (job.part + p) * depth * GRADIENT_TILE;
                const float* g = grad + job.product * out * pitch;
                in_equal_pieces(columns, WEIGHT_COLUMNS, [&](int64_t n, int64_t width) {
                    in_equal_pieces(count, WEIGHT_ROWS, [&](int64_t k, int64_t high) {
                        exactly<WEIGHT_COLUMNS>(width, [&]<int N>() {
                            exactly<WEIGHT_ROWS>(high, [&]<int K>() {
                                correlate<K, N>(a + k * GRADIENT_TILE, job.parts * depth * GRADIENT_TILE, GRADIENT_TILE,
                                                g + n * pitch, columns * pitch, pitch, job.rows, vectors,
                                                sums + ((p * depth + k) * columns + n) * LANES, columns * LANES);
                            });
                        });
                    });
                });
            }
            sums += job.parts * depth * columns * LANES;
        }
    }

    // Each task has some pairs and sees all positions, so that nothing depends on the number of threads.
    void weight_gradient(const float* x, const float* grad, float* weight, Room& shared, int64_t threads,
                         Parallel parallel) const {
        const Axis& planes = axes[0];
        const int64_t row = positions(), pitch = planes.target * row, padded_size = channel * in * order;
        const int64_t target = planes.target * axes[1].target * axes[2].target;
        const int64_t deep = depth(GRADIENT_ROOM, GRADIENT_TILE), tasks = (pairs() + deep - 1) / deep;
        const int64_t panel = parts * deep * GRADIENT_TILE, sums = weights * deep * out * LANES;
        const int64_t rest = between(programs[0]) * GRADIENT_TILE, pieces = (vectors() + GRADIENT_MOST - 1) / GRADIENT_MOST;
        float* padded = shared.get(padded_size + products * out * pitch + LANES);
        float* of_products = padded + padded_size;
        std::memset(weight, 0, sizeof(float) * pairs() * weights * out);
        for (int64_t n = 0; n < batch; n++) {
            pad(x + n * in * order * planes.source * axes[1].source * axes[2].source, padded, threads, parallel);
            in_parallel(planes.target, threads, parallel, [&](int64_t z) {
                float* start = room_of_this_thread().get(order * row + (parts + between(programs[0])) * LANES + LANES);
                std::vector<float*> at(programs[0].places);
                place(programs[0], at.data(), start + order * row + parts * LANES, LANES);
                gather_plane(grad + n * out * order * target, z, of_products, pitch, start, at.data());
            });
            in_parallel(tasks, threads, parallel, [&](int64_t task) {
                float* start = room_of_this_thread().get(panel + sums + rest + LANES);
                float* sum = start + panel;
                std::vector<float*> at(programs[0].places), moved(programs[0].places);
                place(programs[0], at.data(), start + panel + sums, GRADIENT_TILE);
                std::memset(sum, 0, sizeof(float) * sums);
                const int64_t first = task * deep, count = std::min(deep, pairs() - first);
                for (int64_t z = 0; z < planes.target; z++)
                    for (int64_t t = 0; t < pieces; t++) {
                        const int64_t begin = t * vectors() / pieces, many = (t + 1) * vectors() / pieces - begin;
                        analyse_all(padded + z * plane() + begin * LANES, first, count, deep, GRADIENT_TILE, many,
                                    at.data(), start);
                        correlate_block(start, deep, count, of_products + z * row + begin * LANES, pitch, many, sum);
                    }
                add_up(sum, deep, first, count, weight);
            });
        }
    }

    void add_up(const float* sum, int64_t depth, int64_t first, int64_t count, float* weight) const {
        for (const Job& job : jobs) {
            const int64_t columns = job.columns * out;
            for (int64_t p = 0; p < job.parts; p++)
                for (int64_t k = 0; k < count; k++)
                    for (int64_t n = 0; n < columns; n++) {
                        V v = load<LANES>(sum + ((p * depth + k) * columns + n) * LANES);
                        float total[LANES];
                        store<LANES>(total, v);
                        for (int half = LANES / 2; half; half /= 2)
                            for (int i = 0; i < half; i++) total[i] += total[i + half];
                        weight[job.weight * pairs() * out + (p * pairs() + first + k) * columns + n] += total[0];
                    }
            sum += job.parts * depth * columns * LANES;
        }
    }
};

// Memory for what all threads read in a call.
static inline Room& shared_room() {
    static thread_local Room room;
    return room;
}

}  // namespace volumes
