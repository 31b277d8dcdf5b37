// A layer in the group-Fourier basis: packed weights, the forward pass, the gradient to the weights.
#pragma once
#include "activations.h"
#include "layout.h"
#include "plan.h"
#include "structures.h"
#include "threads.h"

namespace {

constexpr int64_t TILE = NARROW_ROWS;  // output positions at once, forward
constexpr int64_t GRADIENT_TILE = 64;  // and for the gradient to the weights
constexpr int64_t GRADIENT_DEPTH = 128;
constexpr int64_t SOURCE_ROOM = 36 * 1024;     // floats of realigned source: part of a second-level cache
constexpr int64_t PARTIAL_ROOM = 1024 * 1024;  // floats of partial sums of weight gradients
constexpr int64_t SPARE = 1024;                // so many times a size of scratch still fits into 64 bits

// What becomes of the sums before they are written: activation(sum * scale + bias + other). `other` is as the output and
// may be missing; scale and bias are padded to the output features' pitch.
template <class T>
struct Finish {
    const float *scale, *bias;
    const T* other;
    Activation activation;
};

template <class S>
struct Layer {
    static constexpr Counts<S> counts{};
    static constexpr int PARTS = counts.parts(), PRODUCTS = counts.products(), WEIGHTS = counts.weights();
    Geometry g;
    int64_t in_pitch, out_pitch;  // padded numbers of features
    int64_t element[8];           // which element of the structure the layout keeps at t

    explicit Layer(std::span<const int64_t> numbers) : g(read_geometry(numbers, S::order)) {
        in_pitch = round_up(g.in, g.in <= GRANULE ? GRANULE : LANES);
        out_pitch = round_up(g.out, GRANULE);
        for (int t = 0; t < S::order; t++) element[g.orientation[t]] = t;
        int64_t offsets = 0;
        for (const Phase& phase : g.phases) {
            const Task whole{&phase, 0, 1, 0, std::max<int64_t>(1, phase.count[0])};
            product({whole.source_rows(), std::max<int64_t>(1, whole.source_columns()), floats_per_pixel(), SPARE});
            offsets += phase.offsets;
        }
        product({offsets + 1, WEIGHTS, in_pitch, out_pitch, SPARE});
    }

    // What must hold before memory of the caller is read: sizes are the plan's, and weights lie where the index says.
    void check_source(int64_t size) const {
        need_size(size, product({g.batch, g.source[0], g.source[1], g.in, S::order}), "the input");
    }
    void check_target(int64_t size) const {
        need_size(size, product({g.batch, g.target[0], g.target[1], g.out, S::order}), "the output");
    }
    void check_bias(int64_t size) const { need_size(size, g.out, "the bias"); }
    void check_scale(int64_t size) const { need_size(size, g.out, "the scale"); }
    template <class P> void check_packed(int64_t size) const { need_size(size, packed_size<P>(), "the packed weight"); }
    void check_weight(int64_t size, int64_t out_stride, int64_t in_stride, std::span<const int64_t> index) const {
        need(static_cast<int64_t>(index.size()) == product({g.offsets, S::order}),
             "its list of weights has another length");
        need(out_stride >= 0 && in_stride >= 0, "the weight has a negative stride");
        const int64_t last = std::max(product({g.out - 1, out_stride}), product({g.in - 1, in_stride}));
        need(last <= size, "the weight", WRONG_SIZE);
        const int64_t room = size - (g.out - 1) * out_stride - (g.in - 1) * in_stride;
        for (int64_t number : index) {
            need(number >= -1, "its list of weights holds a negative number");
            need(number < room, "the weight", WRONG_SIZE);
        }
    }

    int64_t floats_per_pixel() const { return S::order * in_pitch; }

    // Packed weights: for each phase, block, job and block of columns, parts x words x columns. P: what is in a word.
    template <class P> auto blocks_of(const Phase& phase) const {
        return blocks_of_depth(phase.offsets, g.in, P::PER_WORD * DEPTH);
    }
    template <class P> static int64_t words(const Block& block) {
        return (block.depth() + P::PER_WORD - 1) / P::PER_WORD;
    }
    template <class P> int64_t packed_block(const Block& block) const { return WEIGHTS * words<P>(block) * out_pitch; }
    template <class P> int64_t packed_phase(const Phase& phase) const {
        int64_t size = 0;
        for (const Block& block : blocks_of<P>(phase)) size += packed_block<P>(block);
        return size;
    }
    template <class P> int64_t packed_size() const {
        int64_t size = 0;
        for (const Phase& phase : g.phases) size += packed_phase<P>(phase);
        return size;
    }

