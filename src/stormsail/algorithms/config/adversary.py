"""Settings of adversarial training (SA-PPO): attacks on observations while the policy learns."""

from typing import Literal, Self

from pydantic import Field, model_validator

from stormsail.algorithms.config.learning import Count, NonNegative, Positive, Unit, Whole
from stormsail.core.config import Config


class AdversaryConfig(Config):
    """Adversarial training (SA-PPO): the policy learns to decide alike on forged observations."""

    mode: Literal["off", "kl_reg", "mixed_batch", "rollout"] = "off"
    """`kl_reg` learns from clean observations and adds the divergence between the policy on a clean
    and on an attacked observation; `mixed_batch`, for comparison, learns from attacked observations
    in a share of the sequences; in `rollout` the agent is shown forged observations while it
    collects experience, in a share of the environments, and learns to win back what that costs."""

    epsilon: NonNegative = 0.075
    """Radius of the perturbations after the warm-up, in units of normalised observations; 0 is no
    attack."""

    epsilon_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the radius moves over the run."""

    epsilon_final: NonNegative = 0.05
    """Radius at the end of the run, unless it is constant."""

    warmup_updates: Whole = 10
    """Updates in which the radius grows from 0, in a straight line."""

    norm_type: Literal["linf", "l2"] = "linf"
    """Whether the radius bounds each column of an observation or the length of all changes."""

    attack_method: Literal["pgd", "sgld", "fgsm"] = "pgd"
    """Projected gradient ascent; the same with noise on the gradient; or one step of the whole
    radius."""

    attack_steps: Count = 3
    """Steps of the attack. Each costs a pass through the network and back."""

    attack_lr: Positive | None = None
    """Length of such a step; None takes the radius of the update over `attack_steps`."""

    random_init: bool = True
    """Whether an attack starts at a random point of the ball instead of at the observation."""

    clip_min: float | None = None
    """No perturbation takes a column below this, in normalised units."""

    clip_max: float | None = None
    """No perturbation takes a column above this."""

    bounds: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Such bounds of single columns, least and largest, by name or by a pattern: `bounds =
    {"log_return*" = [-3.0, 3.0]}`. Where several fit a column, the narrowest count. In any case no
    perturbation passes the bound of the normaliser, 10."""

    features: tuple[str, ...] | None = None
    """Columns that may be forged, by name or by a pattern such as `log_return*`. None takes all
    that come from outside: on a market those of its bars, elsewhere all but one-hots and flags. The
    account and the clock are never forged."""

    robust_kl_coef: NonNegative = 0.1
    """Weight of the divergence between the policy on a clean and on an attacked observation."""

    adversarial_ratio: Unit = 0.5
    """Share of the sequences that `mixed_batch` attacks, and of the environments in which `rollout`
    does."""

    attack_policy: bool = True
    """Whether attacks of `mixed_batch` raise the loss of the policy."""

    attack_value: bool = True
    """Whether they raise that of the critics."""

    @property
    def acts(self) -> bool:
        """Whether there is an adversary at all."""
        return self.mode != "off"

    @property
    def forges(self) -> bool:
        """Whether anything is ever forged: neither the radius nor the share is 0 all the time.

        An adversary that forges nothing has its metrics, and leaves the way in which an update is
        computed as it is, captured and compiled parts included.
        """
        moves = self.epsilon_schedule != "constant"
        has_radius = self.epsilon > 0.0 or (moves and self.epsilon_final > 0.0)
        has_share = self.mode == "kl_reg" or self.adversarial_ratio > 0.0
        return self.acts and has_radius and has_share

    @property
    def attacks_minibatches(self) -> bool:
        """Whether sequences are attacked while they are learned from."""
        return self.mode in ("kl_reg", "mixed_batch")

    @property
    def attacks_rollouts(self) -> bool:
        """Whether observations are forged while experience is collected."""
        return self.mode == "rollout"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, high = self.clip_min, self.clip_max
        if low is not None and high is not None and not low < high:
            raise ValueError(f"`clip_min` must be below `clip_max`, not {low} and {high}")
        for name, (least, most) in self.bounds.items():
            if not least < most:
                raise ValueError(
                    f"`bounds` of `{name}` must be a smaller number and a larger one, not {least} "
                    f"and {most}"
                )
        if self.features is not None and not self.features:
            raise ValueError("`features` must name a column or more; leave it out for all of them")
        # its noise leads away from the observation: the form of the paper's code
        stays = not self.random_init and self.attack_method != "sgld"
        if self.mode in ("kl_reg", "rollout") and stays:
            raise ValueError(
                f"`random_init` must be true for `mode` `{self.mode}`, not false: the divergence "
                "between a policy and itself is at its minimum, so its gradient at the observation "
                f"is exactly 0 and `{self.attack_method}` would stay there"
            )
        if self.mode == "mixed_batch" and not (self.attack_policy or self.attack_value):
            raise ValueError(
                "`attack_policy` or `attack_value` must be true for `mode` `mixed_batch`, not both "
                "false: there would be no loss to raise"
            )
        return self
