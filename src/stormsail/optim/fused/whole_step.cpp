// A step of the gradient pipeline over all tensors at once, float32 on a CPU.
//
// Tensors of a small network hold some hundred numbers each, so calls of operators on lists of them
// take most of a step. `measure` is what comes before the optimizer, `draw` its noise, `advance` its
// own step. The formulas are those of `functional.optim` and of the
// eager step, in the order in which that rounds. Sums run over LANES numbers at once, and those of
// BLOCK vectors are added up in double.

#include "vectors.h"
#include <algorithm>
#include <limits>

namespace {

constexpr long BLOCK = 64;

// Rows of whole numbers, one for each tensor; addresses are 0 where there is no such tensor.
struct Measured {
    const float* grad;
    int64_t size;
    int64_t rank;  // in the pipeline
    int64_t row;   // in the scaler
    float* mean;   // of the scaler
};

struct Moved {
    const float* grad;
    int64_t size;
    int64_t group;
    float* param;
    float* utility;
    float* first;  // moments
    float* second;
    float* step;
};

struct Scaling {
    double bound, beta, alpha, eps_rel, warmup, floor, cap, limit, slow_beta;  // slow: 0 for none
};

struct Settings {
    double lr, sigma, weight_decay, lr_compensation, beta_utility, beta1, beta2, eps,
        sign,          // -1 to maximise
        in_gradients,  // 1 if sigma is in units of the gradient
        norm;
};

enum Norm { CENTRED, MINMAX, GLOBAL_MAX, ABS_MAX };  // of `functional.optim.upgd.NORMS`

struct Seen {
    double square, factor, learns;  // from a gradient that the scaler can measure
};

struct Report {
    double refused, nonfinite, raw_norm, clipped_norm, norms[];
};

double mass(double count, double beta) { return count > 0.0 ? 1.0 - std::pow(beta, count) : 1.0; }

double gain(double count, double beta) { return (1.0 - beta) / mass(count, beta); }

double concentration(double count, double beta) {
    if (count <= 0.0) return 1.0;
    return (1.0 - beta) / (1.0 + beta) * (1.0 + std::pow(beta, count)) / mass(count, beta);
}

double noise_variance(double spread, double share) {
    return share < 1.0 ? std::max(spread, 0.0) / (1.0 - share) : 0.0;
}

double moved_median(double median, double value, double step) {
    const double sign = (value > median) - (value < median);
    return median > 0.0 ? median * std::exp(step * sign) : value;
}

double factor(const Scaling& own, double count, double spread, double mean_square, double median) {
    if (count < std::max(own.warmup, 1.0)) return 1.0;
    const double share = concentration(count, own.beta);
    const double variance = noise_variance(spread, share);
    double ratio;
    if (own.slow_beta > 0.0) {
        ratio = median > 0.0 ? variance / median - 1.0 : 0.0;
    } else {
        const double signal = std::max(mean_square - share * variance, 0.0);
        const double level = signal + own.eps_rel * (spread + mean_square);
        ratio = level <= 0.0 ? 0.0 : variance / level;
    }
    ratio = std::min(std::max(ratio, 0.0), own.cap);
    return std::max(1.0 / (1.0 + own.alpha * ratio), own.floor);
}

// Sum of squares, and the largest size of an element unless one is NaN.
void size_up(const float* grad, long size, double& square, float& peak) {
    Vector top{};
    square = 0.0;
    for (long at = 0; at < size;) {
        Vector total{};
        const long end = std::min(size, at + BLOCK * LANES);
        for (; at < end; at += LANES) {
            const Vector g = load(grad + at, size - at);
            const Vector length = g < 0.0f ? -g : g;
            total += g * g;
            top = length > top ? length : top;
        }
        square += sum(total);
    }
    peak = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) peak = std::max(peak, top[lane]);
}

// Move the mean; leave the squared distance before and the square sum after.
void follow(float* mean, const float* grad, long size, float weight, double& before, double& after) {
    before = after = 0.0;
    for (long at = 0; at < size;) {
        Vector distances{}, squares{};
        const long end = std::min(size, at + BLOCK * LANES);
        for (; at < end; at += LANES) {
            const Vector g = load(grad + at, size - at), d = g - load(mean + at, size - at);
            const Vector now = g + (weight - 1.0f) * d;
            distances += d * d;
            squares += now * now;
            store(mean + at, now, size - at);
        }
        before += sum(distances);
        after += sum(squares);
    }
}

// Of bias-corrected utilities, over all tensors.
struct Range {
    float low = std::numeric_limits<float>::infinity();
    float high = -std::numeric_limits<float>::infinity();
    double total = 0.0;
    double count = 0.0;
};