    template <class P>
    void pack(const float* weight, int64_t out_stride, int64_t in_stride, const int64_t* index, float* packed,
              int64_t threads, Parallel parallel) const {
        for (const Phase& phase : g.phases) {
            const auto blocks = blocks_of<P>(phase);
            std::vector<int64_t> begin(blocks.size() + 1, 0);
            for (size_t b = 0; b < blocks.size(); b++) begin[b + 1] = begin[b] + packed_block<P>(blocks[b]);
            in_parallel(static_cast<int64_t>(blocks.size()), threads, parallel, [&](int64_t b) {
                pack_block<P>(phase, blocks[b], weight, out_stride, in_stride, index, packed + begin[b]);
            });
            packed += begin.back();
        }
    }

    template <class P>
    void pack_block(const Phase& phase, const Block& block, const float* weight, int64_t out_stride, int64_t in_stride,
                    const int64_t* index, float* packed) const {
        constexpr int64_t W = P::PER_WORD;
        const int64_t depth = words<P>(block);
        typename P::Number* place[WEIGHTS];  // of each weight, for one column
        int64_t step[WEIGHTS];
        for (int64_t o = 0; o < out_pitch; o += GRANULE) {  // so many output features at once
            float* start = packed;
            for (int j = 0; j < S::jobs; j++) {
                const Job job = S::job[j];
                for (int a = 0; a < job.columns; a++) {
                    const int64_t n = a * out_pitch + o;
                    blocks_of_columns(job.columns * out_pitch, [&]<int N, int L>(int64_t first) {
                        if (n < first || n >= first + N * L) return;
                        for (int p = 0; p < job.parts; p++) {
                            const int w = counts.weight[j] + p * job.columns + a;
                            float* word = start + first * job.parts * depth + p * depth * N * L + n - first;
                            place[w] = reinterpret_cast<typename P::Number*>(word);
                            step[w] = W * N * L;
                        }
                    });
                }
                start += job.parts * job.columns * depth * out_pitch;
            }
            const int64_t lanes = std::clamp<int64_t>(g.out - o, 0, GRANULE);
            Vector<GRANULE> out[WEIGHTS];
            const auto put = [&](int64_t k) {
                UNROLL for (int i = 0; i < WEIGHTS; i++) {
                    if constexpr (W == 1)
                        store<GRANULE>(place[i] + k * step[i], out[i]);
                    else
                        for (int lane = 0; lane < GRANULE; lane++)
                            store1(place[i] + k / W * step[i] + lane * W + k % W, out[i][lane]);
                }
            };
            int64_t k = 0;
            for (int64_t u = block.first_offset; u < block.end_offset; u++) {
                const int64_t* from = index + phase.number(u, S::order) * S::order;
                for (int64_t c = block.first_feature; c < block.end_feature; c++, k++) {
                    Vector<GRANULE> w[S::order] = {};
                    for (int64_t lane = 0; lane < lanes; lane++) {
                        const float* source = weight + (o + lane) * out_stride + c * in_stride;
                        UNROLL for (int s = 0; s < S::order; s++) w[s][lane] = from[s] < 0 ? 0.0f : source[from[s]];
                    }
                    S::weights(w, out);
                    put(k);
                }
            }
            UNROLL for (int i = 0; i < WEIGHTS; i++) out[i] = Vector<GRANULE>{};
            for (; k < depth * W; k++) put(k);
        }
    }

