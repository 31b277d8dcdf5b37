// The same layer with positions side by side in a vector, instead of features: for layers that have too few features to
// fill one. The same numbers are multiplied and added in the same order, so that the bits are the same.
#pragma once
#include <utility>

#include "layer.h"

namespace {

#if defined(__AVX512F__) || defined(QUARTERTURN_WIDE)
constexpr int ABREAST = 3, OUTPUTS = 8;  // vectors of positions and output features: their sums are in registers
#elif defined(__AVX2__)
constexpr int ABREAST = 3, OUTPUTS = 4;
#else
constexpr int ABREAST = 1, OUTPUTS = 4;
#endif
constexpr int64_t RUN = ABREAST * LANES;            // positions at once, forward
constexpr int64_t GRADIENT_RUN = 8 * ABREAST * 16;  // and for the gradient to the weights

INLINE Vector<8> low_halves(Vector<8> a, Vector<8> b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
}
INLINE Vector<8> high_halves(Vector<8> a, Vector<8> b) {
    return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}

// Eight rows of eight floats, transposed.
INLINE void transpose8(const Vector<8> (&in)[8], Vector<8> (&out)[8]) {
    Vector<8> half[4], turned[4];
    UNROLL for (int i = 0; i < 4; i++) half[i] = low_halves(in[i], in[i + 4]);
    transpose4(half, turned);
    UNROLL for (int i = 0; i < 4; i++) out[i] = turned[i], half[i] = high_halves(in[i], in[i + 4]);
    transpose4(half, turned);
    UNROLL for (int i = 0; i < 4; i++) out[i + 4] = turned[i];
}

// Pixels of channels, at(r) for the r-th, to planes of positions, and back.
template <class T, class At>
inline void to_planes(int64_t count, int64_t channels, At at, float* out, int64_t pitch) {
    const int64_t eights = count / 8 * 8;
    for (int64_t r = 0; r < eights; r += 8) {
        const T* pixel[8];
        for (int i = 0; i < 8; i++) pixel[i] = at(r + i);
        int64_t c = 0;
        for (; c + 8 <= channels; c += 8) {
            Vector<8> in[8], turned[8];
            UNROLL for (int i = 0; i < 8; i++) in[i] = load<8>(pixel[i] + c);
            transpose8(in, turned);
            UNROLL for (int i = 0; i < 8; i++) store<8>(out + (c + i) * pitch + r, turned[i]);
        }
        for (; c < channels; c++)
            for (int i = 0; i < 8; i++) out[c * pitch + r + i] = load1(pixel[i] + c);
    }
    for (int64_t r = eights; r < count; r++)
        for (int64_t c = 0; c < channels; c++) out[c * pitch + r] = load1(at(r) + c);
}

template <class T, class At>
inline void from_planes(int64_t count, int64_t channels, const float* in, int64_t pitch, At at) {
    const int64_t eights = count / 8 * 8;
    for (int64_t r = 0; r < eights; r += 8) {
        T* pixel[8];
        for (int i = 0; i < 8; i++) pixel[i] = at(r + i);
        int64_t c = 0;
        for (; c + 8 <= channels; c += 8) {
            Vector<8> rows[8], turned[8];
            UNROLL for (int i = 0; i < 8; i++) rows[i] = load<8>(in + (c + i) * pitch + r);
            transpose8(rows, turned);
            UNROLL for (int i = 0; i < 8; i++) store<8>(pixel[i] + c, turned[i]);
        }
        for (; c < channels; c++)
            for (int i = 0; i < 8; i++) store1(pixel[i] + c, in[c * pitch + r + i]);
    }
    for (int64_t r = eights; r < count; r++)
        for (int64_t c = 0; c < channels; c++) store1(at(r) + c, in[c * pitch + r]);
}

// y[o] += sum over parts and k of a[part][k] * w[part][k][o] for OUTS outputs and ABREAST vectors of positions.
template <int OUTS>
inline void multiply_planes(const float* a, int64_t part, const float* w, int64_t columns, int64_t parts, int64_t depth,
                            float* y, bool first) {
    Lanes sum[OUTS][ABREAST];
    UNROLL for (int o = 0; o < OUTS; o++)
        UNROLL for (int v = 0; v < ABREAST; v++) sum[o][v] = first ? Lanes{} : load<LANES>(y + o * RUN + v * LANES);
    for (int64_t p = 0; p < parts; p++) {
        const float* row = a + p * part;
        for (int64_t k = 0; k < depth; k++, row += RUN, w += columns) {
            Lanes x[ABREAST];
            UNROLL for (int v = 0; v < ABREAST; v++) x[v] = load<LANES>(row + v * LANES);
            UNROLL for (int o = 0; o < OUTS; o++)
                UNROLL for (int v = 0; v < ABREAST; v++) sum[o][v] += x[v] * w[o];
        }
    }
    UNROLL for (int o = 0; o < OUTS; o++)
        UNROLL for (int v = 0; v < ABREAST; v++) store<LANES>(y + o * RUN + v * LANES, sum[o][v]);
}

// sum[k][o] += sum over positions of a[k] * g[o], for KS numbers k and OUTS outputs.
template <int KS, int OUTS>
inline void correlate_planes(const float* a, const float* g, int64_t count, float* out, int64_t out_pitch) {
    Lanes sum[KS][OUTS] = {};
    for (int64_t r = 0; r < count; r += LANES) {
        Lanes x[KS];
        UNROLL for (int k = 0; k < KS; k++) x[k] = load<LANES>(a + k * GRADIENT_RUN + r);
        UNROLL for (int o = 0; o < OUTS; o++) {
            const Lanes y = load<LANES>(g + o * GRADIENT_RUN + r);
            UNROLL for (int k = 0; k < KS; k++) sum[k][o] += x[k] * y;
        }
    }
    UNROLL for (int k = 0; k < KS; k++)
        UNROLL for (int o = 0; o < OUTS; o++) {
            float all = 0;
            UNROLL for (int lane = 0; lane < LANES; lane++) all += sum[k][o][lane];
            out[k * out_pitch + o] += all;
        }
}

// Call f<N>(first) for pieces of at most MOST, each half the one before.
template <int MOST, class F>
inline void pieces_of(int64_t count, F f, int64_t first = 0) {
    for (; count - first >= MOST; first += MOST) f.template operator()<MOST>(first);
    if constexpr (MOST > 1) {
        if (first < count) pieces_of<MOST / 2>(count, f, first);
    }
}

template <class S>
struct Narrow {
    static constexpr auto& counts = Layer<S>::counts;
    static constexpr int G = S::order, PARTS = Layer<S>::PARTS, PRODUCTS = Layer<S>::PRODUCTS;
    const Layer<S>& layer;
    const Geometry& g = layer.g;