// Advance the utilities of one tensor and take them into the range.
void value(const Moved& own, const Settings& set, float share, float scale, Range& range) {
    const float keep = set.beta_utility, add = set.beta_utility - 1.0;
    Vector low = every(range.low), high = every(range.high);
    for (long at = 0; at < own.size;) {
        Vector total{};
        const long end = std::min(own.size, at + BLOCK * LANES);
        for (; at < end; at += LANES) {
            const long left = own.size - at;
            const Vector rise = load(own.grad + at, left) * share * load(own.param + at, left);
            const Vector utility = load(own.utility + at, left) * keep + rise * add;
            Vector corrected = utility * scale;
            store(own.utility + at, utility, left);
            total += corrected;  // 0 beyond the end
            if (left < LANES)
                for (long lane = left; lane < LANES; ++lane) corrected[lane] = corrected[0];
            low = corrected < low ? corrected : low;
            high = corrected > high ? corrected : high;
        }
        range.total += sum(total);
    }
    for (int lane = 0; lane < LANES; ++lane) {
        range.low = std::min(range.low, low[lane]);
        range.high = std::max(range.high, high[lane]);
    }
    range.count += own.size;
}

// Shift and inverse width of the gate, as `functional.optim.upgd.gate_line`.
void gate_line(const Range& range, Norm norm, float& shift, float& slope) {
    const float low = range.low, high = range.high, spread = high - low;
    const float size = std::max(std::fabs(high), std::fabs(low));
    const float mean = range.total / range.count, middle = 0.5f * (high + low);
    float width;
    switch (norm) {
        case CENTRED: shift = mean, width = std::max(high - mean, mean - low); break;
        case MINMAX: shift = middle, width = 0.5f * spread; break;
        case ABS_MAX: shift = 0.0f, width = size; break;
        default:
            shift = high > 0.0f ? 0.0f : middle;
            width = high > 0.0f ? high : 0.5f * spread;
    }
    const float epsilon = std::numeric_limits<float>::epsilon();
    const float tiny = std::numeric_limits<float>::min();
    slope = spread <= std::max(64.0f * epsilon * size, tiny) ? 0.0f : -1.0f / width;
    if (!(range.total == range.total)) shift = mean;  // NaN, as the smallest and the largest are
}

template <bool MOMENTS, bool NOISY>
void move(const Moved& own, const Settings& set, double share, const Seen& seen, float scale,
          float shift, float slope, const float* noise) {
    const double steps = *own.step;
    const float part = share * set.sign;
    const float first = set.beta1, second = set.beta2, eps = set.eps;
    const float add_first = 1.0 - set.beta1, add_second = 1.0 - set.beta2;
    const float scale_first = 1.0 / mass(steps, set.beta1);
    const float scale_root = 1.0 / std::sqrt(mass(steps, set.beta2));
    const double unit = set.in_gradients > 0.0 ? share * std::sqrt(seen.square / own.size) : 1.0;
    const float sigma = set.sigma * unit;
    const float rate = set.lr * set.lr_compensation * seen.factor;
    const float decay = 1.0 - set.lr * set.weight_decay;
    for (long at = 0; at < own.size; at += LANES) {
        const long left = own.size - at;
        Vector step = load(own.grad + at, left) * part;
        if (MOMENTS) {
            const Vector m = load(own.first + at, left) * first + step * add_first;
            const Vector v = load(own.second + at, left) * second + add_second * step * step;
            store(own.first + at, m, left);
            store(own.second + at, v, left);
            step = m * scale_first / (root(v) * scale_root + eps);
        }
        if (NOISY) step += load(noise + at, left) * sigma;
        const Vector kept = sigmoid((load(own.utility + at, left) * scale - shift) * slope);
        const Vector param = load(own.param + at, left);
        store(own.param + at, param * decay - rate * (kept * step), left);
    }
}

// Random numbers of torch's generator of a CPU: the Mersenne Twister of Matsumoto & Nishimura 1998,
// whose words torch takes one by one. A step draws one for every weight.

constexpr int WORDS = 624, MIDDLE = 397;
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

// What `torch.Generator.get_state` begins with.
struct Twister {
    uint64_t seed;
    int32_t left, seeded;
    uint64_t next;
    uint64_t words[WORDS];
};