    // The part of the source that a task reads: realigned orders, zeros around.
    template <class T>
    [[gnu::noinline]] void realign(const Task& task, const T* x, float* out) const {
        const Phase& p = *task.phase;
        const int64_t rows = task.source_rows(), columns = task.source_columns(), pixel = floats_per_pixel();
        const int64_t top = p.base[0] + task.first_row * p.stride[0] + p.low[0], left = p.base[1] + p.low[1];
        const int64_t first = std::clamp<int64_t>(-left, 0, columns);
        const int64_t end = std::clamp<int64_t>(g.source[1] - left, first, columns);
        for (int64_t n = 0; n < task.examples; n++)
            for (int64_t i = 0; i < rows; i++, out += columns * pixel) {
                const int64_t row = top + i;
                if (row < 0 || row >= g.source[0]) {
                    std::memset(out, 0, sizeof(float) * columns * pixel);
                    continue;
                }
                std::memset(out, 0, sizeof(float) * first * pixel);
                std::memset(out + end * pixel, 0, sizeof(float) * (columns - end) * pixel);
                const int64_t first_pixel = ((task.first_example + n) * g.source[0] + row) * g.source[1] + left;
                for (int64_t j = first; j < end; j++) {
                    float* to = out + j * pixel;
                    if (g.in % 4)
                        for (int t = 0; t < S::order; t++)
                            std::memset(to + t * in_pitch + g.in / 4 * 4, 0, sizeof(float) * (in_pitch - g.in / 4 * 4));
                    else if (in_pitch != g.in)
                        for (int t = 0; t < S::order; t++)
                            std::memset(to + t * in_pitch + g.in, 0, sizeof(float) * (in_pitch - g.in));
                    split_orientations<S::order>(x + (first_pixel + j) * S::order * g.in, g.in,
                                                 [&](int t) { return to + element[t] * in_pitch; });
                }
            }
    }

    // Where in the realigned source the window of each output position starts, and where the output goes.
    int64_t locate(const Task& task, int64_t first, int64_t tile, int64_t* source, int64_t* target) const {
        const Phase& p = *task.phase;
        const int64_t count = std::min(tile, task.pixels() - first), columns = task.source_columns();
        int64_t j = first % p.count[1], i = first / p.count[1] % task.rows, n = first / p.count[1] / task.rows;
        for (int64_t r = 0; r < count; r++) {
            source[r] = ((n * task.source_rows() + i * p.stride[0]) * columns + j * p.stride[1]) * floats_per_pixel();
            const int64_t row = p.start[0] + (task.first_row + i) * p.step[0], column = p.start[1] + j * p.step[1];
            target[r] = ((task.first_example + n) * g.target[0] + row) * g.target[1] + column;
            if (++j == p.count[1]) {
                j = 0;
                if (++i == task.rows) i = 0, n++;
            }
        }
        return count;
    }

    // Panels of a block: for each analysed part, rows of positions, columns of (offset, feature). An odd number of columns
    // is one of features, so that vectors reach into their padding: what fills the last pair is zero.
    template <class P, int L, int64_t SIZE, bool ALL>
    [[gnu::noinline]] void analyse(const Task& task, const Block& block, const float* source, const int64_t* start,
                                   int64_t count, const float* zeros, float* panels) const {
        constexpr int G = S::order;
        constexpr int64_t ROW = PITCH * P::PER_WORD;
        typename P::Number* first = reinterpret_cast<typename P::Number*>(panels);
        const Phase& p = *task.phase;
        const int64_t columns = task.source_columns(), features = block.end_feature - block.first_feature;
        for (int64_t u = block.first_offset; u < block.end_offset; u++) {
            const float* base[G];
            int64_t mask[G];
            for (int t = 0; t < G; t++) {
                const int64_t* place = p.place(u, G, t);
                mask[t] = place[0] ? -1 : 0;
                const int64_t pixel = (place[1] - p.low[0]) * columns + place[2] - p.low[1];
                const int64_t from = pixel * floats_per_pixel() + (place[0] - 1) * in_pitch + block.first_feature;
                base[t] = place[0] ? source + from : zeros;
            }
            for (int64_t c = 0; c < features; c += L) {
                auto* out = first + (u - block.first_offset) * features + c;
                for (int64_t r = 0; r < count; r++, out += ROW) {
                    Vector<L> x[G], a[PARTS];
                    UNROLL for (int t = 0; t < G; t++)
                        x[t] = load<L>(base[t] + (ALL ? start[r] : start[r] & mask[t]));
                    S::analyse(x, a);
                    UNROLL for (int q = 0; q < PARTS; q++) store<L>(out + q * SIZE * ROW, a[q]);
                }
                for (int t = 0; t < G; t++) base[t] += L;
            }
        }
    }

    template <class P, int64_t SIZE>
    void analyse_any(const Task& task, const Block& block, const float* source, const int64_t* start, int64_t count,
                     const float* zeros, float* panels) const {
        if (in_pitch % LANES)
            analyse<P, GRANULE, SIZE, false>(task, block, source, start, count, zeros, panels);
        else if (!task.phase->all)
            analyse<P, LANES, SIZE, false>(task, block, source, start, count, zeros, panels);
        else
            analyse<P, LANES, SIZE, true>(task, block, source, start, count, zeros, panels);
    }

