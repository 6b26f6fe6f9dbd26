"""Bugs of the bot's own history and of other projects that no other file of this folder plants."""

from mutants.harness import Mutant
from mutants.nodes import unit

CONTROL = "algorithms/risk/control.py"
LOSSES = "algorithms/update/losses.py"
TASKS = "algorithms/run/tasks.py"
TIMES = "market/checks/units.py"
SCENARIO = "evaluation/engine/scenario.py"
BATCH = "evaluation/walk_forward/batch.py"
AGENT = "modules/agent.py"

PRICES = "price[: max(price.shape[0] - horizon, 0)]"

HISTORY = (
    # --- risk and losses
    Mutant(
        "risk-limit-in-percent",
        "M08 X7",
        CONTROL,
        "return math.nan if limit is None else limit",
        "return math.nan if limit is None else limit / 100.0",
        unit("risk/control", "test_updates_are_those_of_the_replay", part="algorithms"),
    ),
    Mutant(
        "risk-sums-of-starting-rows",
        "M10",
        "algorithms/risk/window.py",
        "begun = rollout.length[:rows] > 0",
        "begun = rollout.length[:rows] >= 0",
        unit(
            "risk/window",
            "test_one_step_is_the_reward_of_every_row_that_counts",
            "test_sums_of_rewards_are_those_of_the_loop",
            part="algorithms",
        ),
    ),
    Mutant(
        "loss-entropy-of-ignored-rows",
        "M10",
        LOSSES,
        "loss=_totals(loss[None], weight)[0],",
        "loss=_totals(loss[None], weight)[0]"
        " - now.ent_coef * torch.where(weight > 0.0, 0.0, entropy).sum(),",
        unit(
            "update/losses",
            "test_the_loss_of_a_batch_is_that_of_the_replay",
            part="algorithms",
        ),
    ),
    Mutant(
        "support-in-reward-units",
        "M13",
        "algorithms/update/popart.py",
        "kept = agent.return_scale.encode(outcomes[weight > 0.0].double()).flatten()",
        "kept = outcomes[weight > 0.0].double().flatten()",
        unit(
            "update/popart",
            "test_targets_and_old_distributions_are_projected_when_the_support_moves",
            part="algorithms",
        ),
    ),
    # --- reward and features
    Mutant(
        "reward-of-simple-and-log-return",
        "M11",
        "market/simulator/simulator.py",
        "raw = fills.log_growth(moved.equity, state.equity, floor=self._floor)\n",
        "raw = fills.log_growth(moved.equity, state.equity, floor=self._floor)"
        " + (moved.equity / state.equity - 1.0)\n",
        unit(
            "simulator/simulator",
            "test_the_reward_of_a_step_holds_its_own_costs",
            part="market",
        ),
    ),
    Mutant(
        "return-over-its-own-price",
        "M19",
        "functional/market/indicators.py",
        PRICES,
        "price[horizon:]",
        unit("indicators", "test_returns_and_volatility_by_hand"),
    ),
    Mutant(
        "return-column-is-zero",
        "M19",
        "market/features/catalogue.py",
        'return indicators.log_return(bars["close"], horizon=horizon)',
        'return indicators.log_return(bars["close"], horizon=horizon) * 0.0',
        unit(
            "features/catalogue",
            "test_every_default_column_varies_and_is_valid_after_its_lookback",
            part="market",
        ),
    ),
    Mutant(
        "momentum-one-bar-short",
        "M21",
        "functional/market/indicators.py",
        PRICES,
        "price[1 : max(price.shape[0] - horizon, 0) + 1]",
        unit("indicators", "test_returns_and_volatility_by_hand"),
    ),
    # --- times and units
    Mutant(
        "times-rounded-to-milliseconds",
        "M24",
        TIMES,
        "whole = scaled * int(_PER_MS[unit]) == safe",
        "whole = np.ones_like(early)",
        unit("importers/importers", "test_times_that_are_not_certain_are_refused", part="market"),
    ),
    Mutant(
        "nanoseconds-through-float64",
        "M24",
        TIMES,
        "values = column.fill_null(0).to_numpy()\n",
        "values = column.fill_null(0).to_numpy().astype(np.float64)\n",
        unit(
            "importers/importers",
            "test_a_missing_time_stays_missing_and_exact_nanoseconds_stay_exact",
            part="market",
        ),
    ),
    Mutant(
        "interval-compared-as-text",
        "M34",
        TASKS,
        "for symbol, stored in store.contents() if stored == interval",
        "for symbol, stored in store.contents() if str(stored) == data.interval",
        unit("fit", "test_an_interval_in_another_spelling_is_the_same_interval", part="algorithms"),
    ),
    # --- what is kept between backtests
    Mutant(
        "cached-backtest-of-other-settings",
        "M38",
        BATCH,
        'return f"{decider} {request.panel.digest()} {request.config.config_hash()}"',
        'return f"{decider} {request.panel.digest()}"',
        unit(
            "walk_forward/batch",
            "test_a_cached_result_is_not_that_of_other_bars_or_settings",
            part="evaluation",
        ),
    ),
    Mutant(
        "cached-backtest-of-other-bars",
        "M38",
        BATCH,
        'return f"{decider} {request.panel.digest()} {request.config.config_hash()}"',
        'return f"{decider} {request.config.config_hash()}"',
        unit(
            "walk_forward/batch",
            "test_a_cached_result_is_not_that_of_other_bars_or_settings",
            part="evaluation",
        ),
    ),
    Mutant(
        "cached-features-of-other-bars",
        "M38",
        SCENARIO,
        'key = f"{self._number(panel)} {features.schema_hash()} {scaler.clip!r} {numbers}"',
        'key = f"{features.schema_hash()} {scaler.clip!r} {numbers}"',
        unit(
            "engine/run_batch",
            "test_features_of_one_panel_are_not_those_of_another",
            part="evaluation",
        ),
    ),
    Mutant(
        "cached-bars-of-a-store-that-changed",
        "M38",
        TASKS,
        "return tuple((name, state.st_mtime_ns, state.st_size) for name, state in states)",
        "return tuple((name, 0, 0) for name, state in states)",
        unit(
            "fit",
            "test_bars_that_were_replaced_in_their_store_are_read_anew",
            part="algorithms",
        ),
    ),
    Mutant(
        "scaler-fitted-to-the-whole-range",
        "M39",
        TASKS,
        "Scaler.fit(computed, (seen.start, seen.stop), schema=features.schema())",
        "Scaler.fit(computed, (0, len(panel.ts)), schema=features.schema())",
        unit("fit", "test_only_the_bars_of_the_span_exist_for_a_run", part="algorithms"),
    ),
    Mutant(
        "cached-features-one-row-early",
        "M40",
        SCENARIO,
        'scaled.values.to(device="cpu", dtype=torch.float64)',
        'scaled.values.to(device="cpu", dtype=torch.float64).roll(-1, 0)',
        unit("engine/backtest", "test_no_decision_depends_on_later_bars", part="evaluation"),
    ),
    Mutant(
        "backtest-fees-by-default",
        "M41",
        SCENARIO,
        "costs=tuple(costs) or (market.costs,),",
        "costs=tuple(costs) or (Costs(),),",
        unit(
            "engine/backtest",
            "test_a_trade_has_side_price_fee_and_slippage",
            part="evaluation",
        ),
    ),
    # --- saving and deciding
    Mutant(
        "save-error-swallowed",
        "M49",
        "core/files/artifact.py",
        "    except OSError as error:\n        raise write_error(path, error) from error\n",
        "    except OSError:\n        return\n",
        ("tests/fault/test_disk_errors.py::test_a_failed_single_artifact_leaves_nothing_behind",),
    ),
    Mutant(
        "greedy-decision-is-drawn",
        "M50",
        AGENT,
        "raw = head.mode(parameters)",
        "raw = head.sample(parameters, torch.Generator(parameters.device).manual_seed(0))",
        unit("agent", "test_a_deterministic_decision_is_the_mode_in_every_mode", part="modules"),
    ),
)
