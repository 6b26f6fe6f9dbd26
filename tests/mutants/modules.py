"""The bugs of memory, network, agent and classic tasks."""

from mutants.harness import Mutant
from mutants.nodes import unit

RECURRENCE = "functional/recurrence.py"
PACKED = "functional/kernels/layers/packed_lstm.py"
MEMORY = "modules/memory.py"
NETWORK = "modules/network.py"
CRITICS = "modules/critics.py"
SCALE = "modules/scale.py"
AGENT = "modules/agent.py"
ACTIONS = "modules/actions.py"
TASK = "tasks/base.py"
GYMNASIUM_TASK = "tasks/gymnasium_task.py"
SPACES = "tasks/gymnasium_spaces.py"


def module(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of a network."""
    return unit(name, *tests, part="modules")


def task(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of the classic tasks."""
    return unit(name, *tests, part="tasks")


WAYS = module(
    "memory_ways",
    "test_every_way_gives_outputs_states_and_gradients_of_the_rows_one_by_one",
)

MODULES = (
    # --- recurrence
    Mutant(
        "lstm-reset-one-row-late",
        "S1-L1 S3-FP3",
        RECURRENCE,
        "torch.where(start, first_h, hidden, out=h)",
        "torch.where(reset[t - 1, :, None], first_h, hidden, out=h)",
        unit("recurrence", "test_a_sequence_with_resets_is_several_sequences_without"),
    ),
    Mutant(
        "lstm-cell-survives-a-reset",
        "S1-L1 S3-FP3",
        RECURRENCE,
        "torch.where(start, first_c, cell, out=c)",
        "c.copy_(cell)",
        unit("recurrence", "test_a_sequence_with_resets_is_several_sequences_without"),
    ),
    Mutant(
        "gru-resets-all-environments",
        "S1-L1 S3-FP3",
        RECURRENCE,
        "h = torch.where(start[t], initial, hidden, out=before[t])",
        "h = torch.where(start[t].any(), initial, hidden, out=before[t])",
        unit("recurrence", "test_a_sequence_with_resets_is_several_sequences_without"),
    ),
    Mutant(
        "hidden-gradient-crosses-a-reset",
        "S1-L1",
        RECURRENCE,
        "dh = torch.where(start, below, torch.addmm(below, result, weight))",
        "dh = torch.addmm(below, result, weight)",
        unit("recurrence", "test_no_gradient_crosses_a_reset"),
    ),
    Mutant(
        "cell-gradient-crosses-a-reset",
        "S1-L1",
        RECURRENCE,
        "out=dc_row).masked_fill(start, 0.0)",
        "out=dc_row)",
        unit("recurrence", "test_no_gradient_crosses_a_reset"),
    ),
    Mutant(
        "initial-state-learns-from-every-row",
        "S1-L1",
        RECURRENCE,
        "return torch.where(reset[..., None], x, 0.0).sum((0, 1))",
        "return x.sum((0, 1))",
        unit("recurrence", "test_every_gradient_is_that_of_the_recorded_operations"),
    ),
    Mutant(
        "episode-start-may-be-a-number",
        "M17",
        RECURRENCE,
        "    check.check_flags(reset=reset)\n",
        "",
        unit("recurrence", "test_a_flag_that_is_a_number_is_refused"),
    ),
    # --- memory
    Mutant(
        "memory-is-never-reset",
        "S1-L1 S3-FP3",
        MEMORY,
        "begin = torch.where(reset[:, None, None], self.initial[layer], state)",
        "begin = state",
        module("network", "test_a_reset_reaches_the_memory_of_actor_and_critics"),
    ),
    Mutant(
        "memory-of-all-environments-is-reset",
        "S1-L1 S3-FP3",
        MEMORY,
        "torch.where(reset[:, None, None], self.initial[layer], state)",
        "torch.where(reset.any(), self.initial[layer], state)",
        module("network", "test_a_reset_reaches_the_memory_of_actor_and_critics"),
    ),
    Mutant(
        "initial-state-is-an-alias",
        "S1-L1",
        MEMORY,
        "return self.initial.expand(batch, *self.initial.shape).clone()",
        "return self.initial.expand(batch, *self.initial.shape)",
        module("memory", "test_the_initial_state_is_no_alias"),
    ),
    Mutant(
        "reset-inside-a-sequence-overlooked",
        "S1-L1 S3-FP3",
        MEMORY,
        "lengths = _between_resets(reset)",
        "lengths = [len(reset)]",
        module("memory", "test_a_reset_inside_a_sequence_starts_a_separate_one"),
    ),
    Mutant(
        "pieces-forget-those-before",
        "S1-L1",
        MEMORY,
        "            output, state = self._piece(layer, rows, state, flags[0])\n",
        "            output, _ = self._piece(layer, rows, state, flags[0])\n",
        WAYS,
    ),
    Mutant(
        "stretches-go-on-where-others-ended",
        "S1-L1",
        MEMORY,
        "fresh=reset[row, column],",
        "fresh=torch.zeros_like(column, dtype=torch.bool),",
        WAYS,
    ),
    Mutant(
        "last-cells-of-other-stretches",
        "S1-L1",
        PACKED,
        "torch.cat(ended[::-1])",
        "torch.cat(ended)",
        WAYS,
    ),
    Mutant(
        "packed-gradient-stops-after-a-row",
        "S1-L1",
        PACKED,
        "            below.addmm_(results[t], weight)\n",
        "            below if t else below.addmm_(results[t], weight)\n",
        WAYS,
    ),
    Mutant(
        "inserted-rows-let-the-cell-pass",
        "S1-L1 S3-FP3",
        MEMORY,
        "[[-1.0, -1.0, 0.0, -1.0], [-1.0, 1.0, 0.0, 0.0]]",
        "[[-1.0, 1.0, 0.0, -1.0], [-1.0, 1.0, 0.0, 0.0]]",
        WAYS,
    ),
    Mutant(
        "rows-after-the-end-forget-the-cell",
        "S1-L1",
        MEMORY,
        "[[-1.0, -1.0, 0.0, -1.0], [-1.0, 1.0, 0.0, 0.0]]",
        "[[-1.0, -1.0, 0.0, -1.0], [-1.0, -1.0, 0.0, 0.0]]",
        WAYS,
    ),
    Mutant(
        "shut-gates-pass-nan-on",
        "S1-L1",
        MEMORY,
        "if not bool(output.detach().sum().isfinite()):",
        "if False:",
        module("memory_ways", "test_what_is_not_finite_ends_at_a_reset"),
    ),
    Mutant(
        "every-layer-starts-from-the-first",
        "M16",
        MEMORY,
        "x, after = run(layer, x, state[:, layer], reset)",
        "x, after = run(layer, x, state[:, 0], reset)",
        module("memory", "test_one_call_a_row_is_one_call_for_all"),
    ),
    # --- network
    Mutant(
        "critics-read-the-memory-of-the-actor",
        "M16",
        NETWORK,
        "self.critic_trunk(observation, memory[:, own:], reset, rows)",
        "self.critic_trunk(observation, memory[:, :own], reset, rows)",
        module("network", "test_playing_row_by_row_is_learning_in_one_piece"),
    ),
    Mutant(
        "heads-learn-from-the-memory-of-the-actor",
        "critics",
        NETWORK,
        "features: Tensor = self.critic_trunk(observation, memory[:, own:], reset)[0]",
        "features: Tensor = self.critic_trunk(observation, memory[:, :own], reset)[0]",
        module("network", "test_the_features_of_the_critics_are_those_that_forward_gives_them"),
    ),
    Mutant(
        "memories-stored-in-the-other-order",
        "M16",
        NETWORK,
        "torch.cat((after, other), 1)",
        "torch.cat((other, after), 1)",
        module("network", "test_playing_row_by_row_is_learning_in_one_piece"),
    ),
    Mutant(
        "first-policy-has-opinions",
        "network",
        NETWORK,
        "ACTOR_GAIN = 0.01",
        "ACTOR_GAIN = 1.0",
        module("network", "test_the_first_policy_is_nearly_uniform"),
    ),
    # --- critics
    Mutant(
        "twins-with-equal-weights",
        "S1-T1",
        CRITICS,
        "generator=generator,\n                spread=spread,\n            )\n            for _",
        "generator=torch.Generator().manual_seed(0),\n            )\n            for _",
        module("critics", "test_twins_start_different_in_every_layer"),
    ),
    Mutant(
        "weight-of-a-head-not-rescaled",
        "S0-3",
        CRITICS,
        "                _move(last.weight, weight, where)\n",
        "",
        module("critics", "test_decoded_predictions_stay_while_units_move"),
    ),
    Mutant(
        "only-the-first-head-is-rescaled",
        "S0-3",
        CRITICS,
        "for last in self.last_layers():",
        "for last in self.last_layers()[:1]:",
        module("critics", "test_decoded_predictions_stay_while_units_move"),
    ),
    Mutant(
        "monotone-quantiles-keep-their-offset",
        "S0-3",
        CRITICS,
        "            _move(self.affine_offset, offset, where)\n",
        "",
        module("critics", "test_decoded_predictions_stay_while_units_move"),
    ),
    Mutant(
        "atoms-stay-while-units-move",
        "S4-Q1",
        CRITICS,
        "_move(self.atoms, return_scale.move_atoms(self.atoms, **moved), where)",
        "return_scale.move_atoms(self.atoms, **moved)",
        module("critics", "test_decoded_predictions_stay_while_units_move"),
    ),
    # --- statistics that travel with the weights
    Mutant(
        "observations-counted-while-read",
        "S0-4",
        SCALE,
        "        variance, passed = self.held() if held is None else held\n",
        "        self.commit(statistics.moments(observation))\n"
        "        variance, passed = self.held() if held is None else held\n",
        module("scale", "test_reading_changes_no_statistics"),
    ),
    Mutant(
        "frozen-columns-are-scaled",
        "scale",
        SCALE,
        "self.frozen | (self.count <= 0.0))",
        "self.count <= 0.0)",
        module("scale", "test_frozen_columns_are_untouched"),
    ),
    Mutant(
        "return-statistics-not-saved",
        "M14",
        SCALE,
        'self.register_buffer("std", torch.ones((), dtype=torch.float64))',
        'self.register_buffer("std", torch.ones((), dtype=torch.float64), persistent=False)',
        module("agent", "test_saving_and_loading_keeps_every_bit"),
    ),
    # --- agent and actions
    Mutant(
        "value-left-in-normalised-units",
        "S4-Q1",
        AGENT,
        "value=self.return_scale.decode(critic.value(predicted)),",
        "value=critic.value(predicted),",
        module("agent", "test_a_decision_says_what_it_knows"),
    ),
    Mutant(
        "agent-trades-another-market",
        "agent",
        AGENT,
        "if name in current and plain(current[name]) != plain(wanted):",
        "if name not in current:",
        module("agent", "test_another_market_than_that_of_training_is_refused_by_name"),
    ),
    Mutant(
        "exploration-may-vanish",
        "actions",
        ACTIONS,
        "return mean, self._low + self._span * spread.sigmoid()",
        "return mean, self._span * spread.sigmoid()",
        module("actions", "test_exploration_stays_between_its_bounds"),
    ),
    # --- classic tasks
    Mutant(
        "mountain-car-cost-clipped",
        "tasks",
        "tasks/mountain_car.py",
        "- given.square() * 0.1",
        "- force.square() * 0.1",
        task("dynamics", "test_the_cost_of_the_mountain_car_is_not_clipped_with_its_force"),
    ),
    Mutant(
        "pendulum-charges-for-whole-turns",
        "tasks",
        "tasks/pendulum.py",
        "near = (angle + math.pi).remainder(2.0 * math.pi) - math.pi",
        "near = angle",
        task("dynamics", "test_pendulum_charges_for_the_angle_brought_into_one_turn"),
    ),
    Mutant(
        "time-limit-one-step-late",
        "tasks",
        TASK,
        "truncated = (elapsed >= self.limit) & ~terminated",
        "truncated = (elapsed > self.limit) & ~terminated",
        task("episodes", "test_an_episode_is_cut_at_its_limit_and_not_before"),
    ),
    Mutant(
        "end-at-the-limit-is-also-a-cut",
        "tasks",
        TASK,
        "truncated = (elapsed >= self.limit) & ~terminated",
        "truncated = elapsed >= self.limit",
        task("episodes", "test_an_end_at_the_limit_is_terminated_only"),
    ),
    Mutant(
        "ignored-action-is-learned-from",
        "tasks",
        TASK,
        "sample_weight=(~over).to(self.dtype),",
        "sample_weight=torch.ones_like(over, dtype=self.dtype),",
        task(
            "episodes",
            "test_the_step_that_ends_shows_the_last_state_and_the_next_one_the_new_start",
        ),
    ),
    # --- spaces of Gymnasium
    Mutant(
        "mask-of-the-row-before",
        "masks",
        GYMNASIUM_TASK,
        "return self._state(over, info), Step(",
        "return GymnasiumState(self._flags(over), state.mask), Step(",
        task("gymnasium_task", "test_the_mask_of_a_row_is_that_of_its_observation"),
    ),
    Mutant(
        "discrete-start-is-ignored",
        "spaces",
        SPACES,
        "values = values.reshape(-1, *self.shape) + self.start",
        "values = values.reshape(-1, *self.shape)",
        task(
            "gymnasium_task",
            "test_choices_are_given_from_their_start_in_the_shape_of_the_space",
        ),
    ),
    Mutant(
        "one-hot-ignores-the-start",
        "spaces",
        SPACES,
        "classes = x.reshape(len(x), -1).astype(np.int64) - start",
        "classes = x.reshape(len(x), -1).astype(np.int64)",
        task("gymnasium_task", "test_columns_are_those_of_gymnasiums_flatten"),
    ),
    Mutant(
        "image-channels-stay-last",
        "spaces",
        SPACES,
        "ordered = unit if first else unit.transpose(0, 3, 1, 2)",
        "ordered = unit",
        task(
            "gymnasium_task",
            "test_an_image_follows_the_other_columns_with_channels_first_between_0_and_1",
        ),
    ),
    Mutant(
        "one-hots-are-normalised",
        "spaces",
        SPACES,
        "return _Leaf(path, encode, names, scaled=False)",
        "return _Leaf(path, encode, names)",
        task(
            "gymnasium_task",
            "test_names_say_where_a_column_comes_from_and_which_are_left_unscaled",
        ),
    ),
    Mutant(
        "agent-file-forgets-the-judged-policy",
        "policy",
        "modules/agent.py",
        "_POLICY: self.judged_policy,",
        '_POLICY: "greedy",',
        unit("agent", "test_the_judged_policy_is_in_the_file", part="modules"),
    ),
)