    // Products of a position lie side by side, in the order (job, row, column, output feature).
    int64_t products_pitch() const { return PRODUCTS * out_pitch + 16; }

    // What a thread works in, for SIZE positions at once.
    struct Scratch {
        float *source, *panels, *all, *pixel, *other;
    };
    int64_t largest_source(const std::vector<Task>& tasks) const {
        int64_t pixels = 0;
        for (const Task& task : tasks) pixels = std::max(pixels, task.source_pixels());
        return pixels * floats_per_pixel();
    }
    template <int64_t SIZE> Scratch scratch(int64_t largest) const {
        const int64_t source = round_up(largest + LANES, LANES), products = SIZE * products_pitch();
        const int64_t panels = round_up(PARTS * SIZE * PITCH + LANES, LANES);
        float* start = room_of_this_thread().get(source + panels + products + 2 * S::order * out_pitch);
        float* pixel = start + source + panels + products;
        return {start, start + source, start + source + panels, pixel, pixel + S::order * out_pitch};
    }

    template <class P>
    void multiply_block(const Block& block, const float* panels, const float* packed, int64_t count, float* all,
                        bool first) const {
        const int64_t depth = words<P>(block);
        for (int j = 0; j < S::jobs; j++) {
            const Job job = S::job[j];
            const int64_t columns = job.columns * out_pitch;
            blocks_of_columns(columns, [&]<int N, int L>(int64_t n) {
                for (int b = 0; b < job.rows; b++) {
                    const float* a = panels + (counts.part[j] + b * job.parts) * TILE * PITCH;
                    float* y = all + (counts.product[j] + b * job.columns) * out_pitch + n;
                    multiply_rows<P, N == 2 ? WIDE_ROWS : NARROW_ROWS, N, L>(
                        count, a, TILE * PITCH, packed + n * job.parts * depth, job.parts, depth, y, products_pitch(),
                        first);
                }
            });
            packed += job.parts * columns * depth;
        }
    }

    template <int L, class T>
    [[gnu::noinline]] void synthesise(const float* all, int64_t count, const Finish<T>& finish, const int64_t* target,
                                      float* pixel, float* other, T* y) const {
        for (int64_t r = 0; r < count; r++, all += products_pitch()) {
            const int64_t place = target[r] * S::order * g.out;
            if (finish.other)
                split_orientations<S::order>(finish.other + place, g.out,
                                             [&](int t) { return other + element[t] * out_pitch; });
            for (int64_t o = 0; o < out_pitch; o += L) {
                Vector<L> products[PRODUCTS], h[S::order];
                UNROLL for (int k = 0; k < PRODUCTS; k++) products[k] = load<L>(all + k * out_pitch + o);
                S::synthesise(products, h);
                const Vector<L> scale = load<L>(finish.scale + o), bias = load<L>(finish.bias + o);
                UNROLL for (int t = 0; t < S::order; t++) {
                    const Vector<L> sum = h[t] * scale + bias;
                    store<L>(pixel + t * out_pitch + o, finish.other ? sum + load<L>(other + t * out_pitch + o) : sum);
                }
            }
            activate(finish.activation, pixel, S::order * out_pitch);
            join_orientations<S::order>([&](int t) { return pixel + element[t] * out_pitch; }, g.out, y + place);
        }
    }

