"""A ledger in plain floats, written from "The rules, exactly" of docs/life_of_a_bar.md alone.

It reads a panel as columns of numbers and a configuration as its written settings; of stormsail it
imports nothing. The paragraphs of the page are the functions here.
"""

import math

DAY_MS = 86_400_000
MINUTE_MS = 60_000
ROUNDING = 2.0**-52


def steps_down(value, step):
    """Cut down to whole steps; within 64 roundings of a whole number it is that number."""
    if step == 0.0:
        return value
    quotient = value / step
    whole = round(quotient)
    if abs(quotient - whole) <= 64 * ROUNDING * abs(quotient):
        return whole * step
    return math.floor(quotient) * step


def between(weight, low, high):
    return max(low, min(high, weight))


def in_window(ts, no_trade):
    minute = ts % DAY_MS // MINUTE_MS
    for window in no_trade["daily"]:
        start, end = (int(part[:2]) * 60 + int(part[3:]) for part in window.split("-"))
        if start < end and start <= minute < end:
            return True
        if start > end and (minute >= start or minute < end):
            return True
    for start, end in no_trade["ranges"]:
        if start.timestamp() * 1000 <= ts < end.timestamp() * 1000:
            return True
    near = no_trade["around_funding_minutes"] * MINUTE_MS
    since = ts % (8 * 60 * MINUTE_MS)
    return near > 0 and min(since, 8 * 60 * MINUTE_MS - since) <= near


def mean_notional(rows, n, window):
    """The mean over the last rows up to t = n - 1, since the symbol's first bar."""
    known = [row for row in rows[max(n - window, 0) : n] if row["listed"]]
    return sum(row["notional"] for row in known) / len(known) if known else 0.0


def last_traded(rows, settings):
    """The symbol's last traded row, if the data go on for long enough after it; else None."""
    alive = [
        k
        for k, row in enumerate(rows)
        if row["bar"] and (row["volume"] > 0.0 or settings["trade_without_volume"])
    ]
    if not alive:
        return None
    silent = rows[-1]["ts"] - rows[alive[-1]]["ts"]
    return alive[-1] if silent >= settings["delisting"]["silent_days"] * DAY_MS else None