    explicit Narrow(const Layer<S>& layer) : layer(layer) {}

    // Whether it is faster, as measured: few features leave vectors of them partly empty. Neighbours must be neighbours.
    bool suits() const { return is_small(8, 16); }
    bool suits_gradient() const { return is_small(7, 12); }
    bool is_small(int64_t most, int64_t most_of_one_offset) const {
        for (const Phase& phase : g.phases)
            if (phase.stride[0] != 1 || phase.stride[1] != 1) return false;
        const int64_t few = std::min(g.in, g.out);
        return few % LANES && few <= (g.offsets == 1 ? most_of_one_offset : most);
    }

    // The part of the source that a task reads, as planes of channels with zeros around; all its rows follow each other.
    static int64_t pitch_of(const Task& task) {
        return round_up(task.source_pixels(), 16) | 16;  // an odd number of cache lines
    }
    static int64_t behind(const Task& task) {  // how far reads of the last positions go beyond a plane
        const Phase& p = *task.phase;
        return (p.high[0] - p.low[0]) * task.source_columns() + p.high[1] - p.low[1] + std::max(RUN, GRADIENT_RUN);
    }
    template <class T>
    void lay_out(const Task& task, const T* x, float* out) const {
        const Phase& p = *task.phase;
        const int64_t rows = task.source_rows(), columns = task.source_columns(), pitch = pitch_of(task);
        const int64_t top = p.base[0] + task.first_row + p.low[0], left = p.base[1] + p.low[1], channels = g.in * G;
        const int64_t first = std::clamp<int64_t>(-left, 0, columns);
        const int64_t end = std::clamp<int64_t>(g.source[1] - left, first, columns);
        for (int64_t c = 0; c < channels; c++)  // what is read beyond a plane counts for nothing, but is a number
            std::memset(out + c * pitch + task.source_pixels(), 0, sizeof(float) * (pitch - task.source_pixels()));
        std::memset(out + channels * pitch, 0, sizeof(float) * behind(task));
        for (int64_t n = 0; n < task.examples; n++)
            for (int64_t i = 0; i < rows; i++, out += columns) {
                const int64_t row = top + i;
                const bool inside = row >= 0 && row < g.source[0];
                const int64_t zeros = inside ? first : columns, after = inside ? columns - end : 0;
                if (zeros || after)
                    for (int64_t c = 0; c < channels; c++) {
                        std::memset(out + c * pitch, 0, sizeof(float) * zeros);
                        std::memset(out + c * pitch + columns - after, 0, sizeof(float) * after);
                    }
                if (!inside) continue;
                const T* line = x + (((task.first_example + n) * g.source[0] + row) * g.source[1] + left) * channels;
                to_planes<T>(
                    end - first, channels, [&](int64_t r) { return line + (first + r) * channels; }, out + first, pitch);
            }
    }