    template <class P, class T>  // T: of the input and the output in memory
    void forward(const T* x, const float* packed, const Finish<T>& finish, T* y, int64_t threads,
                 Parallel parallel) const {
        const auto tasks = cut(g, floats_per_pixel(), SOURCE_ROOM, 4 * TILE);
        const int64_t largest = largest_source(tasks);
        const std::vector<float> zeros(in_pitch + LANES, 0.0f);
        in_parallel(static_cast<int64_t>(tasks.size()), threads, parallel, [&](int64_t i) {
            const auto [source, panels, all, pixel, other] = scratch<TILE>(largest);
            const Task& task = tasks[i];
            const float* weights = packed;
            for (const Phase& phase : g.phases) {
                if (&phase == task.phase) break;
                weights += packed_phase<P>(phase);
            }
            const auto blocks = blocks_of<P>(*task.phase);
            realign(task, x, source);
            int64_t start[TILE], target[TILE];
            const int64_t tiles = (task.pixels() + TILE - 1) / TILE;
            const int64_t tile = (task.pixels() + tiles - 1) / tiles;
            for (int64_t first = 0; first < task.pixels(); first += tile) {
                const int64_t count = locate(task, first, tile, start, target);
                for (int64_t r = 0; r < count; r++)  // the lines that will be written, fetched meanwhile
                    for (int64_t k = 0; k < S::order * g.out; k += 64 / sizeof(T))
                        __builtin_prefetch(y + target[r] * S::order * g.out + k, 1, 2);
                const float* w = weights;
                if (blocks.empty()) std::fill(all, all + TILE * products_pitch(), 0.0f);
                for (const Block& block : blocks) {
                    analyse_any<P, TILE>(task, block, source, start, count, zeros.data(), panels);
                    multiply_block<P>(block, panels, w, count, all, &block == &blocks[0]);
                    w += packed_block<P>(block);
                }
                if (out_pitch % LANES)
                    synthesise<GRANULE>(all, count, finish, target, pixel, other, y);
                else
                    synthesise<LANES>(all, count, finish, target, pixel, other, y);
            }
        });
    }

    // --- the gradient to the weights ---------------------------------------------------------------------------------

    template <int L, class T>
    void gather(const T* grad, int64_t count, const int64_t* target, float* pixel, float* all, float* bias) const {
        for (int64_t r = 0; r < count; r++, all += products_pitch()) {
            split_orientations<S::order>(grad + target[r] * S::order * g.out, g.out,
                                         [&](int t) { return pixel + element[t] * out_pitch; });
            for (int64_t o = 0; o < out_pitch; o += L) {
                Vector<L> h[S::order], products[PRODUCTS];
                UNROLL for (int t = 0; t < S::order; t++) h[t] = load<L>(pixel + t * out_pitch + o);
                S::gather(h, products);
                UNROLL for (int k = 0; k < PRODUCTS; k++) store<L>(all + k * out_pitch + o, products[k]);
                store<L>(bias + o, load<L>(bias + o) + S::total(products));
            }
        }
    }

    void correlate_block(const Block& block, const float* panels, const float* all, int64_t count, float* sums) const {
        const int64_t depth = block.depth(), total = g.phases[0].offsets * g.in;
        const int64_t k = block.first_offset * g.in + block.first_feature;
        for (int j = 0; j < S::jobs; j++) {
            const Job job = S::job[j];
            const int64_t columns = job.columns * out_pitch;
            blocks_of_columns(columns, [&]<int N, int L>(int64_t n) {
                for (int p = 0; p < job.parts; p++)
                    for (int b = 0; b < job.rows; b++)
                        correlate_columns<N == 2 ? WIDE_ROWS : NARROW_ROWS, N, L>(
                            depth, panels + (counts.part[j] + b * job.parts + p) * GRADIENT_TILE * PITCH,
                            all + (counts.product[j] + b * job.columns) * out_pitch + n, products_pitch(), count,
                            sums + (p * total + k) * columns + n, columns);
            });
            sums += job.parts * total * columns;
        }
    }

    std::vector<Task> gradient_tasks() const { return cut(g, floats_per_pixel(), SOURCE_ROOM, 4 * GRADIENT_TILE); }

    // The sums of large weights are cut into pieces, of which each sees all positions.
    int64_t gradient_pieces() const {
        const int64_t blocks = blocks_of_depth(g.phases[0].offsets, g.in, GRADIENT_DEPTH).size();
        return 4 * packed_size<Floats>() < PARTIAL_ROOM ? 1 : std::clamp<int64_t>(blocks, 1, 4);
    }

