// Group convolutions of volumes, for any group: what is read from Python, and the forward pass. Lanes of vectors are
// neighbouring positions of a plane; weights are broadcast.
#pragma once
#include <cstring>
#include <span>

#include "../threads.h"
#include "products.h"

namespace volumes {

constexpr int64_t PANEL_ROOM = 40 * 1024 / sizeof(float);  // floats of panels: a first-level cache
constexpr int64_t ENOUGH = 32;                             // pairs of a panel, if a tile of one vector leaves room for them

constexpr int64_t CACHE_LINE = 64 / sizeof(float);

static inline int64_t round(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Memory for what all threads read in a call.
static inline Room& shared_room() {
    static thread_local Room room;
    return room;
}

// --- numbers ---------------------------------------------------------------------------------------------------------

struct Job {
    int64_t rows, parts, columns, part, product, weight;  // the last three: how many are before it
};

// Along an axis: positions that are read, from `low` on; with `share`, neighbouring lines share the zeros between them.
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

// A vector of positions: the lanes that are positions of the output, and where the first of them goes in its plane.
struct Lanes {
    int64_t to = 0, count = 0;
    int32_t together[LANES] = {};  // those lanes, one after the other
    int32_t apart[LANES] = {};     // and back
    int32_t real[LANES] = {};      // -1 for them, else 0
};
using Bits [[gnu::vector_size(LANES * sizeof(float))]] = int32_t;

INLINE V picked(V v, const int32_t (&lanes)[LANES]) {
#if defined(__AVX512F__)
    return reinterpret_cast<V>(_mm512_permutexvar_ps(_mm512_loadu_si512(lanes), reinterpret_cast<__m512>(v)));
#elif defined(__AVX2__) && !defined(QUARTERTURN_WIDE)
    const __m256i index = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
    return reinterpret_cast<V>(_mm256_permutevar8x32_ps(reinterpret_cast<__m256>(v), index));
#else
    V found{};
    for (int i = 0; i < LANES; i++) found[i] = v[lanes[i]];
    return found;
#endif
}

// Lines of memory that are needed soon, asked for some at a time while something else is computed: of `channels`, `step`
// floats apart, some lines each.
struct Soon {
    const float* next;
    int64_t channels, step, lines, line = 0;

    template <bool TO_WRITE>
    void ask(int64_t count) {
        for (; count > 0 && channels > 0; count--) {
            if constexpr (TO_WRITE)
                __builtin_prefetch(next + line * CACHE_LINE, 1);
            else
                __builtin_prefetch(next + line * CACHE_LINE, 0, 2);
            if (++line == lines) line = 0, channels--, next += step;
        }
    }
    int64_t all() const { return channels * lines; }
};

struct Layer {
    int64_t order, batch, in, out, offsets, parts = 0, products = 0, weights = 0;
    std::vector<Job> jobs;
    std::vector<int64_t> gather, place;  // place: for each offset and element, plane, row and column that position 0 reads
    std::vector<Axis> axes;              // planes, rows, columns
    std::vector<Program> programs;       // analysis and synthesis
    std::vector<Lanes> lanes;            // of the vectors of a plane
    int64_t ring, plane, target, plane_target;  // planes at once; floats of a padded one, of an output channel and its planes

    explicit Layer(std::span<const int64_t> numbers) {
        Numbers list(numbers);
        order = list.between(1, 1 << 10, "a group has a wrong order");
        batch = list.size("the batch is negative");
        in = list.size("there are no features", 1);
        out = list.size("there are no output features", 1);
        int64_t from[3], into[3];
        for (int64_t& size : from) size = list.size("a size is negative");
        for (int64_t& size : into) size = list.size("an output size is not positive", 1);
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
        const int64_t count = product({offsets, order, 3}), *places = list.take(count);
        list.end();
        place.assign(places, places + count);
        for (int k = 0; k < 3; k++) {
            int64_t low = place[k], high = place[k];
            for (int64_t i = k; i < count; i += 3) {
                need(std::abs(place[i]) < int64_t{1} << 31, "an offset is too far away");
                low = std::min(low, place[i]), high = std::max(high, place[i]);
            }
            for (int64_t i = k; i < count; i += 3) place[i] -= low;
            axes.emplace_back(from[k], into[k], low, high, k == 2);
        }
        const Axis &planes = axes[0], &rows = axes[1], &columns = axes[2];
        plane_target = product({rows.target, columns.target}), target = product({planes.target, plane_target});
        ring = planes.span - planes.target + 1;
        plane = round(product({rows.span - 1, columns.pitch}) + columns.span + LANES);
        if (plane / LANES % 2 == 0) plane += LANES;  // channels are an odd number of cache lines apart
        product({plane, ring, in, order, 16});
        product({rows.target, columns.pitch + LANES, planes.target, std::max(products, parts), out, 16});
        product({offsets, weights, in, out, 16, LANES});
        for (int64_t first = 0; first < (rows.target - 1) * columns.pitch + columns.target; first += LANES) {
            Lanes& now = lanes.emplace_back();
            for (int i = 0; i < LANES; i++) {
                const int64_t row = (first + i) / columns.pitch, column = (first + i) % columns.pitch;
                if (row >= rows.target || column >= columns.target) continue;
                if (!now.count) now.to = row * columns.target + column;
                now.apart[i] = static_cast<int32_t>(now.count), now.real[i] = -1;
                now.together[now.count++] = i;
            }
        }
    }

    int64_t pairs() const { return offsets * in; }
    int64_t vectors() const { return static_cast<int64_t>(lanes.size()); }  // of a plane
    void check(int64_t x, int64_t y) const {
        need_size(x, product({batch, in, order, axes[0].source, axes[1].source, axes[2].source}), "the input");
        need_size(y, product({batch, out, order, axes[0].target, axes[1].target, axes[2].target}), "the output");
    }
    void check_weight(int64_t size) const { need_size(size, product({pairs(), weights, out}), "the weight"); }
    int64_t scratch() const { return std::max(programs[0].places, programs[1].places) * LANES; }

    // --- the planes that an output plane reads, with zeros around them -----------------------------------------------

    // Rows are copied as whole vectors; the next row, and zeros at the end, are written over what is too much.
    [[gnu::noinline]] void pad(const float* x, const float* end, int64_t channels, int64_t which, float* to) const {
        const Axis &planes = axes[0], &rows = axes[1], &columns = axes[2];
        const int64_t length = columns.length, whole = round(length);
        if (which < planes.left || which >= planes.left + planes.length || !rows.length || !length) {
            std::memset(to, 0, sizeof(float) * channels * plane);
            return;
        }
        const int64_t above = (planes.first() + which - planes.left) * rows.source + rows.first();
        for (int64_t c = 0; c < channels; c++, x += planes.source * rows.source * columns.source, to += plane) {
            const float* from = x + above * columns.source + columns.first();
            float* row = to + rows.left * columns.pitch + columns.left;
            if (c + 4 < channels)  // a few channels ahead
                for (int64_t i = 0; i < rows.length * columns.source; i += CACHE_LINE)
                    __builtin_prefetch(from + 4 * planes.source * rows.source * columns.source + i);
            for (int64_t j = 0; j < rows.length; j++, from += columns.source, row += columns.pitch) {
                if (end - from >= whole)
                    for (int64_t i = 0; i < length; i += LANES) store<LANES>(row + i, load<LANES>(from + i));
                else
                    std::memcpy(row, from, sizeof(float) * length);
                for (int64_t i = length; i < columns.pitch; i++) row[i] = 0;
            }
            row -= columns.pitch;
            for (int64_t i = length; i < whole; i++) row[i] = 0;
        }
    }

    // Planes of some channels, as many as are read at once; `shift` says where each offset and element reads.
    struct Planes {
        const Layer& layer;
        const float *x, *end;
        int64_t channels, next = -1;
        float* held;
        std::vector<int64_t> shift, starts, within;  // starts: of the planes; within: where it reads in its own

        Planes(const Layer& layer, const float* x, const float* end, int64_t channels, float* held)
            : layer(layer), x(x), end(end), channels(channels), held(held), shift(layer.offsets * layer.order), starts(layer.ring) {
            const int64_t* at = layer.place.data();
            for (size_t i = 0; i < shift.size(); i++, at += 3)
                within.push_back(static_cast<int64_t>(i) % layer.order * layer.plane + at[1] * layer.axes[2].pitch + at[2]);
            std::memset(held, 0, sizeof(float) * layer.ring * channels * layer.plane);
        }
        // What the next output plane reads and this one does not.
        Soon following(int64_t z) const {
            const Axis& planes = layer.axes[0];
            const int64_t size = layer.axes[1].source * layer.axes[2].source, from = z + layer.ring - planes.left;
            if (from < 0 || from >= planes.length) return {x, 0, 0, 0};
            return {x + (planes.first() + from) * size, channels, planes.source * size, size / CACHE_LINE + 1};
        }
        // For an output plane; they come in order.
        void move_to(int64_t z) {
            const int64_t size = channels * layer.plane, ring = layer.ring;
            for (int64_t i = std::max(z, next); i < z + ring; i++) layer.pad(x, end, channels, i, held + i % ring * size);
            next = z + ring;
            for (int64_t k = 0; k < ring; k++) starts[k] = (z + k) % ring * size;
            for (size_t i = 0; i < shift.size(); i++) shift[i] = starts[layer.place[3 * i]] + within[i];
        }
    };

    // Panels of some pairs (feature, offset): for each pair all its parts, of each so many vectors of positions.
    void analyse(const Planes& planes, int64_t first, int64_t count, int64_t begin, int64_t many, float* panels,
                 float* between) const {
        for (int64_t k = first; k < first + count;) {
            const int64_t c = k / offsets, u = k % offsets, runs = std::min(offsets - u, first + count - k);
            programs[0].run(planes.held + c * order * plane + begin * LANES, &planes.shift[u * order], panels, runs, many, between);
            k += runs, panels += runs * parts * many * LANES;
        }
    }

    // --- forward -----------------------------------------------------------------------------------------------------

    int64_t tile() const {
        return std::clamp<int64_t>(PANEL_ROOM / (parts * ENOUGH * LANES), 1, MOST_COMPILED);
    }
    int64_t depth(int64_t room, int64_t many) const {
        const int64_t most = std::clamp<int64_t>(room / (parts * many * LANES), 4, pairs());
        const int64_t blocks = (pairs() + most - 1) / most;
        return (pairs() + blocks - 1) / blocks;
    }

    // The products of a tile of so many vectors: what each is called with, and what is read and written from where on.
    struct Product {
        Multiply multiply;
        int64_t a, b, y, parts, high, from, columns, wide;
    };
    struct Products {
        std::vector<Product> all;
        std::vector<int64_t> where;  // for each output feature where its sums are, as the synthesis reads them

        Products(const Layer& layer, int64_t many) : where(layer.out * layer.products) {
            int64_t y = 0, b = 0, next = 0;
            if (!many) return;
            for (const Job& job : layer.jobs) {
                const int64_t columns = job.columns * layer.out, high = job.rows * many * LANES;
                in_products(job.rows, many, columns, [&](int64_t r, int64_t tall, int64_t n, int64_t wide) {
                    if (!r) b = next, next += job.parts * wide;
                    all.push_back({MULTIPLY[tall * many - 1][wide - 1], (job.part + r) * many * LANES, b, y, job.parts, high,
                                   job.weight * layer.out + n, columns, wide});
                    for (int64_t i = n; i < n + wide; i++)
                        for (int64_t k = r; k < r + tall; k++, y += many * LANES)
                            where[i % layer.out * layer.products + job.product + i / layer.out * job.rows + k] = y;
                });
            }
        }

        // The weights of a block of pairs, in the order in which the products read them.
        void pack(const Layer& layer, const float* weight, int64_t count, float* packed) const {
            for (const Product& now : all) {
                float* to = packed + now.b * count;
                for (int64_t p = 0; p < now.parts; p++)
                    for (int64_t k = 0; k < count; k++, to += now.wide)
                        std::copy_n(weight + k * layer.weights * layer.out + now.from + p * now.columns, now.wide, to);
            }
        }
    };

    // Into the output: a vector writes too much where the next one writes again.
    [[gnu::noinline]] void write(const float* turned, const float* bias, int64_t begin, int64_t many, float* y) const {
        for (int64_t o = 0; o < out; o++)
            for (int64_t h = 0; h < order; h++, y += target)
                for (int64_t v = 0; v < many; v++, turned += LANES) {
                    const Lanes& now = lanes[begin + v];
                    const V value = picked(load<LANES>(turned), now.together) + bias[o];
                    if (now.to + LANES <= plane_target)
                        store<LANES>(y + now.to, value);
                    else
                        std::memcpy(y + now.to, &value, sizeof(float) * now.count);
                }
    }

    void forward(const float* x, const float* weight, const float* bias, float* y, Room& shared, int64_t threads,
                 Parallel parallel) const {
        const int64_t source = product({in, order, axes[0].source, axes[1].source, axes[2].source});
        const float* end = x + batch * source;
        const int64_t most = tile(), deep = depth(PANEL_ROOM, most), tiles = (vectors() + most - 1) / most;
        const int64_t held = ring * in * order * plane, panel = deep * parts * most * LANES;
        const int64_t sums = products * out * most * LANES, turned = out * order * most * LANES;
        const int64_t planes = axes[0].target, smallest = vectors() / tiles;  // tiles have this many vectors, or one more
        const Products cuts[2] = {{*this, smallest}, {*this, smallest < most ? smallest + 1 : 0}};
        const int64_t pieces = threads == 1 ? 1 : std::clamp<int64_t>((2 * threads + batch - 1) / std::max<int64_t>(batch, 1), 1, planes);
        const int64_t of_pair = weights * out, all_weights = pairs() * of_pair;
        float* packed = shared.get(2 * all_weights);
        for (int64_t i = 0; i < 2; i++)
            for (int64_t k = 0; k < pairs(); k += deep)
                cuts[i].pack(*this, weight + k * of_pair, std::min(deep, pairs() - k), packed + i * all_weights + k * of_pair);
        in_parallel(batch * pieces, threads, parallel, [&](int64_t task) {
            const int64_t n = task / pieces, piece = task % pieces;
            float* start = room_of_this_thread().get(panel + sums + turned + scratch() + held);
            float *all = start + panel, *out_of = all + sums, *between = out_of + turned;
            Planes read(*this, x + n * source, end, in * order, between + scratch());
            for (int64_t z = piece * planes / pieces; z < (piece + 1) * planes / pieces; z++) {
                read.move_to(z);
                Soon reads = read.following(z);
                const int64_t blocks = (pairs() + deep - 1) / deep, some_reads = reads.all() / (blocks * tiles) + 1;
                float* to = y + n * out * order * target + z * plane_target;
                for (int64_t t = 0; t < tiles; t++) {
                    const int64_t begin = t * vectors() / tiles, many = (t + 1) * vectors() / tiles - begin;
                    Soon writes{to + lanes[begin].to, out * order, target, many * LANES / CACHE_LINE + 1};
                    const int64_t some_writes = writes.all() / blocks + 1;
                    const Products& cut = cuts[many - smallest];
                    const float* ready = packed + (many - smallest) * all_weights;
                    for (int64_t k = 0; k < pairs(); k += deep) {
                        reads.ask<false>(some_reads), writes.ask<true>(some_writes);
                        const int64_t count = std::min(deep, pairs() - k);
                        analyse(read, k, count, begin, many, start, between);
                        for (const Product& now : cut.all)
                            now.multiply(start + now.a, now.high, parts * many * LANES, ready + k * of_pair + now.b * count,
                                         now.parts, count, all + now.y, k == 0);
                    }
                    programs[1].run(all, cut.where.data(), out_of, out, many, between);
                    write(out_of, bias, begin, many, to);
                }
            }
        });
    }
};

}  // namespace volumes
