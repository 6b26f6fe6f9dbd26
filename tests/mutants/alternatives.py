"""The bugs of what other actions would have made of a step, and of columns behind the memory."""

from mutants.harness import Mutant
from mutants.nodes import integration, law, unit

SIMULATOR = "market/simulator/simulator.py"
OBSERVATION = "market/simulator/observation.py"
BASELINES = "bench/risk/frontier_baselines.py"
NETWORK = "modules/network.py"
AGENT = "modules/agent.py"

BITS = law("alternatives", "test_an_alternative_is_the_step_that_does_it_bit_for_bit")
EACH = "each = State(*(tensor.expand(*shape, *tensor.shape[1:]) for tensor in state))"


def hand(*names: str) -> tuple[str, ...]:
    """Return node ids of alternatives worked out by hand."""
    return unit("simulator/alternatives", *names, part="market")


ALTERNATIVES = (
    # --- the simulator
    Mutant(
        "alternative-without-its-fee",
        "alternatives",
        SIMULATOR,
        EACH,
        f"{EACH}._replace(fee=self._levels.new_zeros(shape))",
        hand("test_turning_pays_the_fee_of_both_legs")
        + integration(
            "three_ledgers", "test_every_alternative_equals_the_reference_with_that_weight_forced"
        ),
    ),
    Mutant(
        "alternative-from-a-flat-account",
        "alternatives",
        SIMULATOR,
        EACH,
        "flat = torch.zeros_like(state.quantity)\n        state = state._replace(quantity=flat, "
        f"cash=state.equity)\n        {EACH}",
        hand("test_each_alternative_starts_from_the_position_that_is_held"),
    ),
    Mutant(
        "alternative-of-the-bar-after",
        "alternatives",
        SIMULATOR,
        "row, bar, steps = self._coming(state)",
        "row, bar, steps = self._coming(state._replace(row=state.row + 1))",
        hand("test_the_reward_of_each_weight_is_that_of_this_bar"),
    ),
    Mutant(
        "alternative-not-clipped",
        "alternatives",
        SIMULATOR,
        "reward = torch.where(state.done, 0.0, booked.reward)",
        "reward = torch.where(state.done, 0.0, booked.growth)",
        hand("test_ruin_ends_some_alternatives_with_its_penalty_and_the_clip_is_last"),
    ),
    Mutant(
        "alternative-of-ruin-without-its-penalty",
        "alternatives",
        SIMULATOR,
        "reward = torch.where(state.done, 0.0, booked.reward)",
        "grown = fills.log_growth(booked.account.equity, each.equity, floor=self._floor)\n"
        "        reward = torch.where(state.done, 0.0, self._clipped(grown))",
        hand("test_ruin_ends_some_alternatives_with_its_penalty_and_the_clip_is_last"),
    ),
    Mutant(
        "alternative-after-an-end-is-rewarded",
        "alternatives",
        SIMULATOR,
        "reward = torch.where(state.done, 0.0, booked.reward)",
        "reward = booked.reward",
        BITS,
    ),
    Mutant(
        "one-alternative-ends-all",
        "alternatives",
        SIMULATOR,
        "ended = booked.terminated & ~state.done",
        "ended = (booked.terminated.any(0) & ~state.done).expand(shape)",
        hand("test_ruin_ends_some_alternatives_with_its_penalty_and_the_clip_is_last"),
    ),
    Mutant(
        "alternative-shows-the-account-before-the-step",
        "alternatives",
        SIMULATOR,
        "self._observer.account(booked.account)",
        "self._observer.account(each)",
        hand("test_each_alternative_starts_from_the_position_that_is_held"),
    ),
    Mutant(
        "alternatives-mix-accounts-and-actions",
        "alternatives",
        SIMULATOR,
        "shown.transpose(0, 1))",
        "shown.reshape(self.batch, len(actions), -1))",
        BITS,
    ),
    Mutant(
        "account-columns-through-the-feed",
        "alternatives",
        OBSERVATION,
        "bars_left=state.last_row - state.row,",
        "bars_left=state.last_row - state.shown_row,",
        hand("test_faults_of_the_feed_leave_the_account_columns_alone"),
    ),
    Mutant(
        "an-episode-lasts-a-step-longer-than-it-says",
        "alternatives",
        SIMULATOR,
        "return self.config.episode_bars\n",
        "return self.config.episode_bars - 1\n",
        hand("test_an_episode_ends_within_its_steps"),
    ),
    Mutant(
        "penalised-alternatives-keep-the-plain-reward",
        "alternatives",
        BASELINES,
        "return outcomes._replace(reward=self._penalised(outcomes.reward))",
        "return outcomes",
        unit(
            "risk/frontier",
            "test_a_penalised_market_takes_the_penalty_off_every_alternative",
            part="bench",
        ),
    ),
    # --- columns behind the memory
    Mutant(
        "joined-columns-in-front-of-the-features",
        "joined columns",
        NETWORK,
        "features = beside(first, features, account.to(features.dtype))",
        "features = beside(first, account, features)",
        unit(
            "network",
            "test_joined_columns_meet_the_memory_in_front_of_the_actor",
            part="modules",
        ),
    ),
    Mutant(
        "joined-columns-in-another-order",
        "joined columns",
        NETWORK,
        "for k in self.after_memory]",
        "for k in sorted(self.after_memory)]",
        unit(
            "network",
            "test_joined_columns_meet_the_memory_in_front_of_the_actor",
            part="modules",
        )
        + unit(
            "agent",
            "test_joined_columns_go_to_the_actor_as_they_are_normalised",
            part="modules",
        ),
    ),
    Mutant(
        "joined-columns-are-zeros",
        "joined columns",
        NETWORK,
        "features = beside(first, features, account.to(features.dtype))",
        "features = beside(first, features, torch.zeros_like(account))",
        unit(
            "network",
            "test_another_account_reaches_the_actor_through_the_joined_columns_only",
            part="modules",
        ),
    ),
    Mutant(
        "joined-columns-forgotten-by-the-file",
        "joined columns",
        AGENT,
        "if not self.after_memory:\n            written.pop",
        "if True:\n            written.pop",
        unit(
            "agent",
            "test_an_agent_without_joined_columns_has_the_file_of_earlier_versions",
            part="modules",
        ),
    ),
    Mutant(
        "critics-run-before-the-actor",
        "joined columns",
        NETWORK,
        "        parameters = self.actor(trunks[0], self.account(observation))\n"
        "        predicted = self.critic(trunks[-1])\n",
        "        predicted = self.critic(trunks[-1])\n"
        "        parameters = self.actor(trunks[0], self.account(observation))\n",
        unit(
            "network",
            "test_without_joined_columns_gradients_keep_their_last_bits",
            part="modules",
        ),
    ),
)
