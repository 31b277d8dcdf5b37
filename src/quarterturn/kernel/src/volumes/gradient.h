// The gradient to the weights of a group convolution of volumes.
#pragma once
#include <map>

#include "layer.h"

namespace volumes {

constexpr int64_t GRADIENT_MOST = 16;                         // vectors of a tile
constexpr int64_t GRADIENT_ROOM = 32 * 1024 / sizeof(float);  // floats of panels: a first-level cache
constexpr int64_t SUMS_ROOM = 384 * 1024 / sizeof(float);     // and of sums: part of a second-level cache

// Vectors that differ in bit STEP of their number, added up in pairs: lane i then belongs to the vector of that bit of i.
template <int STEP>
INLINE V halved(V a, V b) {
    const auto pick = [&]<int... I>(std::integer_sequence<int, I...>) ALWAYS {
        return __builtin_shufflevector(a, b, (I & STEP ? I - STEP + LANES : I)...) +
               __builtin_shufflevector(a, b, (I & STEP ? I + LANES : I + STEP)...);
    };
    return pick(std::make_integer_sequence<int, LANES>());
}

// Lane i is the sum of all lanes of vector i.
template <int COUNT = LANES>
INLINE V totals(const float* vectors) {
    if constexpr (COUNT == 1) return load<LANES>(vectors);
    else return halved<COUNT / 2>(totals<COUNT / 2>(vectors), totals<COUNT / 2>(vectors + COUNT / 2 * LANES));
}

struct WeightGradient : Layer {
    using Layer::Layer;

    int64_t gradient_tile() const { return std::min<int64_t>(GRADIENT_MOST, vectors()); }

    // The gradient to the products of a plane, tile by tile; zero where there is no output.
    void gather_plane(const float* grad, const float* end, float* products_of, int64_t tiles, float* rows, float* found,
                      float* between) const {
        const int64_t length = vectors() * LANES;
        std::vector<int64_t> where(order);
        for (int64_t h = 0; h < order; h++) where[h] = h * length;
        for (int64_t o = 0; o < out; o++) {
            for (int64_t h = 0; h < order; h++)
                for (int64_t v = 0; v < vectors(); v++) {
                    const float* from = grad + (o * order + h) * target + lanes[v].to;
                    V value{};
                    if (end - from >= LANES)
                        value = load<LANES>(from);
                    else
                        std::memcpy(&value, from, sizeof(float) * lanes[v].count);
                    Bits real;
                    std::memcpy(&real, lanes[v].real, sizeof real);
                    value = reinterpret_cast<V>(reinterpret_cast<Bits>(picked(value, lanes[v].apart)) & real);
                    store<LANES>(rows + h * length + v * LANES, value);
                }
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t begin = t * vectors() / tiles, many = (t + 1) * vectors() / tiles - begin;
                programs[0].run(rows + begin * LANES, where.data(), found, 1, many, between);
                const int64_t* part = gather.data();
                for (const Job& job : jobs)
                    for (int64_t i = 0; i < job.columns * job.rows; i++, part += 2) {
                        float* to = products_of + begin * products * out * LANES +
                                    (job.product * out + (i / job.rows * out + o) * job.rows + i % job.rows) * many * LANES;
                        for (int64_t v = 0; v < many * LANES; v += LANES) {
                            const V value = load<LANES>(found + part[0] * many * LANES + v);
                            store<LANES>(to + v, part[1] < 0 ? -value : value);
                        }
                    }
            }
        }
    }

    // The products of some pairs of a tile: what each is called with, and what is read and added to from where on.
    struct Product {
        Correlate correlate;
        int64_t a, g, sum, high, vectors;
    };
    struct Products {
        std::vector<Product> all[2];  // for tiles of `least` vectors and of one more
        std::vector<int64_t> where;   // of each sum among the weights of these pairs

        Products(const Layer& layer, int64_t count, int64_t least) : where(count * layer.weights * layer.out) {
            int64_t sum = 0;
            for (const Job& job : layer.jobs)
                for (int64_t p = 0; p < job.parts; p++)
                    in_products(count, 1, job.columns * layer.out, [&](int64_t k, int64_t tall, int64_t n, int64_t wide) {
                        for (int64_t more = 0; more < 2; more++) {
                            const int64_t tile = (least + more) * LANES, high = job.rows * tile;
                            const int64_t a = (k * layer.parts + job.part + p * job.rows) * tile;
                            const int64_t g = job.product * layer.out * tile + n * high;
                            all[more].push_back({CORRELATE[tall - 1][wide - 1], a, g, sum * LANES, high, high / LANES});
                        }
                        for (int64_t i = n; i < n + wide; i++)
                            for (int64_t j = k; j < k + tall; j++, sum++)
                                where[sum] = (j * layer.weights + job.weight + p * job.columns) * layer.out + i;
                    });
        }
    };

