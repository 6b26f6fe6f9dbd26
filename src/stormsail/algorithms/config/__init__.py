"""Configuration of a training run. One source of defaults; `docs/config.md` is made from it."""

import math
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from stormsail.algorithms.config import contradictions
from stormsail.algorithms.config.adversary import AdversaryConfig
from stormsail.algorithms.config.derivable import (
    OPEN,
    DerivedCount,
    DerivedFlag,
    DerivedPrecision,
    is_open,
)
from stormsail.algorithms.config.learning import (
    BcConfig,
    EntropyConfig,
    KlConfig,
    ObservationConfig,
    OptimizerConfig,
    PpoConfig,
    ReturnConfig,
    TargetConfig,
    ValueClipConfig,
    VgsConfig,
    Whole,
)
from stormsail.algorithms.config.risk import RiskConfig
from stormsail.algorithms.config.run import (
    CheckpointConfig,
    DataConfig,
    TaskConfig,
    ValidationConfig,
)
from stormsail.core.config import Config
from stormsail.core.config.problems import ContradictionError
from stormsail.market.rewards import LOG_GROWTH
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig

__all__ = [
    "AdversaryConfig",
    "BcConfig",
    "CheckpointConfig",
    "DataConfig",
    "EntropyConfig",
    "KlConfig",
    "ObservationConfig",
    "OptimizerConfig",
    "PpoConfig",
    "ReturnConfig",
    "RiskConfig",
    "TargetConfig",
    "TaskConfig",
    "TrainConfig",
    "ValidationConfig",
    "ValueClipConfig",
    "VgsConfig",
    "Whole",
]


MOST_SAMPLES = 2**31
"""Of a rollout: a larger number is a mistake."""

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def _device(name: str) -> str:
    """Refuse a name of no device; whether this machine has it is asked when a run starts."""
    if not _DEVICE.fullmatch(name):
        raise ValueError("must be `cpu`, `cuda`, or one GPU of several such as `cuda:1`")
    return name


Device = Annotated[str, AfterValidator(_device)]