    // Where in the output each position of a run goes, -1 where there is none for it; whether there is any.
    bool locate(const Task& task, int64_t start, int64_t run, int64_t* target) const {
        const Phase& p = *task.phase;
        const int64_t columns = task.source_columns(), rows = task.source_rows();
        int64_t j = start % columns, i = start / columns % rows, n = start / columns / rows;
        bool any = false;
        for (int64_t r = 0; r < run;) {  // row by row
            const int64_t end = std::min(run, r + columns - j), row = p.start[0] + (task.first_row + i) * p.step[0];
            if (i < task.rows && n < task.examples) {
                int64_t to = ((task.first_example + n) * g.target[0] + row) * g.target[1] + p.start[1] + j * p.step[1];
                any = any || j < p.count[1];
                for (; r < end && j < p.count[1]; r++, j++, to += p.step[1]) target[r] = to;
            }
            for (; r < end; r++) target[r] = -1;
            j = 0;
            if (++i == rows) i = 0, n++;
        }
        return any;
    }

    // Where in the source of a task, from the place of a position, each (offset, feature, orientation) is; -1: nowhere.
    std::vector<int64_t> places(const Task& task) const {
        const Phase& p = *task.phase;
        std::vector<int64_t> all;
        for (int64_t u = 0; u < p.offsets; u++)
            for (int64_t c = 0; c < g.in; c++)
                for (int t = 0; t < G; t++) {
                    const int64_t* place = p.place(u, G, t);
                    const int64_t pixel = (place[1] - p.low[0]) * task.source_columns() + place[2] - p.low[1];
                    all.push_back(place[0] ? (c * G + g.orientation[place[0] - 1]) * pitch_of(task) + pixel : -1);
                }
        return all;
    }

    // Panels of a block: for each analysed part and each (offset, feature) a run of positions.
    template <int64_t SIZE>
    [[gnu::noinline]] void analyse(const Block& block, const float* source, const int64_t* place, int64_t count,
                                   const float* zeros, float* panels) const {
        const int64_t part = block.depth() * SIZE;
        float* out = panels;
        for (int64_t u = block.first_offset; u < block.end_offset; u++)
            for (int64_t c = block.first_feature; c < block.end_feature; c++, out += SIZE) {
                const int64_t* from = place + (u * g.in + c) * G;
                const float* base[G];
                UNROLL for (int t = 0; t < G; t++) base[t] = from[t] < 0 ? zeros : source + from[t];
                for (int64_t r = 0; r < count; r += LANES) {
                    Lanes x[G], a[PARTS];
                    UNROLL for (int t = 0; t < G; t++) x[t] = load<LANES>(base[t] + r);
                    S::analyse(x, a);
                    UNROLL for (int q = 0; q < PARTS; q++) store<LANES>(out + q * part + r, a[q]);
                }
            }
    }

    // Where the packed weights of a column begin, and how far it is from word to word: see blocks_of_columns.
    static std::pair<int64_t, int64_t> column(int64_t columns, int64_t n, int64_t parts, int64_t depth) {
        int64_t width = 2 * LANES;
        while (width > GRANULE && n / width * width + width > columns) width /= 2;
        const int64_t first = n / width * width;
        return {first * parts * depth + n - first, width};
    }

