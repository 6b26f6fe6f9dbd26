"""One update of recurrent distributional PPO, in order; the formulas are in `update` and `risk`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import require_derived
from stormsail.algorithms.risk.build import build_control
from stormsail.algorithms.risk.control import RiskControl
from stormsail.algorithms.risk.gradient import with_gradient
from stormsail.algorithms.risk.report import Plan, RiskReport
from stormsail.algorithms.update import schedules
from stormsail.algorithms.update.adversary import build_adversary, forger_of
from stormsail.algorithms.update.assessment import (
    Assessment,
    Prepared,
    Read,
    Unprepared,
    assess,
    check,
    known_from,
    read,
    training_batch,
)
from stormsail.algorithms.update.compiled import CompiledLosses, compiled_parts
from stormsail.algorithms.update.critic_targets import encoded
from stormsail.algorithms.update.device_epochs import DeviceEpochs, Pending
from stormsail.algorithms.update.entropy_schedule import EntropySchedule
from stormsail.algorithms.update.epochs import EpochReport, MinibatchReport, OnRefusal, learn
from stormsail.algorithms.update.estimates import Estimates, Raw, normalised_anew
from stormsail.algorithms.update.estimates import estimated as estimate
from stormsail.algorithms.update.graphs import (
    CapturedRollout,
    Recorder,
    captured_rollout,
    captures,
    epochs_obstacle,
    tell_eager,
    waiting_allowed,
)
from stormsail.algorithms.update.head_steps import build_head_steps
from stormsail.algorithms.update.kl_control import KlControl
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.nonfinite import Diverged, check_rollout
from stormsail.algorithms.update.optimizers import RATE_FACTOR, build_optimizer, build_pipeline
from stormsail.algorithms.update.popart import (
    initial_scale,
    move_support,
    popart_rescale,
    rescaled_tensors,
)
from stormsail.algorithms.update.return_statistics import ReturnStatistics
from stormsail.algorithms.update.rollout import EnvState, Play, Rollout, begin, collect
from stormsail.algorithms.update.schedules import NEW_RUN, History, Scheduled
from stormsail.algorithms.update.shares import together
from stormsail.core.generators import Generators
from stormsail.core.group import ALONE, Group
from stormsail.core.precision import matrix_precision
from stormsail.core.task import Task, part
from stormsail.functional.advantage import RunningMoments
from stormsail.functional.statistics import Moments
from stormsail.modules.agent import Agent


@dataclass(frozen=True, eq=False)
class Update:
    """All data of one update, for its metrics."""

    number: int
    now: Scheduled
    rollout: Rollout
    estimates: Estimates
    risk: RiskReport | None
    """Of the CVaR control; None without one."""
    mixed: Tensor
    """Advantages with the risk advantage, before normalisation, [T, B]."""
    advantage: Tensor
    """Normalised."""
    moments: RunningMoments | None
    """Of earlier rollouts, for the normalisation; None where it takes those of this one."""
    target: Tensor
    """Encoded, [T, B, M]."""
    predicted: Tensor
    """Output of the critics during the rollout, on the return scale of the epochs, [T, B, C, W]."""
    scale: tuple[Tensor, Tensor]
    """Mean and deviation that targets and predictions are encoded with."""
    learned: EpochReport
    observation_before: Moments
    """Statistics of observations before this rollout."""


BC_SHARES = ("bc.bc_warmup_steps", "bc.bc_decay_steps")
ENTROPY_SHARES = ("entropy.ent_coef_decay_steps",)
"""Settings that are shares of the budget where they were derived from it."""

REFUSALS_IN_A_ROW = 3
"""Refused steps in a row after which the learner counts as diverged."""


class Ppo:
    """PPO learner: a task, an agent, and the state that carries over from update to update.

    Args:
        task: the environments.
        agent: is trained.
        config: all settings, none of them open.
        generators: source of everything random.
        history: how the run began and grew; by default a new one.
        group: processes that train together; each holds the whole learner.

    Raises:
        ConfigError: if a setting is still open.
    """

    def __init__(
        self,
        task: Task[Any],
        agent: Agent,
        config: TrainConfig,
        generators: Generators,
        history: History = NEW_RUN,
        group: Group = ALONE,
    ) -> None:
        require_derived(config)
        self.group = group
        self._own_task = task if group.size == 1 else part(task, group.columns(task.batch))
        self.history = history
        self.task, self.agent, self.config, self.generators = task, agent, config, generators
        captured = captures(task, config)
        obstacle = epochs_obstacle(config) if captured else None
        if obstacle is not None:
            tell_eager("the epochs of an update", obstacle)
        on_device = captured and obstacle is None
        noise = generators.stream("optimizer.noise")
        self.optimizer = build_optimizer(agent, config, noise, capturable=on_device)
        self.pipeline = build_pipeline(agent, self.optimizer, config)
        self.heads = build_head_steps(agent, config, generators)
        """Further steps of the critics' heads; None without any."""
        self._rates: list[Tensor] | None = None
        """Learning rate of each group, where a graph reads it."""
        self._epochs: DeviceEpochs | None = None
        if on_device:
            self._rates = [
                torch.zeros((), dtype=torch.float64, device=task.device)
                for _ in self.optimizer.param_groups
            ]
            entropy = generators.stream("entropy")
            self._epochs = DeviceEpochs(
                agent, self.pipeline, config, entropy, captured=True, group=group
            )
        self.recorder = Recorder(captured=captured)
        """Of what comes between rollout and epochs, and of metrics."""
        self._captures_rollout = captured
        self._rollouts: CapturedRollout | None = None
        self._compiles = config.compile_update and task.device.type == "cpu"
        """Whether a part of an update that is met first is to be compiled."""
        self._play: Play | None = None
        self._losses: CompiledLosses | None = None
        first = history.extensions[0].old_total if history.extensions else config.ppo.total_steps
        updates = schedules.total_updates(config.ppo, first)
        self.entropy = EntropySchedule(config.entropy, updates, self.planned_update)
        self.kl = KlControl(config.kl)
        self.returns = ReturnStatistics(config.returns, task.device)
        self.risk = build_control(task, agent, config, generators)
        normalised = ~agent.observation_scale.frozen if config.observation.normalise else None
        self.adversary = build_adversary(task, config.adversary, generators, normalised=normalised)
        self.env_state: EnvState = begin(task, agent, generators.stream("task"))
        self.update_count = 0
        self.explained_variance: float | None = None
        self.advantage_moments: RunningMoments | None = None
        """Of earlier rollouts; None before there is one, and where none are kept."""
        self.rate_factor = 1.0
        """Halved after every refused step."""
        self.refusals = 0
        """Refused steps in a row."""
        self.on_refusal: OnRefusal | None = None
        """Called with every batch whose step was refused."""

    @property
    def steps(self) -> int:
        """Environment steps done."""
        return self.update_count * self.config.ppo.n_steps * self.config.ppo.n_envs

    def update(self) -> Update:
        """Collect a rollout and train on it.

        Raises:
            Diverged: if steps keep being refused, or the network's output is not finite.
            DataError: if the task gives non-finite observations or rewards.
        """
        with matrix_precision(self.config.precision, self.task.device):
            return self._update()

    def _update(self) -> Update:
        agent, config = self.agent, self.config
        if self.group.size > 1:  # no rounding of one GPU may part the processes
            self.group.take_first(list(agent.state_dict().values()))
        now = self.schedule()
        self._set_rate(now.learning_rate)
        self._warm_up()
        warming = self._warms_support()  # asked while the device has nothing to do
        before = Moments(*(part.clone() for part in agent.observation_scale.moments))
        self.env_state, rollout = self._collect()
        if self.update_count == 0 and not self.history.pretrained:
            check_rollout(rollout)
            initial_scale(agent, rollout, config)
        assessment = self._assess(rollout)
        estimates = assessment.estimates
        defers = self._defers(warming=warming)
        known = None if defers else self._known(rollout, assessment)
        plan = self._plan_risk(rollout, estimates, now) if defers else None
        risk = None if known is None else self._control_risk(rollout, estimates, now, known)
        now = now if risk is None else now._replace(legacy_risk=risk.legacy)
        mixed = estimates.raw_advantage
        if plan is not None:
            mixed = plan.mixed
        elif risk is not None:
            mixed = risk.advantage
        options = None if risk is None else risk.options
        has_stepped = bool(self.optimizer.state)
        prepared = self._prepare(
            Unprepared(
                rollout, assessment, mixed, options, self.advantage_moments, warming, has_stepped
            )
        )
        normal, target, predicted, scale, data = prepared
        advantage, moments = normal.advantage, normal.used
        risk = with_gradient(agent, risk, data, rollout, moments, config)
        if known is None:
            learned, known, risk = self._learn_unread(data, now, rollout, assessment, plan)
        else:
            learned = self._learn(data, now)
        self.advantage_moments = normal.after
        if self.heads is not None:
            self.heads.learn(data, now.learning_rate)
        done = Update(
            number=self.update_count,
            now=now,
            rollout=rollout,
            estimates=estimates,
            risk=risk,
            mixed=mixed,
            advantage=advantage,
            moments=moments,
            target=target,
            predicted=predicted,
            scale=scale,
            learned=learned,
            observation_before=before,
        )
        self._finish(done, known.explained_variance)
        return done

    def schedule(self) -> Scheduled:
        """Return the scheduled values of the coming update."""
        config, update, history = self.config, self.update_count, self.history
        rate = schedules.learning_rate(config.ppo, self.steps, history.extensions)
        return Scheduled(
            learning_rate=rate * self.rate_factor,
            clip_range=schedules.clip_range(config.ppo, update),
            vf_coef=schedules.vf_coef(config.ppo, update, self.explained_variance),
            bc_coef=schedules.bc_coef(config.bc, history.planned_steps(self.steps, BC_SHARES)),
            ent_coef=self.entropy.coefficient(update).effective,
            kl_beta=self.kl.penalty,
            clips_values=schedules.clips_values(config.value_clip, update, self.explained_variance),
            trains_policy=update >= config.ppo.critic_grad_warmup_updates,
            epsilon=schedules.epsilon(
                config.adversary,
                schedules.progress(config.ppo, self.steps, history.extensions),
                update=update,
            ),
        )

    def planned_update(self, update: int) -> float:
        """Return the place of an update in the first budget, for a decay that is a share of it."""
        rows = self.config.ppo.n_steps * self.config.ppo.n_envs
        if not self.history.extensions:
            return update
        shares = ENTROPY_SHARES if self.config.entropy.ent_coef_decay_steps is not None else ()
        return self.history.planned_steps(update * rows, shares) / rows

    def _warm_up(self) -> None:
        """Set the statistics of observations before the first update, and begin the episodes anew.

        The first policy takes `observation.warmup_steps` steps in every environment. They come from
        random streams of their own, count as no steps of the run and are not learned from. An agent
        that has statistics already keeps them.
        """
        choice, scale = self.config.observation, self.agent.observation_scale
        first = self.update_count == 0 and choice.normalise and choice.warmup_steps > 0
        if not first or bool(scale.count > 0.0):
            return
        streams = (self.generators.stream("warmup.actions"), self.generators.stream("warmup.task"))
        steps = partial(
            collect,
            self._own_task,
            self.agent,
            steps=choice.warmup_steps,
            sequence_length=choice.warmup_steps,
            generators=streams,
            precision=self.config.precision,
        )
        _, rollout = together(self.group, begin(self.task, self.agent, streams[1]), steps)
        check_rollout(rollout)
        scale.commit(rollout.seen)
        self.env_state = begin(self.task, self.agent, self.generators.stream("task"))

    def _collect(self) -> tuple[EnvState, Rollout]:
        """Return the state after the steps of a rollout, and the rollout, of all environments."""
        return together(self.group, self.env_state, self._own_steps)

    def _own_steps(self, env_state: EnvState) -> tuple[EnvState, Rollout]:
        """Take the steps of a rollout in the environments of this process."""
        ppo = self.config.ppo
        streams = (self.generators.stream("actions"), self.generators.stream("task"))
        options: dict[str, Any] = {
            "steps": ppo.n_steps,
            "sequence_length": ppo.sequence_length or ppo.n_steps,
            "online": self.config.observation.normalise
            and self.config.observation.obs_stats_update == "online",
            "grid": None if self.risk is None else self.risk.grid,
            "precision": self.config.precision,
        }
        if self._captures_rollout and self._rollouts is None:
            self._rollouts = self._capture_rollout(env_state, streams, options)
        if self._rollouts is not None:
            return self._rollouts(env_state)
        if self._compiles and self._play is None:
            self._compile(env_state, streams)
        forger = forger_of(
            self.adversary,
            self.config.adversary,
            epsilon=self.schedule().epsilon,
            envs=self.task.batch,
        )
        return collect(
            self._own_task,
            self.agent,
            env_state,
            generators=streams,
            play=self._play,
            forger=forger,
            **options,
        )

    def _compile(
        self, env_state: EnvState, streams: tuple[torch.Generator, torch.Generator]
    ) -> None:
        """Compile what can be; where something cannot, say why."""
        self._compiles = False
        entropy = self.generators.stream("entropy")
        self._losses, self._play = compiled_parts(
            self._own_task, self.agent, self.config, self.pipeline, env_state, (*streams, entropy)
        )

    def _capture_rollout(
        self,
        env_state: EnvState,
        streams: tuple[torch.Generator, torch.Generator],
        options: dict[str, Any],
    ) -> CapturedRollout | None:
        """Return the rollout as a graph; None, with a line that says why, where it cannot be."""
        made = captured_rollout(
            self.task, self._own_task, self.agent, self.config, env_state, streams, **options
        )
        self._captures_rollout = made is not None
        return made

    def _assess(self, rollout: Rollout) -> Assessment:
        """Return what a rollout is worth; nothing has waited for it."""
        return self.recorder("estimates", self._assessment, rollout)

    def _known(
        self, rollout: Rollout, assessment: Assessment, numbers: Tensor | None = None
    ) -> Read:
        """Return what the host has to know of a rollout, from its numbers or by waiting for them.

        Raises:
            DataError: if the task gave something that is not finite.
            Diverged: if the network made something that is not finite.
        """
        known = read(assessment) if numbers is None else known_from(numbers)
        if not known.is_finite:
            with waiting_allowed():
                check(self.agent, rollout, assessment.estimates, self.config)
        return known

    def _defers(self, *, warming: bool) -> bool:
        """Whether the host knows of a rollout only once its epochs are over: one wait, at the end.

        Until then a flag on the device keeps everything as it was where something is not finite.
        Not where the host itself decides on what it knows.
        """
        if self._epochs is None or (self.risk is not None and not self.risk.defers):
            return False
        return not self._moves_support(warming=warming)

    def _assessment(self, rollout: Rollout) -> Assessment:
        estimates = estimate(self.agent, rollout, self.config)
        return assess(self.agent, rollout, estimates, self.config)

    def _control_risk(
        self, rollout: Rollout, estimates: Estimates, now: Scheduled, known: Read
    ) -> RiskReport | None:
        """Update the multiplier and mix the advantages, with the critics of the rollout."""
        if self.risk is None:
            return None
        return self.risk.act(
            rollout,
            estimates,
            known.explained_variance,
            self.agent,
            trains_policy=now.trains_policy,
            rate=now.learning_rate / self.config.ppo.learning_rate,
        )

    def _plan_risk(self, rollout: Rollout, estimates: Estimates, now: Scheduled) -> Plan | None:
        """Mix the advantages before the host knows of the rollout."""
        if not isinstance(self.risk, RiskControl):
            return None
        return self.risk.plan(
            rollout,
            estimates,
            estimates.explained_variance,
            self.agent,
            trains_policy=now.trains_policy,
        )

    def _moves_support(self, *, warming: bool) -> bool:
        """Whether a categorical critic's support moves, for which the host reads outcomes."""
        critic = self.agent.spec.critic
        return critic.kind == "categorical" and (warming or critic.v_range_ema_alpha > 0.0)

    def _warms_support(self) -> bool:
        """Whether a categorical critic's support is that of the warm-up of return statistics."""
        chosen = self.config.returns
        if self.agent.spec.critic.kind != "categorical" or chosen.normalize_returns == "off":
            return False
        with waiting_allowed():
            return self.returns.update < chosen.warmup_updates

    def _prepare(self, given: Unprepared) -> Prepared:
        """Update statistics of returns, advantages, observations; return the training sequences."""
        looks = self.config.ppo.advantage_mode == "previous_stats"  # whether there is any spread
        if looks or self._moves_support(warming=given.warming):
            with waiting_allowed():
                return self._prepared(given)
        return self.recorder("sequences", self._prepared, given, writes=self._statistics)

    def _statistics(self) -> Iterator[Tensor]:
        """Yield all that changes between rollout and epochs."""
        yield from rescaled_tensors(self.agent, self.optimizer)
        yield from self.returns.tensors
        yield from self.agent.observation_scale.moments

    def _prepared(self, given: Unprepared) -> Prepared:
        rollout, assessment, mixed, options, before, warming, _ = given
        scale = self.agent.return_scale
        raw = Raw(mixed, assessment.estimates, rollout, before, assessment.sound)
        normal = normalised_anew(raw, self.config)
        advantage = normal.advantage
        target, predicted = self._rescale(rollout, assessment, warming=warming)
        self._commit_observations(rollout, assessment.sound)
        data = self._batch(rollout, predicted, advantage, target, options)
        now = (scale.mean.clone(), scale.std.clone())
        return Prepared(normal, target, predicted, now, data)

    def _rescale(
        self, rollout: Rollout, assessment: Assessment, *, warming: bool
    ) -> tuple[Tensor, Tensor]:
        """Update the return scale; return targets and old predictions encoded with it."""
        agent, config, estimates = self.agent, self.config, assessment.estimates
        weight = rollout.weight.flatten()
        outcomes = estimates.outcomes.flatten(0, 1)
        predicted = popart_rescale(
            agent,
            self.returns,
            outcomes,
            weight,
            rollout.predicted,
            config,
            self.optimizer,
            assessment.outcomes,
            assessment.sound,
        )
        target, predicted = move_support(
            agent, outcomes, weight, estimates.target, predicted, warming=warming
        )
        return encoded(agent, target, config), predicted

    def _commit_observations(self, rollout: Rollout, sound: Tensor) -> None:
        choice = self.config.observation
        if choice.normalise and choice.obs_stats_update == "between_rollouts":
            self.agent.observation_scale.commit(rollout.seen, sound=sound)

    def _batch(
        self,
        rollout: Rollout,
        predicted: Tensor,
        advantage: Tensor,
        target: Tensor,
        options: Tensor | None,
    ) -> Batch:
        """Return all training sequences of a rollout."""
        return training_batch(rollout, predicted, advantage, target, options, self.config)

    def _learn_unread(
        self,
        data: Batch,
        now: Scheduled,
        rollout: Rollout,
        assessment: Assessment,
        plan: Plan | None,
    ) -> tuple[EpochReport, Read, RiskReport | None]:
        """Run the epochs; return what is known of the rollout, and of its tail, only then."""
        numbers, results = assessment.numbers, list[tuple[Read, RiskReport | None]]()
        width = len(numbers)

        def receive(row: Tensor) -> None:
            known, report = self._known(rollout, assessment, row[:width]), None
            if plan is not None and isinstance(self.risk, RiskControl):
                report = self.risk.conclude(
                    plan, row[width:], known.explained_variance, trains_policy=now.trains_policy
                )
            results.append((known, report))

        if plan is not None:
            numbers = torch.cat((numbers, plan.numbers))
        learned = self._learn(data, now, Pending(numbers, assessment.sound, receive))
        return learned, *results[0]

    def _learn(self, data: Batch, now: Scheduled, pending: Pending | None = None) -> EpochReport:
        """Run the epochs of an update."""
        if self._epochs is not None:
            return self._epochs.learn(
                data,
                self.kl,
                now,
                order=self.generators.stream("minibatches"),
                on_refusal=self._refused,
                on_step=self._stepped,
                pending=pending,
            )
        attacks = self.config.adversary
        attacked = attacks.attacks_minibatches and attacks.forges
        return learn(
            self.agent,
            data,
            self.pipeline,
            self.kl,
            now,
            self.config,
            generators=(self.generators.stream("minibatches"), self.generators.stream("entropy")),
            on_refusal=self._refused,
            on_step=self._stepped,
            adversary=self.adversary if attacked else None,
            group=self.group,
            losses=self._losses,
        )

    def apply_rate(self) -> None:
        """Set the learning rate of every parameter group to what the coming update takes."""
        self._set_rate(self.schedule().learning_rate)

    def _set_rate(self, rate: float) -> None:
        for place, group in enumerate(self.optimizer.param_groups):
            own = rate * group.get(RATE_FACTOR, 1.0)
            if self._rates is not None:
                # a restored state has brought other tensors than those that a graph reads
                group["lr"] = self._rates[place].fill_(own)
            elif isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def _refused(self, batch: Batch, report: MinibatchReport) -> None:
        if self.on_refusal is not None:
            self.on_refusal(batch, report)
        self.rate_factor *= 0.5
        self.refusals += 1
        if self.refusals >= REFUSALS_IN_A_ROW:
            raise Diverged(f"{self.refusals} losses or gradients in a row were not finite")

    def _stepped(self) -> None:
        self.refusals = 0

    def _finish(self, done: Update, explained_variance: float) -> None:
        """Update the state that the next update depends on."""
        self.explained_variance = explained_variance
        sums = done.learned.minibatches.sums
        entropy = float(sums.entropy.sum() / sums.weight.sum())
        self.entropy.observe(self.update_count, entropy, explained_variance)
        divergence = done.learned.divergence
        self.kl.end_update(sum(divergence) / len(divergence) if divergence else float("nan"))
        self.update_count += 1
