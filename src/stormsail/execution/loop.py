"""The trading loop: from the close of a bar to the order, and from the fill to the next close.

Each bar: closed bars arrive, accounts are brought to the close, the agent decides, the gates judge,
intents go to disk, orders are sent, fills booked, stops placed, the operator told. The clock is an
argument. Nothing here repeats an order; what is not known is asked for until it is.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from stormsail import __version__
from stormsail.core.clock import Clock, SystemClock, iso
from stormsail.core.errors import VenueError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.loop import Decision
from stormsail.execution.config import TradingConfig
from stormsail.execution.decisions.bar_window import settled_at
from stormsail.execution.decisions.closing import Accounts
from stormsail.execution.decisions.feed import BarFeed, instrument
from stormsail.execution.decisions.path import DecisionPath, Opening, Setup
from stormsail.execution.decisions.standing import (
    Decided,
    Standing,
    decision_rows,
    panel_records,
    read_standing,
    snapshot_of,
)
from stormsail.execution.decisions.tail_limits import (
    TailWatch,
    account_cvar,
    level_index,
    log_growth,
    restored_watch,
)
from stormsail.execution.journal import Journal
from stormsail.execution.kill_switch import KillSwitch, Trip
from stormsail.execution.margin import agreed_margin, margin_document
from stormsail.execution.operator.status import Health, Observer, Teller
from stormsail.execution.order_gate import OrderGate, Refusal
from stormsail.execution.orders.placing import Placing
from stormsail.execution.paper_venue import PaperVenue
from stormsail.execution.protection import OrderNames, Protector
from stormsail.execution.reconcile import (
    Reconciled,
    changes_of,
    check_capital,
    present_markets,
    reconcile,
    update_fills,
)
from stormsail.execution.venue import (
    BarClosed,
    Event,
    Market,
    OrderChanged,
    StreamInterrupted,
    Venue,
)
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.simulator.account import State, held_weight
from stormsail.modules.agent import Agent

Ending = Literal["killed", "left", "finished"]
"""Ended by the kill switch, by a signal, or after the bars that were asked for."""


class TradingLoop:
    """One agent, one account, S symbols.

    Args:
        agent: that decides.
        venue: a `PaperVenue`, or a real one.
        journal: of the account, open for writing.
        switch: its kill switch.
        config: the operator's limits.
        symbols: to trade, each with an equal part of the capital.
        capital: in quote currency.
        clock: this machine's, or a virtual one.
        observers: told of every snapshot and notice.
        shifts: conformal correction of each predicted quantile, from `conformal_shift_of`.
        notes: recorded with the session, such as the verdict on the agent.
    """

    def __init__(
        self,
        agent: Agent,
        venue: Venue,
        journal: Journal,
        switch: KillSwitch,
        config: TradingConfig,
        *,
        symbols: Sequence[str],
        capital: float,
        clock: Clock,
        observers: Sequence[Observer] = (),
        shifts: Sequence[float] = (),
        notes: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self._agent, self._venue, self._journal, self._switch = agent, venue, journal, switch
        self.config, self.symbols, self.capital = config, tuple(symbols), capital
        self._clock, self._shifts = clock, tuple(shifts)
        self._notes, self._machine = dict(notes or {}), SystemClock()
        self.teller = Teller(journal, clock, observers)
        bounds = config.limits.resolved(capital)
        self.gate = OrderGate(venue, journal, switch, bounds, symbols, clock)
        self._interval = Interval.parse(str(agent.binding.values.get("interval", "")))
        self.feed = BarFeed(venue, symbols, self._interval, clock, config.feed)
        self._standing: Standing | None = None
        self._undecided: int | None = None
        self._leaving = self._interrupted = False
        self._recorded_ms: int | None = None
        self._refusals: Sequence[Refusal | None] = ()
        self._sent_ms = self._journal_ms = 0.0

    def leave(self) -> None:
        """End after what is being done now; positions stay, with their stops."""
        self._leaving = True

    @property
    def standing(self) -> Standing | None:
        """What was decided last."""
        return self._standing

    # Start-up

    def start(self) -> None:
        """Recover: compare journal and venue, rebuild accounts and memory, then be ready.

        Raises:
            ConfigError: if clock, agent or account do not fit.
            DataError: if the journal is another's, or bars are missing.
            VenueError: if the venue does not answer, or a symbol is not traded.
        """
        venue_state = reconcile(
            self._venue, self._journal, self.symbols, self._clock, self.config.feed
        )
        self._margin = agreed_margin(
            self._venue, self.symbols, self.config.margin, self.config.limits.max_leverage
        )
        self.feed.offset_ms = venue_state.offset_ms
        short = self.feed.window(venue_state.markets, rows=2)
        burn_in = self.config.feed.burn_in
        self.setup = Setup.of(self._agent, short.panel, capital=self.capital, burn_in=burn_in)
        self.window = self.feed.window(venue_state.markets, rows=self.setup.rows)
        self.path = DecisionPath(self.setup)
        self._build(venue_state.markets)
        self._watch = self._tail_watch()
        newest = self._journal.rows("SELECT max(ts) FROM bars")[0][0]
        after = None if newest is None else int(str(newest))
        self._begin(venue_state)
        self._journal.add_bars(panel_records(self.window.panel, after, self._now_ms()))
        self._recorded_ms = self.window.newest
        self._take_up(venue_state)
        if self._venue.capabilities.streams:
            self._venue.watch(self.symbols, self._interval)
        self.gate.ready = True
        if self._standing is not None and self.placing.protector.on:
            self.placing.after_fills(self._standing)
        strangers = f", {count} orders of others" if (count := len(venue_state.strangers)) else ""
        words = f"{len(self.symbols)} symbols, clock {venue_state.offset_ms:+.0f} ms{strangers}"
        self.teller.tell("ready", words, "info")

    def _build(self, markets: Mapping[str, Market]) -> None:
        names = OrderNames(self._venue.account_id(), self.setup.digest, self._journal)
        protection = self.config.protection
        protector = Protector(self._venue, self.gate, self._journal, names, protection, self._clock)
        self.placing = Placing(
            self._venue,
            self._journal,
            self.gate,
            protector,
            names,
            self.teller,
            self._clock,
            self.symbols,
            self._interval.milliseconds,
            self.capital,
            markets,
            self.data_age_bars,
            not isinstance(self._venue, PaperVenue),
        )
        self.accounts = Accounts(
            self._venue, self._journal, self.path, self._clock, self.config.feed, self.teller
        )
        self.accounts.fill_paper(lambda: self._standing)
        self.accounts.beside = (self.placing.look,)

    def _begin(self, venue_state: Reconciled) -> None:
        """Record who trades what, with which limits: all that a replay needs."""
        markets = venue_state.markets.items()
        terms: JsonValue = {own: instrument(market).terms.document() for own, market in markets}
        self._journal.begin_session(
            mode=self._journal.meta("mode"),
            agent=self.setup.digest,
            settings={
                "symbols": list(self.symbols),
                "capital": self.capital,
                "burn_in": self.config.feed.burn_in,
                "risk_horizon": self.setup.risk_horizon,
                "window": self.setup.rows,
                "instruments": terms,
                "margin": margin_document(self._margin),
                "config": self.config.model_dump(mode="json"),
                **self._notes,
            },
            version=__version__,
            host=socket.gethostname(),
            now_ms=self._now_ms(),
        )

    def _tail_watch(self) -> TailWatch | None:
        horizon = self.setup.risk_horizon
        if horizon is None or self._agent.spec.critic.kind != "quantile":
            return None
        gamma = float(self._agent.binding.values["gamma"])  # type: ignore[arg-type]
        level = level_index(self.setup.agent.levels.numpy(), self.config.tail.alpha)
        return TailWatch(horizon, gamma, level, self._shifts[level] if self._shifts else 0.0)

    def _take_up(self, venue_state: Reconciled) -> None:
        """Go on where the journal left off, or open new accounts."""
        saved, panel = self._journal.checkpoint(), self.window.panel
        if saved is None:
            if not isinstance(self._venue, PaperVenue):
                prices = dict(zip(self.symbols, panel.close[-1].tolist(), strict=True))
                check_capital(venue_state, prices, self.capital)
            held, markets = venue_state.positions, venue_state.markets
            self._opened = self.accounts.opened(panel.close[-1], held, markets)
            self.path.warm(panel)
            self._undecided = self.window.newest
            return
        ts, document, memory, generator = saved
        self.path.restore(document, memory, generator)
        self._standing = read_standing(self._journal, self.path, ts)
        if self._watch is not None:
            length = self._interval.milliseconds
            self._watch = restored_watch(self._watch, self._journal, self.symbols, ts, length)
        missed = (self.window.newest - ts) // self._interval.milliseconds
        self.teller.tell("restored", f"from {iso(ts)}, {missed} bars since", "info")
        if missed >= self.config.feed.burn_in + 1:
            self.path.warm(panel)  # too long away: what it remembered is of another time
        self._catch_up([own for own in panel.ts.tolist() if own > ts])

    def _catch_up(self, times: Sequence[int]) -> None:
        """Bring accounts over bars that closed while nobody was here; the agent reads them.

        The venue is asked once: what happened meanwhile is booked at the first of them, however
        many there are. The newest bar is left to be decided on, as if nothing had happened.
        """
        for ts in times[:-1]:
            panel = self.window.panel.between(0, ts + 1)
            state, stopped = self._closed(panel, asks=ts == times[0])
            step = self._step()
            if len(panel.ts) >= self.setup.terms.features.lookback:
                self.path.read(self.path.observe(panel, state, step))
            self._carry(ts, step, state, stopped)
        self._undecided = times[-1] if times else None

    def _carry(self, ts: int, step: int, state: State, stopped: Tensor) -> None:
        """Go over a bar on which nothing is decided: nothing is requested."""
        nothing = torch.full_like(state.equity, torch.nan)
        shut = self.path.shut(state, ts)
        standing = self._decided_standing(ts, step, state, nothing, stopped, shut)
        rows = decision_rows(
            standing,
            self.symbols,
            None,
            [None] * len(self.symbols),
            session=self._journal.session,
            trading_state=self.gate.state,
            now_ms=self._now_ms(),
        )
        with self._journal.transaction():
            self._journal.add_decisions(rows)
            self._journal.put_checkpoint(ts, *self.path.saved())
        self._standing = standing

    # The loop

    def run(self, *, bars: int | None = None) -> Ending:
        """Trade until the kill switch is tripped, or so many bars are done."""
        done = 0
        try:
            if self._undecided is not None and not self._switch.tripped():
                self._undecided = None
                self._decide()
                done += 1
            while (bars is None or done < bars) and not self._leaving:
                if not self._next_bar():
                    break
                done += 1
            if self._switch.tripped():
                return self._killed()
            return "left" if self._leaving else "finished"
        finally:
            self.teller.beat(ended=True)

    def _next_bar(self) -> bool:
        """Wait for the next bar and decide on it; False once the kill switch is tripped."""
        ts = self.window.newest + self._interval.milliseconds
        while True:
            try:
                self._check_clock()
                self._refresh_markets()
                self.accounts.settle_all()
                rows = self.feed.collect(ts, self._idle, self._ahead)
                if rows is None:
                    return False
                rates = self.feed.due_rates(ts)
                break
            except VenueError as error:
                if self.gate.reasons.get("venue") != error.wrong:
                    self.teller.tell("venue-silent", str(error), "alarm")
                self.gate.reduce_only("venue", error.wrong)
                if not self._answered():
                    return False
        started = self._machine.monotonic_ns()
        self.window.append(rows, rates)
        for symbol in self.symbols:
            if symbol not in rows:
                self.teller.tell("bar-missing", f"no bar at {iso(ts)}", "warning", symbol)
        self._decide()
        self._sent_ms = (self._machine.monotonic_ns() - started) / 1e6
        return True

    def _ahead(self, ts: int) -> None:
        """Ask shortly before a close for what need not be asked between it and the orders."""
        self.feed.ask_ahead(ts)
        self.accounts.ask_ahead()

    def _answered(self) -> bool:
        """Wait until the venue answers, however long it takes; False if trading is to end."""
        while self._idle(self.config.feed.poll_s):
            try:
                self._venue.server_time_ms()
            except VenueError:
                continue
            return True
        return False

    def _check_clock(self) -> None:
        """Allow reducing only while this machine's clock is too far from the venue's."""
        words = self.feed.follow_clock()
        if words is None:
            self.gate.lift("clock")
            return
        if "clock" not in self.gate.reasons:
            self.teller.tell("clock-offset", words, "alarm")
        self.gate.reduce_only("clock", words)

    def _refresh_markets(self) -> None:
        """Ask for the rules of the markets; orders follow them from now on."""
        before = self.placing.markets
        markets = present_markets(self._venue, before)
        for symbol, words, severity in changes_of(before, markets):
            self.teller.tell("market-changed", words, severity, symbol)
        if markets != before:
            self.placing.markets = markets
            terms = {symbol: instrument(market) for symbol, market in markets.items()}
            self.path.follow(replace(self.window.panel, instruments=terms))

    def _decide(self) -> None:
        """Close accounts, decide, order; a venue that does not answer leaves the bar undecided."""
        ts, panel = self.window.newest, self.window.panel
        try:
            state, stopped = self._closed(panel)
        except VenueError as error:
            # unknown is not flat: nothing is decided on a position that nobody could look up
            self.gate.reduce_only("venue", error.wrong)
            self.teller.tell("account-unknown", str(error), "alarm")
            return
        self.gate.lift("venue")
        step = self._step()
        observation = self.path.observe(panel, state, step)
        decision = self.path.decide(step, observation)
        cvar = self._tail(decision, state)
        requested = self._reduced(self.path.requested(decision.weight, stopped), state)
        opening = self._opening(state, ts)
        standing = self._decided_standing(ts, step, state, requested, stopped, opening)
        self._standing = standing
        self._order(standing, Decided(decision, observation, cvar))

    def _step(self) -> int:
        return 0 if self._standing is None else self._standing.step + 1

    def _decided_standing(
        self, ts: int, step: int, state: State, requested: Tensor, stopped: Tensor, opening: Opening
    ) -> Standing:
        ordered = self.path.fill(state, requested, opening.bar())
        booked = self._journal.booked()
        return Standing(ts, step, state, requested, opening, ordered, stopped, booked)

    def _closed(self, panel: Panel, *, asks: bool = True) -> tuple[State, Tensor]:
        """Return accounts at the close of a panel's newest bar, and which are stopped."""
        before = self._standing
        if before is None:
            return self._opened, torch.zeros_like(self._opened.done)
        state, stopped = self.accounts.closed(before, panel, self.placing.markets, asks=asks)
        if self._watch is not None:
            growth = log_growth(state.equity.numpy(), before.state.equity.numpy())
            closes = int(panel.ts[-1]) + self._interval.milliseconds
            self._outside(self._watch.realised(growth, closes))
        return state, stopped

    def _tail(self, decision: Decision, state: State) -> float | None:
        """Return the predicted tail of the account; allow reducing only where it is too heavy."""
        limits, name = self.config.tail, "predicted-tail"
        own = self.path.predicted_cvar(decision, limits.alpha)
        if own is None:
            return None
        if self._watch is not None and decision.distribution is not None:
            self._watch.predicted(decision.distribution.numpy())
        loss = account_cvar(own.numpy(), state.equity.numpy())
        if limits.max_cvar is None or loss <= limits.max_cvar:
            self.gate.lift(name)
            return loss
        words = f"the agent predicts a tail loss of {loss:.2%}, above {limits.max_cvar:.2%}"
        if name not in self.gate.reasons:
            self.teller.tell(name, words, "alarm")
        self.gate.reduce_only(name, words)
        return loss

    def _outside(self, days: int) -> None:
        """Halt where realised returns have been below their band for too many days."""
        if days < self.config.tail.outside_days:
            return
        words = f"realised returns lie below the predicted band for {days} days"
        if self.config.tail.halt:
            self._switch.trip(source="tail limit", words=words)
        self.teller.tell("realised-tail", words, "alarm")

    def _reduced(self, requested: Tensor, state: State) -> Tensor:
        """Return requested weights; between 0 and the held ones while only reducing is allowed."""
        if self.gate.state != "REDUCING":
            return requested
        held = held_weight(state)
        return torch.minimum(torch.maximum(requested, held.clamp(max=0.0)), held.clamp(min=0.0))

    def _opening(self, state: State, ts: int) -> Opening:
        """Return what orders are sized by; where prices are not known, nothing can be traded."""
        try:
            price, tradable = self.placing.tradable(state.price)
            rates = self._due_rates(ts + self._interval.milliseconds)
        except VenueError as error:
            self.teller.tell("no-price", str(error), "alarm")
            return self.path.shut(state, ts)
        return self.path.opening(self.window.panel, price, rates, tradable)

    def _due_rates(self, ts: int) -> Tensor:
        """Return the funding that settles at an open; a real venue books it by itself."""
        settled = [0.0] * len(self.symbols)
        if isinstance(self._venue, PaperVenue):
            due = self.feed.due_rates(ts).values()
            settled = [settled_at(own, ts, self._interval) for own in due]
        return torch.tensor(settled, dtype=torch.float64)

    def _order(self, standing: Standing, decided: Decided) -> None:
        """Put the bar on disk with its intents, send the orders, tell the operator."""

        def record(refusals: list[Refusal | None]) -> None:
            self._refusals = refusals
            self._record(standing, decided, refusals)

        started = self._machine.monotonic_ns()
        try:
            fresh = self.accounts.recent_positions(self.config.limits.max_quote_age_s)
            self.placing.place(standing, record, fresh)
        except VenueError as error:  # before anything was recorded or sent
            self.teller.tell("account-unknown", str(error), "alarm")
            with self._journal.transaction():
                record([None] * len(self.symbols))
        self._journal_ms = (self._machine.monotonic_ns() - started) / 1e6
        self._publish(standing, decided.cvar)

    def _record(
        self, standing: Standing, decided: Decided, refusals: Sequence[Refusal | None]
    ) -> None:
        """Write everything that belongs to a decision."""
        now, journal = self._now_ms(), self._journal
        journal.add_bars(panel_records(self.window.panel, self._recorded_ms, now))
        self._recorded_ms = self.window.newest
        state = self.gate.state
        journal.add_decisions(
            decision_rows(
                standing,
                self.symbols,
                decided,
                refusals,
                session=journal.session,
                trading_state=state,
                now_ms=now,
            )
        )
        peak, day_start = self.placing.peaks(standing)
        figures = (standing.equity, peak, day_start, standing.gross, decided.cvar)
        journal.add_equity((standing.ts, *figures, state))
        journal.put_checkpoint(standing.ts, *self.path.saved())

    def data_age_bars(self, symbol: str | None = None) -> float:
        """Return how long ago a symbol's newest bar closed, in bars; None is the oldest of all.

        A row that only repeats the last close is no bar: what is missing gets older.
        """
        if symbol is None:
            return max(self.data_age_bars(own) for own in self.symbols)
        length = self._interval.milliseconds
        return (self.feed.now_ms() - self.window.newest_of(symbol) - length) / length

    # Between bars

    def _idle(self, seconds: float) -> bool:
        """Let time pass, and do what must be done meanwhile; False if the switch is tripped."""
        if self._leaving or self._switch.tripped():
            return False
        pause = min(seconds, self.config.feed.poll_s)
        if self._venue.capabilities.streams:
            for event in self._venue.events(pause):
                self._stream_event(event)
        else:
            self._clock.sleep(pause)
        try:
            self.placing.protector.renew(self.symbols)
            if self.feed.clock_was_set():
                self._check_clock()
            if self._journal.unsettled():
                self.accounts.settle()
            if self._interrupted:  # until the venue has told what the stream did not
                update_fills(self._venue, self._journal, self.symbols)
                self._interrupted = False
            if self._standing is not None and self.placing.unguarded():
                self.placing.after_fills(self._standing)
        except VenueError as error:
            self.teller.tell("venue-silent", str(error), "warning")
        self.teller.beat()
        return not (self._leaving or self._switch.tripped())

    def _stream_event(self, event: Event) -> None:
        """Take what a stream says; fills count once, and final orders stay final."""
        if isinstance(event, BarClosed):
            self.feed.take(event)
        elif isinstance(event, StreamInterrupted):
            self.teller.tell("stream-interrupted", event.words, "warning")
            self._interrupted = True
        elif isinstance(event, OrderChanged):
            self._order_changed(event)

    def _order_changed(self, event: OrderChanged) -> None:
        intent = self._journal.intent(event.order.client_id)
        if intent is None:
            return
        if not intent.final and event.order.filled >= intent.filled:
            now = self._now_ms()
            self._journal.add_order(intent.client_id, "settled", event.order, now_ms=now)
        new = event.trade is not None and self._journal.add_fill(event.trade, intent.client_id)
        if new and self._standing is not None:
            self.placing.after_fills(self._standing)

    def _killed(self) -> Ending:
        """Carry out what the kill switch asks for, to the end; then leave."""
        trip = self._switch.read()
        if trip is None:  # somebody took the file away: it was tripped all the same
            return "killed"
        self.teller.tell("killed", f"by {trip.source}: {trip.words}", "alarm")
        while not self._taken_back(trip):
            self._clock.sleep(min(self.config.feed.poll_s, 1.0))
            self.teller.beat()
            trip = self._switch.read() or trip
        left = self.placing.left_open
        words = f"{trip.way}: " + (f"not all of it, {left}" if left else "confirmed")
        self.teller.tell("stopped", words, "alarm" if left else "info")
        return "killed"

    def _taken_back(self, trip: Trip) -> bool:
        try:
            self.accounts.settle()
        except VenueError as error:
            self.teller.tell("venue-silent", str(error), "warning")
            return False
        return self.placing.taken_back(trip.way, self._standing)

    def _publish(self, standing: Standing, cvar: float | None) -> None:
        health = Health(
            data_age_s=self.data_age_bars() * self._interval.milliseconds / 1000.0,
            clock_offset_ms=self.feed.offset_ms,
            rate_used=self._venue.health().rate_used,
            journal_ms=self._journal_ms,
            decision_ms=self._sent_ms,
        )
        peaks, now = self.placing.peaks(standing), self._now_ms()
        view = (standing, self.symbols, self._refusals, self._journal, self.gate, peaks, cvar)
        self.teller.publish(snapshot_of(*view, health, now))

    def _now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000