    void multiply(const Block& block, const float* panels, const float* packed, float* all, bool first) const {
        const int64_t depth = block.depth(), part = depth * RUN;
        for (int j = 0; j < S::jobs; j++) {
            const Job job = S::job[j];
            const int64_t columns = job.columns * layer.out_pitch;
            for (int b = 0; b < job.rows; b++)
                for (int a = 0; a < job.columns; a++)
                    pieces_of<OUTPUTS>(g.out, [&]<int OUTS>(int64_t o) {
                        const auto [from, step] = column(columns, a * layer.out_pitch + o, job.parts, depth);
                        multiply_planes<OUTS>(panels + (counts.part[j] + b * job.parts) * part, part, packed + from,
                                              step, job.parts, depth,
                                              all + ((counts.product[j] + b * job.columns + a) * g.out + o) * RUN,
                                              first);
                    });
            packed += job.parts * columns * depth;
        }
    }

    struct Scratch {
        float *source, *panels, *all, *rows, *other;
    };
    template <int64_t SIZE>
    Scratch scratch(const std::vector<Task>& tasks, int64_t depth) const {
        int64_t source = 0;
        for (const Task& task : tasks) source = std::max(source, g.in * G * pitch_of(task) + behind(task));
        source = round_up(source + LANES, 16);
        const int64_t panels = PARTS * depth * SIZE, all = PRODUCTS * g.out * SIZE, rows = G * g.out * SIZE;
        float* start = room_of_this_thread().get(source + panels + all + 2 * rows);
        return {start, start + source, start + source + panels, start + source + panels + all,
                start + source + panels + all + rows};
    }
    static int64_t deepest(const std::vector<Block>& blocks) {
        int64_t depth = 0;
        for (const Block& block : blocks) depth = std::max(depth, block.depth());
        return depth;
    }

    template <class T>
    void forward(const T* x, const float* packed, const Finish<T>& finish, T* y, int64_t threads,
                 Parallel parallel) const {
        const auto tasks = cut(g, g.in * G, SOURCE_ROOM, 4 * RUN);
        const std::vector<float> zeros(RUN, 0.0f);
        const int64_t channels = g.out * G;
        int64_t depth = 0;
        for (const Phase& phase : g.phases) depth = std::max(depth, deepest(layer.template blocks_of<Floats>(phase)));
        in_parallel(static_cast<int64_t>(tasks.size()), threads, parallel, [&](int64_t i) {
            const Scratch room = scratch<RUN>(tasks, depth);
            const Task& task = tasks[i];
            const float* weights = packed;
            for (const Phase& phase : g.phases) {
                if (&phase == task.phase) break;
                weights += layer.template packed_phase<Floats>(phase);
            }
            const auto blocks = layer.template blocks_of<Floats>(*task.phase);
            const auto place = places(task);
            lay_out(task, x, room.source);
            std::vector<T> spare(channels);
            int64_t target[RUN];
            for (int64_t start = 0; start < task.source_pixels(); start += RUN) {
                if (!locate(task, start, RUN, target)) continue;
                const float* w = weights;
                if (blocks.empty()) std::fill(room.all, room.all + PRODUCTS * g.out * RUN, 0.0f);
                for (const Block& block : blocks) {
                    analyse<RUN>(block, room.source + start, place.data(), RUN, zeros.data(), room.panels);
                    multiply(block, room.panels, w, room.all, &block == &blocks[0]);
                    w += layer.template packed_block<Floats>(block);
                }
                synthesise(room, target, finish, spare.data(), y);
            }
        });
    }

    // What is at positions without an output goes to a spare pixel.
    template <class T>
    [[gnu::noinline]] void synthesise(const Scratch& room, const int64_t* target, const Finish<T>& finish, T* spare,
                                      T* y) const {
        const int64_t channels = g.out * G;
        if (finish.other)
            to_planes<T>(
                RUN, channels, [&](int64_t r) { return target[r] < 0 ? spare : finish.other + target[r] * channels; },
                room.other, RUN);
        for (int64_t o = 0; o < g.out; o++)
            for (int64_t r = 0; r < RUN; r += LANES) {
                Lanes products[PRODUCTS], h[G];
                UNROLL for (int k = 0; k < PRODUCTS; k++)
                    products[k] = load<LANES>(room.all + (k * g.out + o) * RUN + r);
                S::synthesise(products, h);
                UNROLL for (int t = 0; t < G; t++) {
                    const int64_t at = (o * G + g.orientation[t]) * RUN + r;
                    const Lanes sum = h[t] * finish.scale[o] + finish.bias[o];
                    store<LANES>(room.rows + at, finish.other ? sum + load<LANES>(room.other + at) : sum);
                }
            }
        activate(finish.activation, room.rows, channels * RUN);
        from_planes<T>(RUN, channels, room.rows, RUN,
                       [&](int64_t r) { return target[r] < 0 ? spare : y + target[r] * channels; });
    }

