// The Fourier transforms of the small groups, with additions only. One structure for each group up to isomorphism:
// the caller numbers its orientations accordingly (structures.py). See docs/decisions/0030.
//
// A layer is y[h] = sum over s of W[s] X[sh]. With irreps rho, X^ = sum rho(t) X[t], W^ = sum W[s] rho(s)^T and
// y[h] = sum d/|G| tr(rho(h)^T y^) it becomes y^ = W^ X^: one matrix product for each irrep, the *jobs* below. The
// factors d/|G| sit in W^. Each structure has five linear maps:
//   analyse      X[t] -> X^, in the order (job, row, part)
//   synthesise   y^, in the order (job, row, column) -> y[h]
//   gather       the transpose of synthesise, for the gradient
//   weights      W[s] -> W^, in the order (job, part, column)
//   unweights    the transpose of weights
// Every sum is a tree along a chain of subgroups, so that turning the input permutes the terms of each addition and
// changes signs, and no bit: that is what makes the layer exactly equivariant.
#pragma once

struct Job {
    int rows, parts, columns;
};

struct Fourier {
    // The sum over orientations of what `gather` gave: the first job is the trivial irrep.
    template <class V> INLINE V total(const V* y) { return y[0]; }
};

struct Order2 : Fourier {
    static constexpr int order = 2, jobs = 2;
    static constexpr Job job[] = {{1, 1, 1}, {1, 1, 1}};
    template <class V> INLINE void analyse(const V* x, V* a) { a[0] = x[0] + x[1], a[1] = x[0] - x[1]; }
    template <class V> INLINE void synthesise(const V* y, V* out) { analyse(y, out); }
    template <class V> INLINE void gather(const V* g, V* y) { analyse(g, y); }
    template <class V> INLINE void weights(const V* w, V* c) { c[0] = (w[0] + w[1]) / 2.0f, c[1] = (w[0] - w[1]) / 2.0f; }
    template <class V> INLINE void unweights(const V* c, V* w) { weights(c, w); }
};

