// Vectors of GCC and Clang, so that the compiler chooses the instructions, and functions of them.
//
// A file of C++ that includes this gets its text (`core.machine_code.cpp`).

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));

inline Vector every(float x) { return Vector{} + x; }

inline Vector load(const float* from, long count = LANES) {
    Vector x{};
    if (count >= LANES) std::memcpy(&x, from, sizeof x);
    else std::memcpy(&x, from, sizeof(float) * count);
    return x;
}

inline void store(float* to, const Vector& x, long count = LANES) {
    if (count >= LANES) std::memcpy(to, &x, sizeof x);
    else std::memcpy(to, &x, sizeof(float) * count);
}

inline double sum(const Vector& x) {
    double total = 0.0;
    for (int lane = 0; lane < LANES; ++lane) total += x[lane];
    return total;
}

inline Vector root(Vector x) {
    for (int lane = 0; lane < LANES; ++lane) x[lane] = std::sqrt(x[lane]);
    return x;
}

// exp(x) - 1 for x in [-87, 87], NaN for NaN: relative error of some 1e-7, for a small x as well.
inline Vector expm1(Vector x) {
    const Vector magic = every(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    Vector whole = (x * 1.44269504f + magic) - magic;
    Vector r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    Vector p = every(1.9841270e-4f);
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r;
    Whole bits = (__builtin_convertvector(whole, Whole) + 127) << 23;
    Vector power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power + (power - 1.0f);
}

inline Vector clamp(Vector x, float size) {  // NaN stays
    x = x > size ? every(size) : x;
    return x < -size ? every(-size) : x;
}

inline Vector sigmoid(Vector x) { return 1.0f / (2.0f + expm1(-clamp(x, 87.0f))); }

inline Vector tanh(Vector x) {
    Vector e = expm1(2.0f * clamp(x, 10.0f));
    return e / (e + 2.0f);
}

}  // namespace
