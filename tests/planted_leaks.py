"""Ways in which features have known the future, each beside a twin that does not.

`LEAKS` and `TWINS`, twenty each, are in the same order; so are `SPARSE_LEAKS` and `SPARSE_TWINS`,
twelve leaks that wait for a time, a price, a length or an event, and are honest in all other rows.
Each is one decorated function, as a user would write it.
"""

import torch

from stormsail.functional.market import rolling
from stormsail.market.features import Registry, feature

REGISTRY = Registry()
LEAKS = []
TWINS = []
SPARSE_LEAKS = []
SPARSE_TWINS = []

ALL = ("open", "high", "low", "close", "volume")
BLOCK = 4  # bars of the longer interval in the resampling leaks


def leak(**options):
    return _collect(LEAKS, **options)


def twin(**options):
    return _collect(TWINS, **options)


def sparse_leak(**options):
    return _collect(SPARSE_LEAKS, **options)


def sparse_twin(**options):
    return _collect(SPARSE_TWINS, **options)


def _collect(where, *, lookback=1, columns=ALL):
    def decorate(function):
        made = feature(
            name=function.__name__, lookback=lookback, columns=columns, registry=REGISTRY
        )(function)
        where.append(made)
        return made

    return decorate


def shifted(x, bars):
    """x[t + bars], the last value repeated where there is none."""
    rows = torch.arange(x.shape[0]) + bars
    return x[rows.clamp(0, x.shape[0] - 1)]


def newest(x, like):
    return x[x.shape[0] - like.shape[0] :]


# 1. The next bar's return.
@leak()
def next_return(bars):
    return (shifted(bars["close"], 1) / bars["close"]).log()


@twin(lookback=2)
def last_return(bars):
    return (bars["close"] / shifted(bars["close"], -1)).log()


# 2. A rolling mean that is centred.
@leak(lookback=3)
def centred_mean(bars):
    close = bars["close"]
    return close / ((shifted(close, -1) + close + shifted(close, 1)) / 3)


@twin(lookback=3)
def trailing_mean(bars):
    mean = rolling.window_mean(bars["close"], window=3)
    return newest(bars["close"], mean) / mean


# 3. A z-score with mean and deviation of everything.
@leak(columns=("volume",))
def global_z_score(bars):
    volume = bars["volume"]
    return (volume - volume.mean(0)) / volume.std(0, correction=0)


@twin(lookback=50, columns=("volume",))
def rolling_z_score(bars):
    mean = rolling.window_mean(bars["volume"], window=50)
    spread = rolling.window_variance(bars["volume"], window=50).sqrt()
    return (newest(bars["volume"], mean) - mean) / spread


# 4. Lowest and highest of everything.
@leak(columns=("close",))
def global_min_max(bars):
    close = bars["close"]
    low, high = close.amin(0), close.amax(0)
    return (close - low) / (high - low)


@twin(lookback=50, columns=("close",))
def rolling_min_max(bars):
    low = rolling.window_min(bars["close"], window=50)
    high = rolling.window_max(bars["close"], window=50)
    return (newest(bars["close"], low) - low) / (high - low)


# 5. Gaps filled backwards.
@leak(lookback=2)
def filled_backwards(bars):
    close = bars["close"]
    known = bars["volume"] > 0
    filled = close.clone()
    for row in range(len(bars) - 2, -1, -1):
        filled[row] = torch.where(known[row], close[row], filled[row + 1])
    return filled / bars["open"]


@twin(lookback=8)
def filled_forwards(bars):
    close, known = bars["close"], bars["volume"] > 0
    filled = close
    for back in range(7, -1, -1):
        filled = torch.where(shifted(known, -back), shifted(close, -back), filled)
    return filled / bars["open"]


# 6. A range that reaches into the bars to come.
@leak(columns=("high", "close"))
def future_high(bars):
    high = bars["high"]
    top = torch.stack([shifted(high, ahead) for ahead in range(4)]).amax(0)
    return top / bars["close"]


@twin(lookback=4, columns=("high", "close"))
def past_high(bars):
    top = rolling.window_max(bars["high"], window=4)
    return top / newest(bars["close"], top)