inline Words words(const uint32_t* from) {
    Words x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <typename Numbers>
inline Numbers twisted(Numbers here, Numbers after) {
    const Numbers mixed = (here & 0x80000000u) | (after & 0x7fffffffu);
    return (mixed >> 1) ^ ((0u - (after & 1u)) & 0x9908b0dfu);
}

// The next words from `first` to `last`, of which those at a distance are known already.
void twist(uint32_t* state, int first, int last, int distance) {
    int j = first;
    for (; j + LANES <= last; j += LANES) {
        const Words x = words(state + j + distance) ^ twisted(words(state + j), words(state + j + 1));
        std::memcpy(state + j, &x, sizeof x);
    }
    for (; j < last; ++j) state[j] = state[j + distance] ^ twisted(state[j], state[j + 1]);
}

void refresh(uint32_t* state) {
    twist(state, 0, WORDS - MIDDLE, MIDDLE);
    twist(state, WORDS - MIDDLE, WORDS - 1, MIDDLE - WORDS);
    state[WORDS - 1] = state[MIDDLE - 1] ^ twisted(state[WORDS - 1], state[0]);
}

// Numbers in [0, 1) of 24 bits, of all words.
void spread_out(const uint32_t* state, float* uniform) {
    static_assert(WORDS % LANES == 0, "no words are left over");
    for (int j = 0; j < WORDS; j += LANES) {
        Words y = words(state + j);
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        y ^= y >> 18;
        y &= 0xffffffu;
        Whole small;
        std::memcpy(&small, &y, sizeof small);
        store(uniform + j, __builtin_convertvector(small, Vector) * 0x1p-24f);
    }
}

constexpr int HALF = 8;  // torch makes the first of 16 numbers sizes and the others angles
typedef float Eight __attribute__((vector_size(4 * HALF)));
typedef int32_t EightWhole __attribute__((vector_size(4 * HALF)));

template <typename To, typename From>
inline To bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "as many bits");
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// For a normal x > 0; the polynomial of Cephes, as in torch.
inline Eight logarithm(Eight x) {
    const EightWhole own = bits<EightWhole>(x);
    EightWhole power = ((own >> 23) & 0xff) - 126;
    Eight m = bits<Eight>((own & 0x007fffff) | 0x3f000000);  // [1/2, 1)
    const EightWhole low = m < 0.707106781186547524f;
    power += low;  // -1 where it is true
    m = bits<Eight>(bits<EightWhole>(m) & low) + m - 1.0f;
    const Eight e = __builtin_convertvector(power, Eight), z = m * m;
    Eight p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * z - e * 2.12194440e-4f - 0.5f * z;
    return m + p + e * 0.693359375f;
}

// Of an angle in [0, 2 pi]; the polynomials of Cephes, as in torch.
inline void sine_and_cosine(Eight x, Eight& sine, Eight& cosine) {
    EightWhole octant = __builtin_convertvector(x * 1.27323954473516f, EightWhole);
    octant = (octant + 1) & ~1;
    const Eight y = __builtin_convertvector(octant, Eight);
    x = ((x - y * 0.78515625f) - y * 2.4187564849853515625e-4f) - y * 3.77489497744594108e-8f;
    const Eight z = x * x;
    Eight even = z * 2.443315711809948e-5f - 1.388731625493765e-3f;
    even = (even * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
    Eight odd = z * -1.9515295891e-4f + 8.3321608736e-3f;
    odd = (odd * z - 1.6666654611e-1f) * z * x + x;
    const EightWhole swap = (octant & 2) != 0;
    const EightWhole of_sine = (octant & 4) << 29, of_cosine = ((~(octant - 2)) & 4) << 29;
    sine = bits<Eight>(bits<EightWhole>(swap ? even : odd) ^ of_sine);
    cosine = bits<Eight>(bits<EightWhole>(swap ? odd : even) ^ of_cosine);
}

// 16 uniform numbers to as many of N(0, 1), by Box & Muller 1958.
void to_normal(float* sixteen) {
    Eight first, second, sine, cosine;
    std::memcpy(&first, sixteen, sizeof first);
    std::memcpy(&second, sixteen + HALF, sizeof second);
    Eight radius = -2.0f * logarithm(1.0f - first);
    for (int lane = 0; lane < HALF; ++lane) radius[lane] = std::sqrt(radius[lane]);
    sine_and_cosine(second * 6.283185307179586f, sine, cosine);
    first = radius * cosine;
    second = radius * sine;
    std::memcpy(sixteen, &first, sizeof first);
    std::memcpy(sixteen + HALF, &second, sizeof second);
}

// Takes uniform numbers from the words of a state, in order.
class Source {
  public:
    explicit Source(Twister* state) : state_(state) {
        for (int j = 0; j < WORDS; ++j) words_[j] = state->words[j];
        spread_out(words_, uniform_);
    }

    void take(float* to, long count) {
        while (count > 0) {
            if (state_->left == 1) {
                refresh(words_);
                spread_out(words_, uniform_);
                state_->left = WORDS + 1;
                state_->next = 0;
            }
            const long some = std::min<long>(count, state_->left - 1);
            std::memcpy(to, uniform_ + state_->next, sizeof(float) * some);
            state_->left -= some;
            state_->next += some;
            to += some;
            count -= some;
        }
    }

    ~Source() {
        for (int j = 0; j < WORDS; ++j) state_->words[j] = words_[j];
    }

  private:
    Twister* state_;
    uint32_t words_[WORDS];
    float uniform_[WORDS];
};

}  // namespace

