"""NaN and infinity wherever they can enter: seen in the same update, never saved, never silent."""

import dataclasses
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from stormsail.algorithms import ppo
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.trainer import Run
from stormsail.algorithms.update import epochs, estimates
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.nonfinite import refused_batch
from stormsail.algorithms.update.return_statistics import ReturnStatistics, Scale
from stormsail.core.errors import DataError
from stormsail.core.files.artifact import read_artifact
from stormsail.core.files.tensor_file import count_nonfinite
from stormsail.modules.actions import CategoricalHead
from stormsail.modules.scale import ObservationScale
from stormsail.optim.pipeline import GradientPipeline
from stormsail.tasks.cartpole import CartPole
from training_lab import UPDATES, image, run_all, small

AT = 2
"""Updates before the one that is disturbed."""

CONFIG = small("cartpole-lstm", vgs__enabled=True, entropy__ent_coef_plateau_window=3)


class Injector:
    """Puts a number into one place, once or whenever the place is passed."""

    def __init__(self, value: float, *, forever: bool, patch) -> None:
        self.value, self.forever, self.patch = value, forever, patch
        self.update, self.hits = -1, 0
        real = Ppo.update

        def counted(learner):
            self.update, self.ppo = learner.update_count, learner
            return real(learner)

        patch.setattr(Ppo, "update", counted)

    def due(self) -> bool:
        due = self.update == AT and (self.forever or self.hits == 0)
        self.hits += due
        return due

    def poisoned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy with one bad number, if it is time."""
        if not self.due():
            return tensor
        bad = tensor.detach().clone() if not tensor.requires_grad else tensor * 1.0
        bad.reshape(-1)[0] = self.value
        return bad

    def after(self, owner, name: str, change) -> None:
        """Let `change(result, *arguments)` have the last word on what a function returns."""
        real = getattr(owner, name)

        def wrapped(*arguments, **options):
            return change(real(*arguments, **options), *arguments)

        self.patch.setattr(owner, name, wrapped)


def _step(field):
    def inject(injector: Injector) -> None:
        def change(result, *_):
            state, step = result
            return state, step._replace(**{field: injector.poisoned(getattr(step, field))})

        injector.after(CartPole, "step", change)

    return inject


def _rollout(field):
    def inject(injector: Injector) -> None:
        def change(result, *_):
            env_state, rollout = result
            bad = injector.poisoned(getattr(rollout, field))
            return env_state, dataclasses.replace(rollout, **{field: bad})

        injector.after(ppo, "collect", change)

    return inject


def _env_state(field):
    def inject(injector: Injector) -> None:
        def change(result, *_):
            env_state, rollout = result
            return env_state._replace(
                **{field: injector.poisoned(getattr(env_state, field))}
            ), rollout

        injector.after(ppo, "collect", change)

    return inject


def _estimates(field):
    def inject(injector: Injector) -> None:
        def change(result, *_):
            return dataclasses.replace(result, **{field: injector.poisoned(getattr(result, field))})

        injector.after(ppo, "estimate", change)

    return inject


def _advantage(injector: Injector) -> None:
    injector.after(estimates, "normalised", lambda result, *_: injector.poisoned(result))


def _encoded_target(injector: Injector) -> None:
    injector.after(ppo, "encoded", lambda result, *_: injector.poisoned(result))


def _loss(injector: Injector) -> None:
    injector.after(
        epochs,
        "batch_sums",
        lambda sums, *_: sums._replace(loss=sums.loss * injector.value) if injector.due() else sums,
    )


def _new_log_prob(injector: Injector) -> None:
    injector.after(CategoricalHead, "log_prob", lambda result, *_: injector.poisoned(result))


def _gradient(injector: Injector) -> None:
    real = GradientPipeline.step

    def step(pipeline):
        if injector.due():
            pipeline._parameters.tensors[0].grad.reshape(-1)[0] = injector.value
        return real(pipeline)

    injector.patch.setattr(GradientPipeline, "step", step)


def _after_update(pick):
    def inject(injector: Injector) -> None:
        def change(result, learner, *_):
            if injector.due():
                with torch.no_grad():
                    pick(learner).reshape(-1)[0] = injector.value
            return result

        injector.after(Ppo, "_finish", change)

    return inject


def _observation_statistics(injector: Injector) -> None:
    def change(result, scale, *_):
        if injector.due():
            scale.mean[0] = injector.value
        return result

    injector.after(ObservationScale, "commit", change)


def _return_statistics(injector: Injector) -> None:
    def change(units, *_):
        return Scale(injector.value, units.std) if injector.due() else units

    injector.after(ReturnStatistics, "step", change)


def _rate(injector: Injector) -> None:
    def change(now, *_):
        return now._replace(learning_rate=injector.value) if injector.due() else now

    injector.after(Ppo, "schedule", change)


SITES = {
    "observation": _step("observation"),
    "reward": _step("reward"),
    "rollout observation": _rollout("observation"),
    "rollout log probability": _rollout("log_prob"),
    "rollout parameters": _rollout("parameters"),
    "rollout memory": _rollout("memory"),
    "rollout prediction": _rollout("predicted"),
    "rollout next prediction": _rollout("next_predicted"),
    "memory": _env_state("memory"),
    "return so far": _env_state("return_so_far"),
    "value": _estimates("value"),
    "raw advantage": _estimates("raw_advantage"),
    "returns": _estimates("returns"),
    "target": _estimates("target"),
    "advantage": _advantage,
    "encoded target": _encoded_target,
    "loss": _loss,
    "new log probability": _new_log_prob,
    "gradient": _gradient,
    "parameter": _after_update(lambda learner: next(iter(learner.agent.parameters()))),
    "optimizer": _after_update(
        lambda learner: list(learner.optimizer.state.values())[-1]["avg_utility"]
    ),
    "scaler": _after_update(lambda learner: learner.pipeline.scaler._largest),
    "observation statistics": _observation_statistics,
    "return statistics": _return_statistics,
    "learning rate": _rate,
}
CAMPAIGN = pytest.mark.campaign
LONG = pytest.param(-math.inf, marks=CAMPAIGN)
BY_TASK = {"observation", "reward", "rollout observation"}
"""Sites where the task is at fault, and going back cannot help."""


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_nothing_bad_was_saved(out: Path) -> None:
    folders = [*(out / "checkpoints").glob("[0-9]*"), *out.glob("best")]
    assert folders
    for folder in folders:
        for group in read_artifact(folder).tensors.values():
            assert all(count_nonfinite(tensor) == 0 for tensor in group.values())


def evidence(out: Path) -> list[tuple[str, int]]:
    """Return kind and update of everything that tells of numbers that are not finite."""
    kinds = {"refused", "rolled-back", "stopped"}
    events = [event for event in lines(out / "process.jsonl") if event["kind"] in kinds]
    signs = [(event["kind"], event["update"]) for event in events]
    table = pq.read_table(out / "metrics.parquet").to_pydict()
    for name in ("train/log_ratio_nan_count", "train/log_ratio_inf_count"):
        signs += [("counted", row) for row, count in enumerate(table[name]) if count > 0]
    return signs


@pytest.mark.parametrize("value", [math.nan, math.inf, LONG])
@pytest.mark.parametrize("site", SITES)
def test_one_bad_number_is_seen_at_once_and_the_run_recovers(site, value, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        injector = Injector(value, forever=False, patch=patch)
        SITES[site](injector)
        if site in BY_TASK:
            with pytest.raises(DataError) as caught:
                run_all(CONFIG, out)
            assert caught.value.code == "data-defects"
            assert injector.update == AT
        else:
            done = run_all(CONFIG, out)
            assert (done.status, done.updates) == ("finished", UPDATES)
            assert {update for _, update in evidence(out)} <= {AT, AT + 1}
            assert evidence(out)
        assert injector.hits == 1
    assert_nothing_bad_was_saved(out)
    assert run_all(CONFIG, out).status == "finished"


@pytest.mark.parametrize("value", [math.nan, pytest.param(math.inf, marks=CAMPAIGN), LONG])
@pytest.mark.parametrize("site", SITES)
def test_a_bad_number_that_keeps_coming_ends_the_run_with_a_reason(
    site, value, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    injector = Injector(value, forever=True, patch=monkeypatch)
    SITES[site](injector)
    done: Run | None = None
    try:
        done = run_all(CONFIG, out)
    except DataError as error:
        assert error.code == "data-defects"  # noqa: PT017 - either end is right
        assert injector.update == AT
    else:
        assert done.status in {"stopped", "finished"}
        assert evidence(out)
        assert (done.reason != "") is (done.status == "stopped")
    assert (done is None) is (site in BY_TASK)
    assert_nothing_bad_was_saved(out)


def test_a_refused_batch_is_kept_as_plain_data(tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        _advantage(Injector(math.nan, forever=False, patch=patch))
        run_all(CONFIG, out)
    folders = sorted((out / "refused").iterdir())
    assert folders
    artifact = read_artifact(folders[0], kind="refused-batch", allow_nonfinite=("batch",))
    events = artifact.documents["refusal"]
    assert (events["update"], events["in_a_row"], events["rate_factor"]) == (AT, 1, 0.5)
    batch = artifact.tensors["batch"]
    assert int((~batch["advantage"].isfinite()).sum()) == 1
    assert batch["observation"].shape[:2] == batch["weight"].shape == (8, 2)


def test_a_refused_step_halves_the_rate_and_a_good_one_ends_the_row(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _gradient(Injector(math.nan, forever=False, patch=patch))
        run_all(CONFIG, tmp_path / "run")
    rates = pq.read_table(tmp_path / "run" / "metrics.parquet")["train/optimizer_lr"].to_pylist()
    planned = [max(1e-3 * (1 - update / UPDATES), 5e-6) for update in range(UPDATES)]
    assert rates[: AT + 1] == pytest.approx(planned[: AT + 1])
    assert rates[AT + 1 :] == pytest.approx([rate / 2 for rate in planned[AT + 1 :]])
    events = lines(tmp_path / "run" / "events.jsonl")
    assert [event["in_a_row"] for event in events if event["kind"] == "refused"] == [1]


def test_going_back_halves_the_rate_and_then_goes_further_back(tmp_path, monkeypatch):
    out, config = tmp_path / "run", CONFIG.replace(**{"checkpoint.every_updates": 1})
    _after_update(lambda learner: next(iter(learner.agent.parameters())))(
        Injector(math.nan, forever=True, patch=monkeypatch)
    )
    done = run_all(config, out)
    assert done.status == "stopped"
    assert done.reason == (
        "1 of 24 numbers in `state/agent/network.trunk.encoder.layers.0.weight` after the update "
        "are not finite; the run was rolled back 2 times before"
    )
    events = [event for event in lines(out / "process.jsonl") if event["kind"] == "rolled-back"]
    assert [(event["step"], event["times"], event["update"]) for event in events] == [
        (64, 1, 3),
        (32, 2, 3),
    ]
    assert done.updates == AT + 1  # as far as it came; what is on the disk is sound
    assert_nothing_bad_was_saved(out)
    # From update 1 on the rate has been halved twice, and the events say so.
    rates = pq.read_table(out / "metrics.parquet")["train/optimizer_lr"].to_pylist()
    assert rates[1] == pytest.approx(1e-3 * (1 - 1 / UPDATES) / 4)
    kinds = [event["kind"] for event in lines(out / "events.jsonl")]
    assert kinds.count("rolled-back") == 1


def test_a_run_that_was_rolled_back_survives_a_kill_at_any_later_point(tmp_path, monkeypatch):
    """What a roll-back decided is on the disk before it is acted upon."""
    config = CONFIG.replace(**{"checkpoint.every_updates": 1})

    def disturbed(out, stop):
        with monkeypatch.context() as patch:
            injector = Injector(math.nan, forever=False, patch=patch)
            _after_update(lambda learner: next(iter(learner.agent.parameters())))(injector)
            if stop is not None:
                injector.after(Ppo, "update", lambda result, *_: _interrupt(injector, stop, result))
            return run_all(config, out)

    disturbed(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        disturbed(tmp_path / "cut", AT)
    run_all(config, tmp_path / "cut")
    assert image(tmp_path / "cut") == image(tmp_path / "whole")


def _interrupt(injector, stop, result):
    """Die in the very update that follows the roll-back."""
    if injector.hits and injector.update == stop and injector.ppo.rate_factor < 1.0:
        raise KeyboardInterrupt
    return result


def test_of_a_large_batch_the_bad_sequences_are_kept_first():
    rows, count = 3, 200
    plain = {
        field.name: torch.zeros(rows, count)
        for field in dataclasses.fields(Batch)
        if field.name != "memory"
    }
    plain["target"] = torch.zeros(rows, count, 2)
    plain["target"][1, 150, 1] = math.inf
    plain["advantage"][0, 199] = math.nan
    memory = torch.zeros(count, 1, 2, 4)
    memory[120, 0, 1, 3] = -math.inf
    contents = refused_batch(Batch(**plain, memory=memory), {"update": 1})
    kept = contents.tensors["batch"]["sequences"]
    # Three bad ones, and the first of the others: in their own order, 64 in all.
    assert kept.tolist() == [*range(61), 120, 150, 199]
    assert contents.tensors["batch"]["memory"].shape == (64, 1, 2, 4)
    assert contents.tensors["batch"]["target"].shape == (3, 64, 2)


def test_refusals_with_good_steps_between_them_are_no_row(tmp_path, monkeypatch):
    real, calls = GradientPipeline.step, []

    def every_other(pipeline):
        calls.append(0)
        if 4 <= len(calls) <= 12 and len(calls) % 2:
            pipeline._parameters.tensors[0].grad.reshape(-1)[0] = math.nan
        return real(pipeline)

    monkeypatch.setattr(GradientPipeline, "step", every_other)
    done = run_all(CONFIG, tmp_path / "run")
    assert (done.status, done.updates) == ("finished", UPDATES)
    events = [event for event in lines(tmp_path / "run" / "process.jsonl") if "in_a_row" in event]
    assert [event["in_a_row"] for event in events] == [1, 1, 1, 1]
    assert [event["rate_factor"] for event in events] == [0.5, 0.25, 0.125, 0.0625]
    assert not (tmp_path / "run" / "rollback.json").exists()