    std::vector<Task> gradient_tasks() const { return cut(g, g.in * G, SOURCE_ROOM, 4 * GRADIENT_RUN); }

    int64_t gradient_pieces() const { return 1; }

    // As Layer::add_gradient.
    template <class T>
    void add_gradient(const std::vector<Task>& tasks, int64_t first_task, int64_t end_task, int64_t, int64_t, const T* x,
                      const T* grad, float* sums, float* bias) const {
        const auto blocks = blocks_of_depth(g.phases[0].offsets, g.in, GRADIENT_DEPTH / 2);
        const Scratch room = scratch<GRADIENT_RUN>(tasks, deepest(blocks));
        const int64_t channels = g.out * G, total = g.phases[0].offsets * g.in;
        const std::vector<T> nothing(channels, T{});
        const std::vector<float> zeros(GRADIENT_RUN, 0.0f);
        int64_t target[GRADIENT_RUN];
        for (int64_t i = first_task; i < end_task; i++) {
            const Task& task = tasks[i];
            const auto place = places(task);
            lay_out(task, x, room.source);
            for (int64_t start = 0; start < task.source_pixels(); start += GRADIENT_RUN) {
                const int64_t run = std::min(GRADIENT_RUN, round_up(task.source_pixels() - start, LANES));
                if (!locate(task, start, run, target)) continue;
                to_planes<T>(
                    run, channels,
                    [&](int64_t r) { return target[r] < 0 ? nothing.data() : grad + target[r] * channels; }, room.rows,
                    GRADIENT_RUN);
                for (int64_t o = 0; o < g.out; o++) {
                    Lanes total{};
                    for (int64_t r = 0; r < run; r += LANES) {
                        Lanes h[G], products[PRODUCTS];
                        UNROLL for (int t = 0; t < G; t++)
                            h[t] = load<LANES>(room.rows + (o * G + g.orientation[t]) * GRADIENT_RUN + r);
                        S::gather(h, products);
                        UNROLL for (int k = 0; k < PRODUCTS; k++)
                            store<LANES>(room.all + (k * g.out + o) * GRADIENT_RUN + r, products[k]);
                        total += S::total(products);
                    }
                    UNROLL for (int lane = 0; lane < LANES; lane++) bias[o] += total[lane];
                }
                for (const Block& block : blocks) {
                    analyse<GRADIENT_RUN>(block, room.source + start, place.data(), run, zeros.data(), room.panels);
                    correlate(block, room.panels, room.all, run, total, sums);
                }
            }
        }
    }

    void correlate(const Block& block, const float* panels, const float* all, int64_t run, int64_t total,
                   float* sums) const {
        const int64_t depth = block.depth(), k = block.first_offset * g.in + block.first_feature;
        for (int j = 0; j < S::jobs; j++) {
            const Job job = S::job[j];
            const int64_t columns = job.columns * layer.out_pitch;
            for (int p = 0; p < job.parts; p++)
                for (int b = 0; b < job.rows; b++)
                    for (int a = 0; a < job.columns; a++)
                        pieces_of<4>(g.out, [&]<int OUTS>(int64_t o) {
                            const float* part = panels + (counts.part[j] + b * job.parts + p) * depth * GRADIENT_RUN;
                            const float* y = all + ((counts.product[j] + b * job.columns + a) * g.out + o) * GRADIENT_RUN;
                            float* to = sums + (p * total + k) * columns + a * layer.out_pitch + o;
                            pieces_of<2>(depth, [&]<int KS>(int64_t d) {
                                correlate_planes<KS, OUTS>(part + d * GRADIENT_RUN, y, run, to + d * columns, columns);
                            });
                        });
            sums += job.parts * total * columns;
        }
    }
};

}  // namespace