class TrainConfig(Config):
    """Configuration of a training run."""

    seed: Whole = 0
    """Seed of everything random."""

    plugins: tuple[str, ...] = ()
    """Python files or modules with features, rewards, tasks, worlds, networks or callbacks of your
    own (docs/plugins.md); they are run. Paths are relative to the working folder. A run's saved
    settings name none: what it uses stands in its manifest with the hash of the source."""

    callbacks: tuple[str, ...] = ()
    """Callbacks of plug-ins, by name, that are told of updates, evaluations and checkpoints."""

    device: Device = "cpu"
    """Where to train: `cpu`, `cuda`, or one GPU of several such as `cuda:1`."""

    threads: DerivedCount = OPEN
    """Threads of torch on the CPU. Another number gives other last bits, so it belongs to the
    settings and not to the machine. Derived: 1."""

    precision: DerivedPrecision = OPEN
    """Of the network's matrix products: `float32`, `tf32` (GPUs), or `bf16`; weights, losses and
    statistics are float32 or more always. Derived: `bf16` on a GPU, `float32` on a CPU."""

    cuda_graphs: Literal["auto", "off"] = "auto"
    """Record rollout and minibatches once and launch them as a whole on a GPU; `auto` does where
    that is possible and says where it is not."""

    compile_update: DerivedFlag = OPEN
    """On a CPU, compile a rollout's step, the rows of an LSTM, the losses of a minibatch with their
    gradient, and steps of the UPGD family: the same draws, and the same numbers up to rounding, in
    half of the time. It takes half a minute of one core at the first start, 5 to 10 s at a later
    one and at every `resume`; without a C++ compiler, in bfloat16, and where a part cannot be
    compiled, it says so and goes on without. Derived: true on a CPU in float32 for a million steps
    or more, which are those of a round in a population and of the way to the first rung in a
    search."""

    task: TaskConfig = TaskConfig()
    """Task and data."""

    network: NetworkConfig = NetworkConfig()
    """Trunk and head layers."""

    policy: PolicyConfig = PolicyConfig()
    """How actions are drawn."""

    critic: CriticConfig = CriticConfig()
    """What the critics predict."""

    target: TargetConfig = TargetConfig()
    """Critic targets."""

    ppo: PpoConfig = PpoConfig()
    """Rollout, epochs and the policy's loss."""

    entropy: EntropyConfig = EntropyConfig()
    """Entropy bonus."""

    kl: KlConfig = KlConfig()
    """KL control."""

    value_clip: ValueClipConfig = ValueClipConfig()
    """Value clipping."""

    returns: ReturnConfig = ReturnConfig()
    """Return scale."""

    observation: ObservationConfig = ObservationConfig()
    """Normalisation of observations."""

    bc: BcConfig = BcConfig()
    """Advantage-weighted regression (AWR)."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer."""

    vgs: VgsConfig = VgsConfig()
    """Variance gradient scaler."""

    risk: RiskConfig = RiskConfig()
    """Control of the lower tail of returns."""

    adversary: AdversaryConfig = AdversaryConfig()
    """Adversarial training (SA-PPO)."""

    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints on the disk."""

    validation: ValidationConfig = ValidationConfig()
    """Evaluation of the agent during training."""

    @property
    def fits_tail_levels(self) -> bool:
        """Whether quantiles may stand for unequal shares of the mass beside the other settings."""
        critic = self.critic
        return (
            critic.kind == "quantile"
            and critic.twin_dist_mode != "mixture"
            and self.target.kind != "lambda_mixture"
            and self.returns.return_stat != "mad"
        )

    @property
    def fits_compiled_step(self) -> bool:
        """Whether compiled kernels know this optimizer and scaler (`optim.fused.step.unfit`)."""
        chosen, vgs = self.optimizer, self.vgs
        return (
            chosen.optimizer_class != "AdamW"
            and chosen.noise_scale != "rms_update"
            and (not vgs.enabled or vgs.fits_compiled_step)
        )

    @property
    def values_all_actions(self) -> bool:
        """Whether the agent's policy must be asked for accounts that other actions made."""
        limited = self.risk.form == "critic" and self.risk.episode_limit is not None
        return limited or self.ppo.policy_gradient == "all_actions"

    @property
    def slow_advantages(self) -> bool:
        """Whether advantages are divided by slow moments, given or derived.

        Beside a limit: a rollout that happens to hold no loss would be divided by less than one
        that does, and the mean of such gradients may point to more risk where less is right.
        """
        if is_open(self.ppo.advantage_scale):
            return self.risk.acts and self.ppo.normalize_advantage
        return self.ppo.advantage_scale == "slow"

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        contradictions.check(self)
        return self

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Check what must fit; what is left open is checked once it is derived."""
        ppo = self.ppo
        if not is_open(ppo.n_steps, ppo.n_envs, ppo.batch_size):
            self._check_minibatches()
        self._check_critics()
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Refuse rollouts that no machine holds; `run.start_checks` asks the one that is there."""
        sizes = {"ppo.n_envs": self.ppo.n_envs, "ppo.n_steps": self.ppo.n_steps}
        given = {path: size for path, size in sizes.items() if not is_open(size)}
        samples = math.prod(given.values())
        if samples > MOST_SAMPLES:
            raise ContradictionError(
                f"a rollout must have at most {MOST_SAMPLES:,} samples",
                found=f"{samples:,}, by "
                + " and ".join(f"`{path}` {size:,}" for path, size in given.items()),
                remedy=f"Lower {' or '.join(f'`{path}`' for path in given)}.",
            )
        return self

    def _check_minibatches(self) -> None:
        ppo = self.ppo
        length = ppo.sequence_length or ppo.n_steps
        if ppo.n_steps % length:
            raise ValueError(
                f"`ppo.sequence_length` must divide `ppo.n_steps` {ppo.n_steps}, not {length}"
            )
        sequences = ppo.n_envs * ppo.n_steps // length
        if ppo.batch_size > sequences:
            raise ValueError(
                f"`ppo.batch_size` must be at most the {sequences} sequences of a rollout, not "
                f"{ppo.batch_size}"
            )
        if ppo.microbatch_size is not None and ppo.microbatch_size > ppo.batch_size:
            raise ValueError(
                f"`ppo.microbatch_size` must be at most `ppo.batch_size` {ppo.batch_size}, not "
                f"{ppo.microbatch_size}"
            )

    def _check_critics(self) -> None:
        clip = self.value_clip
        on = clip.clip_range_vf is not None
        if (
            on
            and self.critic.kind != "quantile"
            and (clip.distributional_vf_clip_mode == "per_quantile")
        ):
            raise ValueError(
                f"`value_clip.distributional_vf_clip_mode` must be `mean_only` or "
                f"`mean_and_variance` for a {self.critic.kind} critic, which has no quantiles"
            )
        if self.critic.kind == "scalar" and self.critic.head_steps > 0:
            raise ValueError(
                "`critic.head_steps` must be 0 for a scalar critic, which has no distribution to "
                "draw returns for"
            )
        if self.critic.kind == "scalar" and self.target.kind != "lambda_return":
            raise ValueError(
                f"`target.kind` must be `lambda_return` for a scalar critic, not "
                f"`{self.target.kind}`, which is a distribution"
            )
        if self.critic.kind == "categorical" and self.target.kind == "lambda_mixture":
            raise ValueError(
                "`target.kind` must be `nstep`, `td`, `mc` or `lambda_return` for a categorical "
                "critic, not `lambda_mixture`, which is made of quantiles"
            )
        if self.critic.weighs_quantiles and self.target.kind == "lambda_mixture":
            raise ValueError(
                "`target.kind` must be `nstep`, `td`, `mc` or `lambda_return` for `critic.levels` "
                "`tail`, not `lambda_mixture`, which is made of equal atoms"
            )
        if self.critic.weighs_quantiles and self.returns.return_stat == "mad":
            raise ValueError(
                "`returns.return_stat` must be `std` for `critic.levels` `tail`, not `mad`, which "
                "counts all atoms alike"
            )

    @model_validator(mode="after")
    def _parts_to_compare(self) -> Self:
        """Refuse a variance between micro-batches where a minibatch has only one."""
        if not self.vgs.enabled or self.vgs.statistic != "microbatch":
            return self
        ppo = self.ppo
        if is_open(ppo.n_steps, ppo.n_envs, ppo.batch_size):
            return self
        sequences = ppo.n_envs * ppo.n_steps // (ppo.sequence_length or ppo.n_steps)
        smallest = sequences % ppo.batch_size or ppo.batch_size
        if (ppo.microbatch_size or ppo.batch_size) >= smallest:
            raise ValueError(
                "`ppo.microbatch_size` must cut every minibatch into two parts or more for "
                f"`vgs.statistic` `microbatch`, which compares them; the smallest has {smallest} "
                "sequences"
            )
        return self

    @model_validator(mode="after")
    def _risk_can_act(self) -> Self:
        risk = self.risk
        if not risk.watches:
            return self
        if self.critic.kind == "scalar":
            raise ValueError(
                "`critic.kind` must be `quantile` or `categorical` with settings of `risk`, not "
                "`scalar`: a mean has no tail"
            )
        clip = self.task.market.reward_clip
        if self.task.name == "market" and clip is not None:
            raise ValueError(
                f"`task.market.reward_clip` must be left out with settings of `risk`, not {clip}: "
                "a crash of any size would count as at most the clip, and the tail that is watched "
                "and held would be that of clipped rewards; lower `ppo.learning_rate` if single "
                "updates are too large"
            )
        reward = self.task.market.reward
        if self.task.name == "market" and reward != LOG_GROWTH and risk.cvar_reward != "any":
            raise ValueError(
                f"`task.market.reward` must be `{LOG_GROWTH}` with settings of `risk`, not "
                f"`{reward}`: the tail that is watched and held is that of the reward, which "
                'would no longer be money; set `risk.cvar_reward` to "any" if that is meant'
            )
        if not risk.acts:
            return self
        if self.target.kind == "lambda_return" and risk.cvar_policy_mode in ("budget", "state"):
            raise ValueError(
                f"`target.kind` must be a distribution for `risk.cvar_policy_mode` "
                f"`{risk.cvar_policy_mode}`, not `lambda_return`, whose spread is less than half "
                "of the return's"
            )
        samples = self._outcomes()
        if samples is not None and samples < risk.least_samples:
            raise ValueError(
                f"a rollout must give at least {risk.least_samples:.0f} outcomes of the quantity "
                f"`{risk.cvar_quantity}` before the tail can act, not {samples}; raise "
                "`ppo.n_envs` or `ppo.n_steps`, or lower `target.steps`"
            )
        return self

    @model_validator(mode="after")
    def _evaluations_see_the_tail(self) -> Self:
        self.validation.check_tail(self.risk)
        return self

    @property
    def evaluated_limit(self) -> float | None:
        """Limit that an evaluation can hold the agent to: on log growth, as evaluations are."""
        is_money = self.task.name != "market" or self.task.market.reward == LOG_GROWTH
        return self.risk.episode_limit if is_money else None

    def _outcomes(self) -> int | None:
        """Return how many outcomes a rollout gives; None where they are episodes, or not known."""
        ppo, quantity = self.ppo, self.risk.cvar_quantity
        if quantity == "episode_return" or is_open(ppo.n_steps, ppo.n_envs):
            return None
        steps = 1 if quantity == "step" else min(self.target.steps, ppo.n_steps)
        return ppo.n_envs * (ppo.n_steps - steps + 1)