    // Each task has some offsets of a feature and sees all positions, so that nothing depends on the number of threads.
    void run(const float* x, const float* grad, float* weight, Room& shared, int64_t threads, Parallel parallel) const {
        const int64_t source = product({in, order, axes[0].source, axes[1].source, axes[2].source});
        const float *end = x + batch * source, *grad_end = grad + batch * out * order * target;
        const int64_t most = gradient_tile(), tiles = (vectors() + most - 1) / most, of_pair = weights * out * LANES;
        const int64_t fits = std::clamp<int64_t>(SUMS_ROOM / of_pair, 1, offsets);
        const int64_t wanted = threads == 1 ? 1 : (2 * threads + in - 1) / in;
        const int64_t pieces = std::clamp<int64_t>(std::max((offsets + fits - 1) / fits, wanted), 1, offsets);
        const int64_t largest = (offsets + pieces - 1) / pieces;
        const int64_t deep = std::clamp<int64_t>(GRADIENT_ROOM / (parts * most * LANES), 4, largest);
        const int64_t length = vectors() * LANES, of_plane = length * products * out, held = ring * order * plane;
        const int64_t least = vectors() / tiles;
        std::map<int64_t, Products> cuts;  // by the number of pairs
        for (int64_t piece = 0; piece < pieces; piece++)
            in_equal_pieces((piece + 1) * offsets / pieces - piece * offsets / pieces, deep,
                            [&](int64_t, int64_t count) { cuts.try_emplace(count, *this, count, least); });
        float* products_of = shared.get(axes[0].target * of_plane + LANES);
        std::memset(weight, 0, sizeof(float) * pairs() * weights * out);
        for (int64_t n = 0; n < batch; n++) {
            in_parallel(axes[0].target, threads, parallel, [&](int64_t z) {
                float* start = room_of_this_thread().get(order * length + parts * most * LANES + scratch());
                float *found = start + order * length, *between = found + parts * most * LANES;
                gather_plane(grad + n * out * order * target + z * plane_target, grad_end, products_of + z * of_plane, tiles,
                             start, found, between);
            });
            in_parallel(in * pieces, threads, parallel, [&](int64_t task) {
                const int64_t c = task / pieces, piece = task % pieces;
                const int64_t first = piece * offsets / pieces, last = (piece + 1) * offsets / pieces;
                const int64_t panel = deep * parts * most * LANES, all = (last - first) * of_pair;
                float* start = room_of_this_thread().get(panel + all + LANES * LANES + scratch() + held);
                float *sums = start + panel, *between = sums + all + LANES * LANES;
                Planes read(*this, x + n * source + c * (source / in), end, order, between + scratch());
                std::memset(sums, 0, sizeof(float) * (all + LANES * LANES));
                for (int64_t z = 0; z < axes[0].target; z++) {
                    read.move_to(z);
                    for (int64_t t = 0; t < tiles; t++) {
                        const int64_t begin = t * vectors() / tiles, many = (t + 1) * vectors() / tiles - begin;
                        const float* g = products_of + z * of_plane + begin * products * out * LANES;
                        in_equal_pieces(last - first, deep, [&](int64_t k, int64_t count) {
                            analyse(read, first + k, count, begin, many, start, between);
                            for (const Product& now : cuts.at(count).all[many - least])
                                now.correlate(start + now.a, parts * many * LANES, g + now.g, now.high, now.vectors,
                                              sums + k * of_pair + now.sum);
                        });
                    }
                }
                in_equal_pieces(last - first, deep, [&](int64_t k, int64_t count) {
                    const std::vector<int64_t>& where = cuts.at(count).where;
                    float* to = weight + (c * offsets + first + k) * weights * out;
                    for (int64_t i = 0; i < count * weights * out; i += LANES) {
                        const V total = totals(sums + k * of_pair + i * LANES);
                        for (int64_t j = 0; j < std::min<int64_t>(LANES, count * weights * out - i); j++)
                            to[where[i + j]] += total[j];
                    }
                });
            });
        }
    }
};

}  // namespace volumes
