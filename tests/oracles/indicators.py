"""Indicators bar by bar in plain float64 Python, from their definitions.

A function of a history returns one number a bar, NaN before its first full window. Recursive ones
start from their first value, as their inventors did, and are compared after a long burn-in.
"""

import math

import numpy as np


def window_sum(x, n):
    return [math.fsum(x[t - n + 1 : t + 1]) for t in range(n - 1, len(x))]


def window_variance(x, n, ddof):
    result = []
    for t in range(n - 1, len(x)):
        part = [float(v) for v in x[t - n + 1 : t + 1]]
        mean = math.fsum(part) / n
        result.append(math.fsum((v - mean) ** 2 for v in part) / (n - ddof))
    return result


def window_extreme(x, n, choose):
    return [choose(x[t - n + 1 : t + 1]) for t in range(n - 1, len(x))]


def decayed_sum(x, d, n):
    return [math.fsum(d**k * float(x[t - k]) for k in range(n)) for t in range(n - 1, len(x))]


def recursive_mean(x, weight):
    """y = (1 - weight) y + weight x, from the first value on."""
    result = [float(x[0])]
    for value in x[1:]:
        result.append((1.0 - weight) * result[-1] + weight * float(value))
    return result


def log_return(p, h):
    return [math.log(p[t]) - math.log(p[t - h]) for t in range(h, len(p))]


def realised_volatility(p, n):
    r = log_return(p, 1)
    return [math.sqrt(s / n) for s in window_sum([v * v for v in r], n)]


def parkinson(high, low, n):
    """Parkinson 1980: the mean squared log range over 4 log 2."""
    result = []
    for t in range(n - 1, len(high)):
        total = 0.0
        for k in range(n):
            total += (math.log(high[t - k]) - math.log(low[t - k])) ** 2
        result.append(math.sqrt(total / n / (4.0 * math.log(2.0))))
    return result


def yang_zhang(o, h, l, c, n):  # noqa: E741 - the letters of the paper
    """Yang & Zhang 2000: overnight variance, open-to-close variance, Rogers-Satchell mean."""
    result = []
    k = 0.34 / (1.34 + (n + 1.0) / (n - 1.0))
    for t in range(n, len(c)):
        overnight, inside, rogers = [], [], 0.0
        for i in range(t - n + 1, t + 1):
            overnight.append(math.log(o[i]) - math.log(c[i - 1]))
            u, d = math.log(h[i]) - math.log(o[i]), math.log(l[i]) - math.log(o[i])
            e = math.log(c[i]) - math.log(o[i])
            inside.append(e)
            rogers += u * (u - e) + d * (d - e)
        v_o = window_variance(overnight, n, 1)[0]
        v_c = window_variance(inside, n, 1)[0]
        result.append(math.sqrt(v_o + k * v_c + (1.0 - k) * rogers / n))
    return result


def garch_variance(e, omega, alpha, beta):
    """s[t+1] = omega + alpha e[t]^2 + beta s[t]; the start is the first square."""
    s = float(e[0]) ** 2
    result = []
    for value in e:
        s = omega + alpha * float(value) ** 2 + beta * s
        result.append(s)
    return result


def rsi(c, n):
    gains = [max(c[t] - c[t - 1], 0.0) for t in range(1, len(c))]
    losses = [max(c[t - 1] - c[t], 0.0) for t in range(1, len(c))]
    result = []
    for g, s in zip(recursive_mean(gains, 1 / n), recursive_mean(losses, 1 / n), strict=True):
        result.append(50.0 if g + s == 0.0 else 100.0 - 100.0 / (1.0 + g / s) if s else 100.0)
    return result


def macd(c, fast, slow, signal):
    first = recursive_mean(c, 2 / (fast + 1))
    second = recursive_mean(c, 2 / (slow + 1))
    line = [a - b for a, b in zip(first, second, strict=True)]
    return line, recursive_mean(line, 2 / (signal + 1))


def bollinger(c, n, w):
    position, width = [], []
    for t in range(n - 1, len(c)):
        part = [float(v) for v in c[t - n + 1 : t + 1]]
        mean = math.fsum(part) / n
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in part) / n)
        lower, upper = mean - w * deviation, mean + w * deviation
        position.append(2.0 * (c[t] - lower) / (upper - lower) - 1.0)
        width.append((upper - lower) / mean)
    return position, width


def true_range(h, l, c):  # noqa: E741
    return [max(h[t] - l[t], abs(h[t] - c[t - 1]), abs(l[t] - c[t - 1])) for t in range(1, len(c))]


def atr(h, l, c, n):  # noqa: E741
    return recursive_mean(true_range(h, l, c), 1 / n)


def cci(h, l, c, n):  # noqa: E741
    typical = [(h[t] + l[t] + c[t]) / 3.0 for t in range(len(c))]
    result = []
    for t in range(n - 1, len(c)):
        part = typical[t - n + 1 : t + 1]
        mean = math.fsum(part) / n
        deviation = math.fsum(abs(v - mean) for v in part) / n
        result.append((typical[t] - mean) / (0.015 * deviation))
    return result


def obv_change(c, v, n):
    level = [0.0]
    for t in range(1, len(c)):
        level.append(level[-1] + float(np.sign(c[t] - c[t - 1])) * float(v[t]))
    return [level[t] - level[t - n] for t in range(n, len(c))]


def relative_volume(v, n):
    return [
        math.log(0.5 + 0.5 * v[t] * n / math.fsum(v[t - n + 1 : t + 1]))
        for t in range(n - 1, len(v))
    ]


def signed_share(part, whole, n):
    result = []
    for t in range(n - 1, len(part)):
        bought = math.fsum(part[t - n + 1 : t + 1])
        rest = math.fsum(whole[t - n + 1 : t + 1]) - bought
        result.append((bought - rest) / (bought + rest))
    return result