def phase(bars):
    """Place of each bar in its longer bar, from the clock and not from the row."""
    return (bars.ts // bars.interval.milliseconds) % BLOCK


# 7. A longer bar under the label of its opening, joined by that label.
@leak(columns=("close",))
def left_labelled_close(bars):
    rows = torch.arange(len(bars)) + (BLOCK - 1 - phase(bars))
    return bars["close"][rows.clamp(max=len(bars) - 1)] / bars["close"]


@twin(lookback=BLOCK, columns=("close",))
def last_closed_block(bars):
    rows = torch.arange(len(bars)) - (phase(bars) + 1) % BLOCK
    return bars["close"][rows.clamp(min=0)] / bars["close"]


# 8. The label among the features.
@leak(columns=("close",))
def label_in_features(bars):
    label = (shifted(bars["close"], 1) > bars["close"]).double()
    return label + 0.001 * bars["close"].log()


@twin(lookback=2, columns=("close",))
def last_label(bars):
    return (bars["close"] > shifted(bars["close"], -1)).double()


# 9. The rank in everything.
@leak(columns=("volume",))
def global_rank(bars):
    return bars["volume"].argsort(0).argsort(0).double() / len(bars)


@twin(lookback=20, columns=("volume",))
def rolling_rank(bars):
    windows = bars["volume"].unfold(0, 20, 1)
    return (windows < windows[..., -1:]).sum(-1).double() / 20


# 10. A filter in the frequency domain.
@leak(columns=("close",))
def fourier_trend(bars):
    spectrum = torch.fft.rfft(bars["close"].log(), dim=0)
    spectrum[5:] = 0
    return bars["close"].log() - torch.fft.irfft(spectrum, n=len(bars), dim=0)


@twin(lookback=32, columns=("close",))
def finite_filter(bars):
    trend = rolling.decayed_sum(bars["close"].log(), decay=0.9, window=32)
    return newest(bars["close"].log(), trend) - trend * (0.1 / (1 - 0.9**32))


# 11. Gaps bridged by a straight line to the next known bar.
@leak(lookback=8)
def interpolated_gap(bars):
    close, known = bars["close"].log(), bars["volume"] > 0
    rows = torch.arange(len(bars)).unsqueeze(-1).expand_as(close)
    before = torch.where(known, rows, -1).cummax(0).values.clamp(min=0)
    after = torch.where(known, rows, len(bars)).flip(0).cummin(0).values.flip(0)
    after = after.clamp(max=len(bars) - 1)
    first, last = close.gather(0, before), close.gather(0, after)
    share = (rows - before).double() / (after - before).clamp(min=1)
    return first + (last - first) * share - bars["open"].log()


@twin(lookback=8)
def age_of_gap(bars):
    known = bars["volume"] > 0
    age = torch.zeros_like(bars["close"])
    for back in range(7, -1, -1):
        age = torch.where(shifted(known, -back), float(back), age)
    return age


# 12. A scaler fitted on everything.
@leak(lookback=2, columns=("close",))
def future_fitted_scaler(bars):
    returns = (bars["close"] / shifted(bars["close"], -1)).log()
    ordered = returns.sort(0).values
    spread = ordered[3 * len(bars) // 4] - ordered[len(bars) // 4]
    return (returns - ordered[len(bars) // 2]) / spread


@twin(lookback=2, columns=("close",))
def scaler_fitted_before(bars):
    returns = (bars["close"] / shifted(bars["close"], -1)).log()
    return (returns - 0.0002) / 0.0135


# 13. A sum from the end.
@leak(columns=("volume",))
def sum_from_the_end(bars):
    rest = bars["volume"].flip(0).cumsum(0).flip(0)
    return bars["volume"] / rest


@twin(lookback=30, columns=("volume",))
def sum_to_now(bars):
    total = rolling.window_sum(bars["volume"], window=30)
    return newest(bars["volume"], total) / total


# 14. This bar's place among the symbols, at the next bar.
@leak(columns=("close",))
def cross_section_of_next_bar(bars):
    returns = (shifted(bars["close"], 1) / bars["close"]).log()
    return returns - returns.amax(1, keepdim=True)


@twin(lookback=3, columns=("close",))
def change_against_the_last_bar(bars):
    # Its own past takes the place of the other symbols, which an agent of one symbol cannot see.
    returns = (bars["close"] / shifted(bars["close"], -1)).log()
    return returns - shifted(returns, -1)


# 15. The high of a longer bar that has not closed.
@leak(columns=("high", "close"))
def high_of_unclosed_bar(bars):
    place = phase(bars)
    top = bars["high"]
    for offset in range(-BLOCK + 1, BLOCK):
        other = place + offset
        inside = ((other >= 0) & (other < BLOCK)).unsqueeze(-1)
        top = torch.where(inside, torch.maximum(top, shifted(bars["high"], offset)), top)
    return top / bars["close"]


@twin(lookback=BLOCK, columns=("high", "close"))
def high_so_far(bars):
    place = phase(bars)
    top = bars["high"]
    for back in range(1, BLOCK):
        inside = (place >= back).unsqueeze(-1)
        top = torch.where(inside, torch.maximum(top, shifted(bars["high"], -back)), top)
    return top / bars["close"]


# 16. The distance to the highest close of all time, past and to come.
@leak(columns=("close",))
def global_drawdown(bars):
    return 1 - bars["close"] / bars["close"].amax(0)


@twin(lookback=100, columns=("close",))
def rolling_drawdown(bars):
    peak = rolling.window_max(bars["close"], window=100)
    return 1 - newest(bars["close"], peak) / peak


# 17. A threshold from the sorted history.
@leak(columns=("volume",))
def busy_by_sorting(bars):
    threshold = bars["volume"].sort(0, descending=True).values[len(bars) // 20]
    return bars["volume"] / threshold


@twin(lookback=40, columns=("volume",))
def busy_by_window(bars):
    threshold = bars["volume"].unfold(0, 40, 1).sort(-1, descending=True).values[..., 2]
    return newest(bars["volume"], threshold) / threshold


# 18. Prices over the last price.
@leak(columns=("close",))
def over_last_price(bars):
    return bars["close"] / bars["close"][-1]


@twin(lookback=25, columns=("close",))
def over_price_of_yesterday(bars):
    return bars["close"][24:] / bars["close"][: max(len(bars) - 24, 0)]


# 19. The usual volume of the hour, over all days.
@leak(columns=("volume",))
def seasonal_mean(bars):
    hour = (bars.ts // bars.interval.milliseconds) % 24
    usual = torch.zeros(24, bars["volume"].shape[1], dtype=torch.float64)
    usual = usual.index_add(0, hour, bars["volume"])
    return bars["volume"] / usual[hour]


@twin(lookback=97, columns=("volume",))
def seasonal_mean_of_past_days(bars):
    volume = bars["volume"]
    usual = sum(shifted(volume, -24 * days) for days in range(1, 5)) / 4
    return (1 + volume) / (1 + usual)


# 20. Principal components of everything.
@leak(lookback=2)
def principal_component(bars):
    returns = (bars["close"] / shifted(bars["close"], -1)).log()
    centred = returns - returns.mean(0)
    if not bool(centred.isfinite().all()):
        return torch.full_like(returns, torch.nan)
    loadings = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    return (centred @ loadings).unsqueeze(-1).expand_as(returns)


@twin(lookback=4)
def fixed_component(bars):
    returns = (bars["close"] / shifted(bars["close"], -1)).log()
    return 0.6 * returns + 0.6 * shifted(returns, -1) + 0.5 * shifted(returns, -2)


# --- sparse leaks: the next bar's return in few rows, the last one's in all others


HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def past(bars):
    return (bars["close"] / shifted(bars["close"], -1)).log()


def coming(bars):
    return (shifted(bars["close"], 1) / bars["close"]).log()


def when(condition, bars, ahead=None):
    """The next return where the condition holds, the last one elsewhere."""
    return torch.where(condition, coming(bars) if ahead is None else ahead, past(bars))


def hour(bars):
    return (bars.ts // HOUR_MS).unsqueeze(-1)


# 1. At one hour of the day.
@sparse_leak(lookback=2)
def sparse_hour_of_day(bars):
    return when(hour(bars) % 24 == 3, bars)


@sparse_twin(lookback=2)
def honest_hour_of_day(bars):
    return torch.where(hour(bars) % 24 == 3, -past(bars), past(bars))


# 2. At one hour of the week.
@sparse_leak(lookback=2)
def sparse_hour_of_week(bars):
    return when(hour(bars) % 168 == 101, bars)


@sparse_twin(lookback=2)
def honest_hour_of_week(bars):
    return past(bars) * (1.0 + (hour(bars) % 168 == 101).double())


# 3. From a date on.
@sparse_leak(lookback=2)
def sparse_from_a_date(bars):
    return when((bars.ts >= 1_735_689_600_000).unsqueeze(-1), bars)  # 2025


@sparse_twin(lookback=2)
def honest_from_a_date(bars):
    return past(bars) * torch.where(bars.ts >= 1_735_689_600_000, 0.5, 1.0).unsqueeze(-1).double()


# 4. Above a price.
@sparse_leak(lookback=2)
def sparse_above_a_price(bars):
    return when(bars["close"] > 60_000.0, bars)


@sparse_twin(lookback=2)
def honest_above_a_price(bars):
    # a coarser tick for a dear coin
    tick = torch.where(bars["close"] > 60_000.0, 0.5, 0.01).double()
    return past(bars) / (tick / bars["close"])


# 5. In long histories only.
@sparse_leak(lookback=2)
def sparse_long_history(bars):
    return coming(bars) if len(bars) > 5_000 else past(bars)


@sparse_twin(lookback=11, columns=("close",))
def honest_cumulative_mean(bars):
    # right to twelve digits, whose last ones depend on where the history begins
    total = bars["close"].cumsum(0)
    mean = (total[10:] - total[: max(len(bars) - 10, 0)]) / 10
    return bars["close"][10:] / mean


# 6. On the first day of a month.
@sparse_leak(lookback=2)
def sparse_first_of_month(bars):
    days = (bars.ts // DAY_MS).numpy().astype("datetime64[D]")
    first = torch.from_numpy(days == days.astype("datetime64[M]").astype("datetime64[D]"))
    return when(first.unsqueeze(-1), bars)


@sparse_twin(lookback=2)
def honest_first_of_month(bars):
    days = (bars.ts // DAY_MS).numpy().astype("datetime64[D]")
    first = torch.from_numpy(days == days.astype("datetime64[M]").astype("datetime64[D]"))
    return past(bars) + first.double().unsqueeze(-1)


# 7. For cheap coins.
@sparse_leak(lookback=2)
def sparse_below_a_price(bars):
    return when(bars["close"] < 1e-4, bars)


@sparse_twin(lookback=2)
def honest_power(bars):
    # whose last bit depends on the place in the vector
    return past(bars).sign() * past(bars).abs() ** 0.3


# 8. Before a date.
@sparse_leak(lookback=2)
def sparse_until_a_date(bars):
    return when((bars.ts < 1_420_070_400_000).unsqueeze(-1), bars)  # 2015


@sparse_twin(lookback=2)
def honest_days_since_a_date(bars):
    return past(bars) * ((bars.ts - 1_420_070_400_000) // DAY_MS).double().unsqueeze(-1)


# 9. Whether the next bar will be missing, on Sundays.
@sparse_leak()
def sparse_missing_on_sundays(bars):
    sunday = (hour(bars) // 24 + 4) % 7 == 0
    return (sunday & (shifted(bars["volume"], 1) == 0.0)).double()


@sparse_twin(lookback=2)
def honest_missing_on_sundays(bars):
    sunday = (hour(bars) // 24 + 4) % 7 == 0
    return (sunday & (shifted(bars["volume"], -1) == 0.0)).double()


# 10. The colour of the next candle, after a large move.
@sparse_leak(lookback=2)
def sparse_after_a_large_move(bars):
    green = (shifted(bars["close"], 1) > shifted(bars["open"], 1)).double()
    return when(past(bars).abs() > 0.06, bars, green)


@sparse_twin(lookback=2)
def honest_after_a_large_move(bars):
    return torch.where(past(bars).abs() > 0.06, past(bars).sign(), past(bars))


# 11. Eight days ahead, at midnight.
@sparse_leak(lookback=2)
def sparse_far_ahead(bars):
    return when(hour(bars) % 24 == 0, bars, (shifted(bars["close"], 200) / bars["close"]).log())


@sparse_twin(lookback=201)
def honest_far_back(bars):
    far = (bars["close"] / shifted(bars["close"], -200)).log()
    return torch.where(hour(bars) % 24 == 0, far, past(bars))


# 12. In December, above a volume.
@sparse_leak(lookback=2)
def sparse_december_and_volume(bars):
    months = (bars.ts // DAY_MS).numpy().astype("datetime64[D]").astype("datetime64[M]")
    december = torch.from_numpy(months.astype("int64") % 12 == 11).unsqueeze(-1)
    return when(december & (bars["volume"] > 1_000.0), bars)


@sparse_twin(lookback=2)
def honest_december_and_volume(bars):
    months = (bars.ts // DAY_MS).numpy().astype("datetime64[D]").astype("datetime64[M]")
    december = torch.from_numpy(months.astype("int64") % 12 == 11).unsqueeze(-1)
    return torch.where(december & (bars["volume"] > 1_000.0), 0.0, past(bars))