struct Klein : Fourier {  // two commuting flips: element i + 2j is a^i b^j
    static constexpr int order = 4, jobs = 4;
    static constexpr Job job[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    template <class V> INLINE void analyse(const V* x, V* a) {
        const V p = x[0] + x[1], m = x[0] - x[1], q = x[2] + x[3], n = x[2] - x[3];
        a[0] = p + q, a[1] = m + n, a[2] = p - q, a[3] = m - n;
    }
    template <class V> INLINE void synthesise(const V* y, V* out) { analyse(y, out); }
    template <class V> INLINE void gather(const V* g, V* y) { analyse(g, y); }
    template <class V> INLINE void weights(const V* w, V* c) {
        analyse(w, c);
        for (int i = 0; i < 4; i++) c[i] /= 4.0f;
    }
    template <class V> INLINE void unweights(const V* c, V* w) { weights(c, w); }
};

// Quarter turns: element i is r^i. The characters i^t and (-i)^t make one complex product (wr + i wi)(Xr + i Xi).
struct QuarterTurns {
    template <class V> INLINE void analyse(const V* x, V* a) {
        const V p = x[0] + x[2], q = x[1] + x[3];
        a[0] = p + q, a[1] = p - q, a[2] = x[0] - x[2], a[3] = x[1] - x[3];
    }
    template <class V> INLINE void synthesise(V y0, V y1, V re, V im, V* out) {
        const V p = y0 + y1, q = y0 - y1;
        out[0] = p + re, out[1] = q + im, out[2] = p - re, out[3] = q - im;
    }
    template <class V> INLINE void weights(const V* w, V* c) {
        analyse(w, c);
        c[0] /= 4.0f, c[1] /= 4.0f, c[2] /= 2.0f, c[3] /= -2.0f;
    }
    template <class V> INLINE void unweights(const V* c, V* w) { synthesise<V>(c[0] / 4.0f, c[1] / 4.0f, c[2] / 2.0f, c[3] / -2.0f, w); }
};

// The exact form, six units: the four products of the complex one in four sums, which a turn only exchanges.
struct Cyclic4Exact : Fourier {
    static constexpr int order = 4, jobs = 3;
    static constexpr Job job[] = {{1, 1, 1}, {1, 1, 1}, {2, 1, 2}};
    template <class V> INLINE void analyse(const V* x, V* a) { QuarterTurns::analyse(x, a); }
    template <class V> INLINE void synthesise(const V* y, V* out) {
        QuarterTurns::synthesise<V>(y[0], y[1], y[2] - y[5], y[3] + y[4], out);
    }
    template <class V> INLINE void gather(const V* g, V* y) {
        QuarterTurns::analyse(g, y);
        y[4] = y[3], y[5] = -y[2];
    }
    template <class V> INLINE void weights(const V* w, V* c) { QuarterTurns::weights(w, c); }
    template <class V> INLINE void unweights(const V* c, V* w) { QuarterTurns::unweights(c, w); }
};

// Gauss' complex product, five units: k1 = wr (Xr + Xi), k2 = (wi - wr) Xr, k3 = (wr + wi) Xi. Exact to rounding only.
struct Cyclic4Gauss : Fourier {
    static constexpr int order = 4, jobs = 5;
    static constexpr Job job[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    template <class V> INLINE void analyse(const V* x, V* a) {
        V c[4];
        QuarterTurns::analyse(x, c);
        a[0] = c[0], a[1] = c[1], a[2] = c[2] + c[3], a[3] = c[2], a[4] = c[3];
    }
    template <class V> INLINE void synthesise(const V* y, V* out) {
        QuarterTurns::synthesise<V>(y[0], y[1], y[2] - y[4], y[2] + y[3], out);
    }
    template <class V> INLINE void gather(const V* g, V* y) {
        V c[4];
        QuarterTurns::analyse(g, c);
        y[0] = c[0], y[1] = c[1], y[2] = c[2] + c[3], y[3] = c[3], y[4] = -c[2];
    }
    template <class V> INLINE void weights(const V* w, V* c) {
        V e[4];
        QuarterTurns::weights(w, e);
        c[0] = e[0], c[1] = e[1], c[2] = e[2], c[3] = e[3] - e[2], c[4] = e[2] + e[3];
    }
    template <class V> INLINE void unweights(const V* c, V* w) {
        const V e[4] = {c[0], c[1], c[2] - c[3] + c[4], c[3] + c[4]};
        QuarterTurns::unweights(e, w);
    }
};

// Quarter turns and flips: element i + 4j is r^i m^j. Four characters and the 2x2 matrices of the plane.
struct Dihedral4 : Fourier {
    static constexpr int order = 8, jobs = 5;
    static constexpr Job job[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {2, 2, 2}};
    template <class V> INLINE void analyse(const V* x, V* a) {  // columns of X^: (00, 10), (01, 11)
        const V ap = x[0] + x[2], am = x[0] - x[2], bp = x[1] + x[3], bm = x[1] - x[3];
        const V cp = x[4] + x[6], cm = x[4] - x[6], dp = x[5] + x[7], dm = x[5] - x[7];
        const V e = ap + bp, f = cp + dp, h = ap - bp, i = cp - dp;
        a[0] = e + f, a[1] = e - f, a[2] = h + i, a[3] = h - i;
        a[4] = am + cm, a[5] = bm + dm, a[6] = dm - bm, a[7] = am - cm;
    }
    template <class V> INLINE void synthesise(const V* y, V* out) {
        const V p = y[0] + y[1], q = y[0] - y[1], r = y[2] + y[3], s = y[2] - y[3];
        const V e = p + r, o = p - r, fe = q + s, fo = q - s;
        const V d = y[4] + y[7], c = y[5] - y[6], md = y[4] - y[7], mc = y[5] + y[6];
        out[0] = e + d, out[1] = o + c, out[2] = e - d, out[3] = o - c;
        out[4] = fe + md, out[5] = fo + mc, out[6] = fe - md, out[7] = fo - mc;
    }
    template <class V> INLINE void gather(const V* g, V* y) { analyse(g, y); }
    template <class V> INLINE void weights(const V* w, V* c) {  // transposed: (00, 01), (10, 11)
        analyse(w, c);
        for (int i = 0; i < 8; i++) c[i] /= i < 4 ? 8.0f : 4.0f;
        const V t = c[5];
        c[5] = c[6], c[6] = t;
    }
    template <class V> INLINE void unweights(const V* c, V* w) {
        const V e[8] = {c[0] / 8.0f, c[1] / 8.0f, c[2] / 8.0f, c[3] / 8.0f,
                        c[4] / 4.0f, c[6] / 4.0f, c[5] / 4.0f, c[7] / 4.0f};
        synthesise(e, w);
    }
};

// Strided windows of one position on even sides: each orientation reads a pixel of its own, with weights that no other
// number meets. X[u, h] is what orientation h multiplies with the u-th weight, so nothing is to be transformed.
struct Apart4 {
    static constexpr int order = 4, jobs = 1;
    static constexpr Job job[] = {{4, 1, 1}};
    template <class V> INLINE void copy(const V* from, V* to) {
        for (int i = 0; i < 4; i++) to[i] = from[i];
    }
    template <class V> INLINE void analyse(const V* x, V* a) { copy(x, a); }
    template <class V> INLINE void synthesise(const V* y, V* out) { copy(y, out); }
    template <class V> INLINE void gather(const V* g, V* y) { copy(g, y); }
    template <class V> INLINE V total(const V* y) { return (y[0] + y[2]) + (y[1] + y[3]); }
    template <class V> INLINE void weights(const V* w, V* c) { c[0] = w[0]; }
    template <class V> INLINE void unweights(const V* c, V* w) { w[0] = c[0], w[1] = w[2] = w[3] = V{}; }
};

// The same with flips: orientations 2j and 2j + 1 read the same pixel, and a flip exchanges them and both weights.
struct Apart8 {
    static constexpr int order = 8, jobs = 2;
    static constexpr Job job[] = {{4, 1, 1}, {4, 1, 1}};
    template <class V> INLINE void analyse(const V* x, V* a) {
        for (int j = 0; j < 4; j++) a[j] = x[2 * j] + x[2 * j + 1], a[4 + j] = x[2 * j] - x[2 * j + 1];
    }
    template <class V> INLINE void synthesise(const V* y, V* out) {
        for (int j = 0; j < 4; j++) out[2 * j] = y[j] + y[4 + j], out[2 * j + 1] = y[j] - y[4 + j];
    }
    template <class V> INLINE void gather(const V* g, V* y) { analyse(g, y); }
    template <class V> INLINE V total(const V* y) { return (y[0] + y[2]) + (y[1] + y[3]); }
    template <class V> INLINE void weights(const V* w, V* c) { Order2::weights(w, c); }
    template <class V> INLINE void unweights(const V* c, V* w) {
        Order2::unweights(c, w);
        for (int i = 2; i < 8; i++) w[i] = V{};
    }
};

// The gradient to the input of strided windows on even sides: of each offset one orientation is read, the first, and
// meets a weight for every orientation of the output.
struct Spread4 : Fourier {
    static constexpr int order = 4, jobs = 1;
    static constexpr Job job[] = {{1, 1, 4}};
    template <class V> INLINE void analyse(const V* x, V* a) { a[0] = x[0]; }
    template <class V> INLINE void synthesise(const V* y, V* out) { Apart4::copy(y, out); }
    template <class V> INLINE void gather(const V* g, V* y) { Apart4::copy(g, y); }
    template <class V> INLINE void weights(const V* w, V* c) { Apart4::copy(w, c); }
    template <class V> INLINE void unweights(const V* c, V* w) { Apart4::copy(c, w); }
};

// How many analysed parts, products and weights a structure has, and where those of each job begin.
template <class S>
struct Counts {
    int part[S::jobs + 1] = {}, product[S::jobs + 1] = {}, weight[S::jobs + 1] = {}, row[S::jobs + 1] = {};
    constexpr Counts() {
        for (int j = 0; j < S::jobs; j++) {
            part[j + 1] = part[j] + S::job[j].rows * S::job[j].parts;
            product[j + 1] = product[j] + S::job[j].rows * S::job[j].columns;
            weight[j + 1] = weight[j] + S::job[j].parts * S::job[j].columns;
            row[j + 1] = row[j] + S::job[j].rows;
        }
    }
    constexpr int parts() const { return part[S::jobs]; }
    constexpr int products() const { return product[S::jobs]; }
    constexpr int weights() const { return weight[S::jobs]; }
    constexpr int rows() const { return row[S::jobs]; }
};