    // Add what some tasks contribute to a piece of the sums of the packed weights, and with the first one of the bias.
    template <class T>
    void add_gradient(const std::vector<Task>& tasks, int64_t first_task, int64_t end_task, int64_t piece,
                      int64_t pieces, const T* x, const T* grad, float* sums, float* bias) const {
        [[maybe_unused]] const auto [source, panels, all, pixel, other] = scratch<GRADIENT_TILE>(largest_source(tasks));
        const std::vector<float> zeros(in_pitch + LANES, 0.0f);
        std::fill(pixel, pixel + S::order * out_pitch, 0.0f);
        const auto all_blocks = blocks_of_depth(g.phases[0].offsets, g.in, GRADIENT_DEPTH);
        const int64_t number = static_cast<int64_t>(all_blocks.size());
        const std::span blocks(all_blocks.data() + piece * number / pieces, all_blocks.data() + (piece + 1) * number / pieces);
        std::vector<float> elsewhere(piece ? out_pitch : 0);
        if (piece) bias = elsewhere.data();
        for (int64_t i = first_task; i < end_task; i++) {
            const Task& task = tasks[i];
            realign(task, x, source);
            int64_t start[GRADIENT_TILE], target[GRADIENT_TILE];
            const int64_t tiles = (task.pixels() + GRADIENT_TILE - 1) / GRADIENT_TILE;
            const int64_t tile = (task.pixels() + tiles - 1) / tiles;
            for (int64_t first = 0; first < task.pixels(); first += tile) {
                const int64_t count = locate(task, first, tile, start, target);
                if (out_pitch % LANES)
                    gather<GRANULE>(grad, count, target, pixel, all, bias);
                else
                    gather<LANES>(grad, count, target, pixel, all, bias);
                for (const Block& block : blocks) {
                    analyse_any<Floats, GRADIENT_TILE>(task, block, source, start, count, zeros.data(), panels);
                    correlate_block(block, panels, all, count, sums);
                }
            }
        }
    }

    // `how` is this layer or its narrow form.
    template <class T, class How>
    void weight_gradient(const How& how, const T* x, const T* grad, int64_t out_stride, int64_t in_stride,
                         const int64_t* index, float* weight, float* bias, int64_t threads, Parallel parallel) const {
        const auto tasks = how.gradient_tasks();
        const int64_t size = packed_size<Floats>() + out_pitch, number = static_cast<int64_t>(tasks.size());
        const int64_t chunks = std::min(number, std::clamp<int64_t>(PARTIAL_ROOM / std::max<int64_t>(size, 1), 1, 32));
        const int64_t pieces = how.gradient_pieces();
        std::vector<float> sums(chunks * size, 0.0f);
        in_parallel(chunks * pieces, threads, parallel, [&](int64_t i) {
            const int64_t chunk = i / pieces;
            float* sum = sums.data() + chunk * size;
            how.add_gradient(tasks, chunk * number / chunks, (chunk + 1) * number / chunks, i % pieces, pieces, x, grad,
                             sum, sum + packed_size<Floats>());
        });
        const int64_t parts = chunks > 1 ? 64 : 0;
        in_parallel(parts, threads, parallel, [&](int64_t i) {
            for (int64_t chunk = 1; chunk < chunks; chunk++)
                for (int64_t k = i * size / parts; k < (i + 1) * size / parts; k++) sums[k] += sums[chunk * size + k];
        });
        std::copy(sums.data() + packed_size<Floats>(), sums.data() + packed_size<Floats>() + g.out, bias);
        in_parallel(g.phases[0].offsets, threads, parallel, [&](int64_t u) {
            unpack(u, sums.data(), out_stride, in_stride, index, weight);
        });
    }

    void unpack(int64_t u, const float* sums, int64_t out_stride, int64_t in_stride, const int64_t* index,
                float* weight) const {
        const int64_t total = g.phases[0].offsets * g.in;
        const int64_t* to = index + g.phases[0].number(u, S::order) * S::order;
        for (int64_t o = 0; o < g.out; o += GRANULE) {  // so many output features at once
            const int64_t lanes = std::min<int64_t>(g.out - o, GRANULE);
            for (int64_t c = 0; c < g.in; c++) {
                Vector<GRANULE> in[WEIGHTS], w[S::order];
                const float* from = sums;
                for (int j = 0; j < S::jobs; j++) {
                    const Job job = S::job[j];
                    const int64_t columns = job.columns * out_pitch;
                    for (int p = 0; p < job.parts; p++)
                        for (int a = 0; a < job.columns; a++)
                            in[counts.weight[j] + p * job.columns + a] =
                                load<GRANULE>(from + (p * total + u * g.in + c) * columns + a * out_pitch + o);
                    from += job.parts * total * columns;
                }
                S::unweights(in, w);
                for (int s = 0; s < S::order; s++)
                    for (int64_t lane = 0; lane < lanes && to[s] >= 0; lane++)
                        weight[(o + lane) * out_stride + c * in_stride + to[s]] = w[s][lane];
            }
        }
    }
};

}  // namespace