// What comes before the step, of `count` tensors: norms, guard, clip and, where `scaled`, the
// statistics and factors of the scaler, whose rows follow. Nothing changes in a refused step but
// its count of gradients that are not finite.
extern "C" void measure(int64_t count, int64_t scaled, const Measured* places, const Scaling* scaling,
                        int64_t* counts, double* spread, double* mean_square, int64_t* nonfinite,
                        int64_t* steps, double* largest, double* median, Seen* seen,
                        Report* report) {
    const Scaling& own = *scaling;
    double total = 0.0, top = 0.0;
    long bad = 0, learned = 0;
    for (long i = 0; i < count; ++i) {
        float peak;
        size_up(places[i].grad, places[i].size, seen[i].square, peak);
        const bool is_finite = std::isfinite(static_cast<float>(seen[i].square));
        const bool learns = peak <= own.limit && seen[i].square == seen[i].square;
        bad += !is_finite;
        learned += learns;
        total += seen[i].square;
        seen[i].factor = 1.0;
        seen[i].learns = learns;
        report->norms[places[i].rank] = std::sqrt(seen[i].square);
        if (scaled && !learns) ++nonfinite[places[i].row];
        if (learns) top = std::max(top, static_cast<double>(peak));
    }
    report->refused = bad > 0;
    report->nonfinite = bad;
    report->raw_norm = report->clipped_norm = std::sqrt(total);
    if (bad > 0) return;
    if (own.bound > 0.0)
        report->clipped_norm *= std::min(own.bound / (report->raw_norm + 1e-6), 1.0);
    for (long i = 0; scaled && i < count; ++i) {
        const Measured& place = places[i];
        const long row = place.row;
        if (seen[i].learns > 0.0) {
            const double weight = gain(++counts[row], own.beta), size = place.size;
            double before, after;
            follow(place.mean, place.grad, place.size, weight, before, after);
            spread[row] = (1.0 - weight) * (spread[row] + weight * (before / size));
            mean_square[row] = after / size;
            if (own.slow_beta > 0.0) {
                const double later = counts[row] - std::max(own.warmup, 1.0);
                const double variance =
                    noise_variance(spread[row], concentration(counts[row], own.beta));
                const double step = gain(std::max(later + 1.0, 1.0), own.slow_beta);
                median[row] = later > 0.0 ? moved_median(median[row], variance, step) : variance;
            }
        }
        seen[i].factor = factor(own, counts[row], spread[row], mean_square[row], median[row]);
    }
    if (scaled && learned > 0) *largest += gain(++*steps, own.beta) * (top - *largest);
}

// The step of `count` tensors in groups of settings; `noise` holds one draw for every element, or
// nothing where `noisy` is 0.
extern "C" void advance(int64_t count, int64_t noisy, const Moved* places, const Settings* settings,
                        const Seen* seen, const Report* report, const float* noise) {
    const double share = report->raw_norm > 0.0 ? report->clipped_norm / report->raw_norm : 1.0;
    Range range;
    for (long i = 0; i < count; ++i) {
        const Settings& set = settings[places[i].group];
        *places[i].step += 1.0f;
        const float scale = 1.0 / mass(*places[i].step, set.beta_utility);
        value(places[i], set, share * set.sign, scale, range);
    }
    for (long i = 0; i < count; ++i) {
        const Moved& own = places[i];
        const Settings& set = settings[own.group];
        const float scale = 1.0 / mass(*own.step, set.beta_utility);
        float shift, slope;
        gate_line(range, static_cast<Norm>(static_cast<int>(set.norm)), shift, slope);
        const auto take = own.first ? (noisy ? move<true, true> : move<true, false>)
                                    : (noisy ? move<false, true> : move<false, false>);
        take(own, set, share, seen[i], scale, shift, slope, noise);
        if (noisy) noise += own.size;
    }
}

// Fill `out` with `count` draws of N(0, 1), at least 16, as `Tensor.normal_` does; the state of the
// generator goes on as it would there.
extern "C" void draw(int64_t count, Twister* state, float* out) {
    Source source(state);
    source.take(out, count);
    for (long at = 0; at + 2 * HALF <= count; at += 2 * HALF) to_normal(out + at);
    if (count % (2 * HALF) == 0) return;
    out += count - 2 * HALF;  // the last ones anew
    source.take(out, 2 * HALF);
    to_normal(out);
}