class Ledger:
    """One account in one symbol; costs may be those drawn for an episode."""

    def __init__(self, rows, settings, *, first, filters, fee, half_spread, impact):
        self.rows, self.set, self.filters = rows, settings, filters
        self.fee, self.half_spread, self.impact = fee, half_spread, impact
        self.t, self.steps = first, 0
        self.cash, self.quantity, self.entry = settings["initial_equity"], 0.0, 0.0
        self.equity = self.peak = self.day_start = self.cash
        self.day_turnover = 0.0
        self.end_row = last_traded(rows, settings)

    def held_weight(self):
        close = self.rows[self.t]["close"]
        return 0.0 if self.quantity == 0.0 else self.quantity * close / self.equity

    def gate(self, request):
        limits = self.set["limits"]

        def limit(name):
            return math.inf if limits[name] is None else limits[name]

        equity, held = self.equity, self.held_weight()
        low, high = self.set["weight_range"]
        offered = math.isfinite(request) and low <= request <= high
        weight, reason = (request, "NONE") if offered else (held, "NONFINITE")

        def changed(new, name):
            nonlocal weight, reason
            if new != weight:
                reason = reason if reason == "NONFINITE" else name
            weight = new

        changed(between(weight, -limits["max_leverage"], limits["max_leverage"]), "LEVERAGE")
        if equity > 0.0:
            cap = limit("max_position") / equity
            changed(between(weight, -cap, cap), "POSITION")
        left = max(limit("max_turnover") - self.day_turnover, 0.0)
        if weight * held < 0.0:
            cap = max(left - abs(held), 0.0)
            changed(between(weight, -cap, cap), "TURNOVER")
        elif abs(weight) > abs(held):
            changed(between(weight, held - left, held + left), "TURNOVER")
        falls = (
            ("DAILY_LOSS", self.day_start, limit("max_daily_loss")),
            ("DRAWDOWN", self.peak, limit("max_drawdown")),
        )
        for name, base, most in falls:
            if base - equity >= most * base:
                changed(between(weight, min(held, 0.0), max(held, 0.0)), name)
        if equity <= 0.0 or equity < limits["min_equity"]:
            changed(0.0, "BANKRUPT")
        return weight, reason, held

    def slip(self, notional, mean):
        return self.half_spread + (self.impact * math.sqrt(notional / mean) if mean > 0.0 else 0.0)

    def order(self, weight, equity, opened, mean):
        quantity, tick = self.quantity, self.filters["tick"]
        if weight == 0.0:
            return -quantity
        gap = weight * equity - quantity * opened
        if abs(weight - quantity * opened / equity) < self.set["min_rebalance"]:
            return 0.0
        if abs(gap) <= 1e-12 * abs(quantity) * opened:
            return 0.0
        side = math.copysign(1.0, gap)
        reserve = self.slip(abs(gap), mean) + tick / opened
        cost = reserve + self.fee * (1.0 + side * reserve)
        whole = 1.0 + side * weight * cost
        size = abs(gap) / whole / opened if whole > 0.0 else 0.0
        if side * weight < 0.0:
            size = min(size, abs(quantity))
        return side * steps_down(size, self.filters["lot"])

    def fill_price(self, order, opened, mean):
        side = math.copysign(1.0, order)
        price = opened * (1.0 + side * self.slip(abs(order) * opened, mean))
        tick = self.filters["tick"]
        return -steps_down(-price, tick) if side > 0.0 else steps_down(price, tick)

    def blocked(self, row, price, equity, mean):
        frozen = row["volume"] <= 0.0 and not self.set["trade_without_volume"]
        unknown = self.impact > 0.0 and mean <= 0.0
        shut = not row["bar"] or frozen or in_window(row["ts"], self.set["no_trade"])
        return shut or unknown or price <= 0.0 or equity <= 0.0

    def fill(self, order, price):
        held, after = self.quantity, self.quantity + order
        if after == 0.0:
            self.entry = 0.0
        elif held * after <= 0.0:
            self.entry = price
        elif abs(after) > abs(held):
            self.entry = (self.entry * abs(held) + price * abs(order)) / abs(after)
        fee = self.fee * abs(order) * price
        self.cash -= order * price + fee
        lot = self.filters["lot"]
        self.quantity = round(after / lot) * lot if lot > 0.0 else after
        return fee

    def close_out(self, price, rate):
        """Close the position at a price, with a fee as a share of it; return the fee."""
        fee = rate * abs(self.quantity) * price
        self.cash += self.quantity * price - fee
        self.quantity = self.entry = 0.0
        return fee

    def gone(self, price):
        need = self.set["margin"]["maintenance"] * abs(self.quantity) * price
        return self.quantity != 0.0 and self.cash + self.quantity * price <= need

    def step(self, request):
        """Decide at the close of row t; return what the next row did, and whether it ended."""
        before, row = self.rows[self.t], self.rows[self.t + 1]
        n, old_equity = self.t + 1, self.equity
        if row["ts"] // DAY_MS != before["ts"] // DAY_MS:
            self.day_start, self.day_turnover = self.equity, 0.0
        weight, reason, held = self.gate(request)
        opened, mark = row["open"], row["mark"] or (row["open"], row["high"], row["low"])
        liquidation = self.fee + self.set["margin"]["liquidation_fee"]

        rate = row["rate"]
        if not isinstance(self.set["funding_missing"], str):
            rate += self.set["funding_missing"] * row["missing"]
        funding = self.quantity * opened * rate if self.set["funding"] else 0.0
        self.cash -= funding
        equity = self.cash + self.quantity * opened
        mean = mean_notional(self.rows, n, self.set["costs"]["impact_window"])

        fees = slippage = turnover = traded = 0.0
        price, blocked, liquidated = math.nan, False, False
        delisted = self.end_row is not None and n == self.end_row + 1
        if self.gone(mark[0]):
            worse = min if self.quantity > 0.0 else max
            fees += self.close_out(worse(opened, mark[0]), liquidation)
            liquidated = True
        else:
            order = 0.0
            if not (weight == held and reason != "NONE"):
                order = self.order(weight, equity, opened, mean)
            if order != 0.0:
                asked = self.fill_price(order, opened, mean)
                blocked = self.blocked(row, asked, equity, mean) or delisted
                if not blocked and abs(order) * asked >= self.filters["min_notional"]:
                    fees += self.fill(order, asked)
                    traded, price = order, asked
                    turnover = abs(order) * opened / equity
                    slippage = abs(order) * abs(asked - opened)
            if delisted and self.quantity != 0.0:
                last, side = before["close"], math.copysign(1.0, self.quantity)
                lost = max(
                    self.set["delisting"]["loss"], self.slip(abs(self.quantity) * last, mean)
                )
                lost = min(lost, 1.0)
                slippage = lost * abs(self.quantity) * last
                self.close_out(last * (1.0 - side * lost), 0.0)
        self.day_turnover += turnover

        worst = mark[2] if self.quantity > 0.0 else mark[1]
        if self.gone(worst):
            margin = self.set["margin"]["maintenance"] * abs(self.quantity)
            level = -self.cash / (self.quantity - margin)
            worse = min if self.quantity > 0.0 else max
            fees += self.close_out(worse(level, opened, mark[0]), liquidation)
            liquidated = True

        self.equity = self.cash + self.quantity * row["close"]
        self.peak = max(self.peak, self.equity)
        floor = self.set["stops"]["equity_floor"] * self.set["initial_equity"]
        reward = math.log(max(self.equity, floor) / max(old_equity, floor))
        if self.equity <= floor:
            reward -= self.set["ruin_penalty"]
        clip = self.set["reward_clip"]
        reward = reward if clip is None else between(reward, -clip, clip)
        stop = self.set["stops"]["drawdown"]
        fell = stop is not None and (
            self.equity <= (1.0 - stop) * self.peak + 4 * ROUNDING * self.peak
        )
        terminated = self.equity <= floor or fell or delisted
        self.t, self.steps = n, self.steps + 1
        return {
            "equity": self.equity,
            "cash": self.cash,
            "quantity": self.quantity,
            "entry_price": self.entry,
            "price": price,
            "traded": traded,
            "fee_total": fees,
            "slippage": slippage,
            "funding": funding,
            "turnover": turnover,
            "liquidated": liquidated,
            "blocked": blocked,
            "delisted": delisted,
            "reason": reason,
            "reward": reward,
            "terminated": terminated,
            "truncated": not terminated and self.steps >= self.set["episode_bars"],
        }
