// Rows of an LSTM layer, forward and back, for a CPU and a few sequences side by side.
//
// A row of 4 sequences and 64 units is a product of 0.1 MFLOP and 1,000 squashed numbers: a
// microsecond of work, which calls of operators take several times over. The products are tiles of
// SEQUENCES x COLUMNS sums that stay in registers, over weights that are packed so that a tile reads
// them one after the other. The formulas are those of `functional.recurrence`.

#include "vectors.h"
#include <vector>

namespace {

constexpr int VECTORS = LANES / 4;
constexpr int COLUMNS = VECTORS * LANES;
constexpr int SEQUENCES = 6;  // 12 or 24 sums leave a quarter of the registers for factors

// Columns of a factor [depth, width] side by side in panels of COLUMNS, filled up with zeros.
// `down` and `across` are its strides.
std::vector<float> packed(const float* factor, long depth, long width, long down, long across) {
    const long panels = (width + COLUMNS - 1) / COLUMNS;
    std::vector<float> panel(panels * depth * COLUMNS, 0.0f);
    for (long j = 0; j < width; ++j) {
        float* to = panel.data() + (j / COLUMNS) * depth * COLUMNS + j % COLUMNS;
        for (long k = 0; k < depth; ++k) to[k * COLUMNS] = factor[k * down + j * across];
    }
    return panel;
}

template <int ROWS>
void tile(const float* left, long depth, const float* panel, const float* add, float* out,
          long stride, long columns) {
    Vector sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = Vector{};
    for (long k = 0; k < depth; ++k) {
        Vector factor[VECTORS];
        for (int v = 0; v < VECTORS; ++v) factor[v] = load(panel + k * COLUMNS + v * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const Vector number = every(left[r * depth + k]);
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += number * factor[v];
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) {
            const long at = r * stride + v * LANES, count = columns - v * LANES;
            if (count <= 0) break;
            if (add) sum[r][v] += load(add + at, count);
            store(out + at, sum[r][v], count);
        }
}

// out [rows, width] = left [rows, depth] times a packed factor, plus `add`, which may be null.
void product(const float* left, long rows, long depth, const std::vector<float>& factor,
             const float* add, float* out, long width) {
    for (long j = 0; j < width; j += COLUMNS) {
        const float* panel = factor.data() + (j / COLUMNS) * depth * COLUMNS;
        for (long r = 0; r < rows; r += SEQUENCES) {
            const float* from = left + r * depth;
            const float* plus = add ? add + r * width + j : nullptr;
            float* to = out + r * width + j;
            switch (rows - r) {
                case 1: tile<1>(from, depth, panel, plus, to, width, width - j); break;
                case 2: tile<2>(from, depth, panel, plus, to, width, width - j); break;
                case 3: tile<3>(from, depth, panel, plus, to, width, width - j); break;
                case 4: tile<4>(from, depth, panel, plus, to, width, width - j); break;
                case 5: tile<5>(from, depth, panel, plus, to, width, width - j); break;
                default: tile<SEQUENCES>(from, depth, panel, plus, to, width, width - j);
            }
        }
    }
}

}  // namespace

// Rows [T, B]: `active` [T, B, 4 H] holds the input part of the gates and is left with the gates;
// weight [4 H, H]; `hidden` and `cell` [B, H] stand before the first row, and `cell` is left with
// that after the last one; initial [2, H]. What is kept for the way back is [T, B, H].
extern "C" void lstm_rows_forward(int64_t rows, int64_t batch, int64_t width, const float* weight,
                                  const float* hidden, float* cell, const uint8_t* reset,
                                  const float* initial, float* active, float* before_h,
                                  float* before_c, float* squashed, float* output) {
    const auto factor = packed(weight, width, 4 * width, 1, width);
    for (long t = 0; t < rows; ++t) {
        const float* last = t ? output + (t - 1) * batch * width : hidden;
        const long at = t * batch * width;
        for (long b = 0; b < batch; ++b) {
            const bool fresh = reset[t * batch + b];
            const float* h = fresh ? initial : last + b * width;
            const float* c = fresh ? initial + width : cell + b * width;
            std::memcpy(before_h + at + b * width, h, sizeof(float) * width);
            std::memcpy(before_c + at + b * width, c, sizeof(float) * width);
        }
        float* gates = active + 4 * at;
        product(before_h + at, batch, width, factor, gates, gates, 4 * width);
        for (long b = 0; b < batch; ++b)
            for (long u = 0; u < width; u += LANES) {
                const long left = width - u, place = at + b * width + u;
                float* gate = gates + 4 * b * width + u;
                const Vector i = sigmoid(load(gate, left));
                const Vector f = sigmoid(load(gate + width, left));
                const Vector g = tanh(load(gate + 2 * width, left));
                const Vector o = sigmoid(load(gate + 3 * width, left));
                const Vector c = f * load(before_c + place, left) + i * g;
                const Vector s = tanh(c);
                store(gate, i, left);
                store(gate + width, f, left);
                store(gate + 2 * width, g, left);
                store(gate + 3 * width, o, left);
                store(cell + b * width + u, c, left);
                store(squashed + place, s, left);
                store(output + place, o * s, left);
            }
    }
}

// `above` [T, B, H] is the gradient of the outputs and `dc` [B, H] that of the last cell; left are
// that of the input part of the gates, of what stood before the first row in `dh` and `dc`, and of
// the initial state [2, H].
extern "C" void lstm_rows_backward(int64_t rows, int64_t batch, int64_t width, const float* weight,
                                   const uint8_t* reset, const float* active,
                                   const float* before_c, const float* squashed,
                                   const float* above, float* grad_gates, float* dh, float* dc,
                                   float* grad_initial) {
    const auto factor = packed(weight, 4 * width, width, width, 1);
    std::memset(dh, 0, sizeof(float) * batch * width);
    std::memset(grad_initial, 0, sizeof(float) * 2 * width);
    for (long t = rows - 1; t >= 0; --t) {
        const long at = t * batch * width;
        float* slopes = grad_gates + 4 * at;
        for (long b = 0; b < batch; ++b)
            for (long u = 0; u < width; u += LANES) {
                const long left = width - u, place = at + b * width + u, own = b * width + u;
                const float* gate = active + 4 * (at + b * width) + u;
                const Vector i = load(gate, left), f = load(gate + width, left);
                const Vector g = load(gate + 2 * width, left), o = load(gate + 3 * width, left);
                const Vector s = load(squashed + place, left);
                const Vector h = load(dh + own, left) + load(above + place, left);
                const Vector c = load(dc + own, left) + h * o * (1.0f - s * s);
                float* slope = slopes + 4 * b * width + u;
                store(slope, c * g * (i * (1.0f - i)), left);
                store(slope + width, c * load(before_c + place, left) * (f * (1.0f - f)), left);
                store(slope + 2 * width, c * i * (1.0f - g * g), left);
                store(slope + 3 * width, h * s * (o * (1.0f - o)), left);
                store(dc + own, c * f, left);
            }
        product(slopes, batch, 4 * width, factor, nullptr, dh, width);
        for (long b = 0; b < batch; ++b) {
            if (!reset[t * batch + b]) continue;
            for (long u = 0; u < width; ++u) {
                grad_initial[u] += dh[b * width + u];
                grad_initial[width + u] += dc[b * width + u];
                dh[b * width + u] = dc[b * width + u] = 0.0f;
            }
        }
    }
}
