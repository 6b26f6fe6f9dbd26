"""The bugs of kernels for a CUDA device. Without Triton nobody can notice them, and they rest."""

from mutants.harness import Mutant
from mutants.nodes import unit

ROWS = "functional/kernels/layers/recurrent_triton.py"
LAYERS = "functional/kernels/layers/recurrent.py"
WHOLE = "functional/kernels/layers/sequence_triton.py"
PAIRS = "functional/kernels/losses/quantile_triton.py"
POLICY = "functional/kernels/losses/policy_triton.py"
RETURNS = "functional/kernels/returns_triton.py"
TARGETS = "functional/kernels/target_rows.py"
GRAPHS = "algorithms/update/graphs.py"
INPUTS = "core/machine_code/graph_inputs.py"

DENSE = "functional/kernels/layers/dense_triton.py"

HEADS = "functional/kernels/layers/heads_triton.py"
OF_HEADS = "functional/kernels/layers/heads.py"

VALUES_OF_HEADS = unit("kernels/heads", "test_values_and_gradients_are_those_of_the_plain_layers")

ROWS_OF_DENSE = unit("kernels/dense", "test_values_and_gradients_are_those_of_the_plain_layer")
LAYER = unit("kernels/recurrent", "test_values_and_gradients_are_those_of_the_plain_layer")
CROSSING = unit("kernels/recurrent", "test_neither_gradient_nor_nan_crosses_a_reset")
SUMS = unit("kernels/policy_loss", "test_sums_and_gradient_are_those_of_the_terms")

RECORDED = unit(
    "update/graphs",
    "test_a_recorded_function_sees_every_tensor_change_and_is_recorded_anew_for_flags",
    part="algorithms",
)

KERNELS = (
    Mutant(
        "recorded-function-keeps-its-first-tensors",
        "S1-P1",
        INPUTS,
        "        move_into(self._tensors, tensors)\n",
        "",
        RECORDED,
    ),
    Mutant(
        "recorded-function-has-one-place-for-two-tensors",
        "S1-P1",
        GRAPHS,
        "            placed = set_apart(given, set())\n",
        "            placed = given\n",
        unit(
            "update/graphs",
            "test_two_tensors_that_were_one_at_first_have_places_of_their_own",
            part="algorithms",
        ),
    ),
    Mutant(
        "recorded-function-keeps-its-first-flags",
        "S1-P1",
        GRAPHS,
        "if known is None or known.places.form != form:",
        "if known is None:",
        RECORDED,
    ),
    Mutant(
        "recorded-function-takes-numbers-of-the-host",
        "S1-P1",
        INPUTS,
        "    if isinstance(value, float):\n"
        '        raise TypeError("a number that may change between calls must be a tensor")\n',
        "",
        unit(
            "update/graphs",
            "test_a_recorder_refuses_numbers_that_a_graph_would_keep",
            part="algorithms",
        ),
    ),
    Mutant(
        "recorded-function-counts-what-it-did-to-be-recorded",
        "S1-P1",
        GRAPHS,
        "                tensor.zero_() if before is None else tensor.copy_(before)\n",
        "                tensor if before is None else tensor.copy_(before)\n",
        unit(
            "update/graphs",
            "test_what_a_function_writes_to_be_recorded_is_put_back",
            part="algorithms",
        ),
    ),
    Mutant(
        "held-draws-of-a-graph-are-those-of-its-first-part",
        "all-actions",
        "algorithms/risk/limit.py",
        ".clamp(max=len(state[0]) - 1).split(count)",
        ".remainder(count).clamp(max=len(state[0]) - 1).split(count)",
        unit(
            "risk/captured_limit",
            "test_a_limit_through_places_of_a_graph_is_a_plain_one",
            part="algorithms",
        ),
    ),
    Mutant(
        "device-product-forgets-the-last-inputs",
        "S1-L1",
        DENSE,
        "    for begin in range(0, inputs, INPUTS):\n",
        "    for begin in range(0, inputs // INPUTS * INPUTS, INPUTS):\n",
        unit("kernels/dense", "test_a_product_with_its_tanh_is_that_of_float64"),
    ),
    Mutant(
        "device-product-forgets-the-last-rows",
        "S1-L1",
        DENSE,
        "tl.range(first, tl.cdiv(rows, ROWS), step, num_stages=STAGES)",
        "tl.range(first, rows // ROWS, step, num_stages=STAGES)",
        unit("kernels/dense", "test_a_product_with_its_tanh_is_that_of_float64"),
    ),
    Mutant(
        "device-gradient-with-gaps-read-without",
        "S1-L1",
        DENSE,
        "place = grad + row[:, None] * stride + unit[None, :]",
        "place = grad + row[:, None] * units + unit[None, :]",
        unit("kernels/dense", "test_a_gradient_with_gaps_between_its_rows_is_read_where_it_is"),
    ),
    Mutant(
        "device-sequence-forgets-resets-of-the-cell",
        "S1-L1",
        WHOLE,
        "c, before = tl.where(is_new, fresh_c, c), tl.where",
        "c, before = c, tl.where",
        LAYER,
    ),
    Mutant(
        "device-sequence-reads-the-resets-of-the-row-before",
        "S1-L1",
        WHOLE,
        "        begins = begins_next\n        x0, x1",
        "        x0, x1",
        LAYER,
    ),
    Mutant(
        "device-sequence-gradient-crosses-a-reset",
        "S1-L1",
        WHOLE,
        "back, dc = tl.where(is_new, 0.0, back), tl.where(is_new, 0.0, dc)",
        "back, dc = tl.where(is_new, 0.0, back), dc",
        CROSSING,
    ),
    Mutant(
        "device-sequence-begins-with-a-later-cell",
        "S1-L1",
        WHOLE,
        "        earlier = before\n",
        "        earlier = cells\n",
        LAYER,
    ),
    Mutant(
        "device-sequence-initial-output-learns-nothing",
        "S1-L1",
        WHOLE,
        "            of_hidden += tl.where(is_new, back, 0.0)\n",
        "",
        LAYER,
    ),
    Mutant(
        "device-filled-columns-read-the-bias",
        "S1-L1",
        "functional/kernels/layers/dense.py",
        "of_weight[:units, :inputs]",
        "of_weight[:units, -inputs:]",
        unit("kernels/dense", "test_columns_that_fill_up_the_input_change_nothing"),
    ),
    Mutant(
        "device-quantiles-cross-where-they-rise",
        "S1-D1",
        PAIRS,
        "inner & (above < theta)",
        "inner & (above > theta)",
        unit("kernels/quantile_pairs", "test_loss_slope_and_share_are_those_of_all_pairs"),
    ),
    Mutant(
        "device-layer-forgets-resets-of-the-output",
        "S1-L1",
        ROWS,
        "        hidden = tl.where(begins[:, None], fresh[None, :], hidden)\n",
        "",
        LAYER,
    ),
    Mutant(
        "device-layer-forgets-resets-of-the-cell",
        "S1-L1",
        ROWS,
        "return tl.where(begins[:, None], fresh[None, :], cell), begins",
        "return cell, begins",
        LAYER,
    ),
    Mutant(
        "device-cell-gradient-crosses-a-reset",
        "S1-L1",
        ROWS,
        "dc = tl.where(ENDED[:, None], 0.0, tl.load(carry + flat, mask=here, other=0.0))",
        "dc = tl.load(carry + flat, mask=here, other=0.0)",
        CROSSING,
    ),
    Mutant(
        "device-gru-gate-lost-on-the-way-back",
        "S1-L1",
        ROWS,
        "        d3 = d2 * first\n",
        "        d3 = d2\n",
        LAYER,
    ),
    Mutant(
        "device-initial-state-learns-from-later-rows-only",
        "S1-L1",
        LAYERS,
        " + torch.where(fresh, first, 0.0).sum(0)",
        "",
        LAYER,
    ),
    Mutant(
        "device-bias-learns-from-behind-the-tanh",
        "S1-L1",
        DENSE,
        "            d = d * (1.0 - y * y)\n"
        "            tl.store(slope + flat, d.to(slope.dtype.element_ty), mask=here)\n"
        "        total += d\n",
        "            s = d * (1.0 - y * y)\n"
        "            tl.store(slope + flat, s.to(slope.dtype.element_ty), mask=here)\n"
        "        total += d\n",
        ROWS_OF_DENSE,
    ),
    Mutant(
        "device-bias-learns-from-the-first-blocks-only",
        "S1-L1",
        "functional/kernels/layers/row_sums.py",
        "return slope, sums.sum(0)",
        "return slope, sums[0]",
        ROWS_OF_DENSE,
    ),
    Mutant(
        "device-quantile-without-the-atoms-own-mass",
        "Speed",
        "functional/kernels/losses/lower_quantiles_triton.py",
        "tl.where(other[:, None] <= x, share, 0.0)",
        "tl.where(other[:, None] < x, share, 0.0)",
        unit("kernels/lower_quantiles", "test_they_are_those_of_sorted_atoms"),
    ),
    Mutant(
        "device-quantile-of-an-unknown-atom",
        "Speed",
        "functional/kernels/losses/lower_quantiles_triton.py",
        'lowest = tl.where(unknown, float("nan"), tl.minimum(lowest_there, largest))',
        "lowest = tl.minimum(lowest_there, largest)",
        unit(
            "kernels/lower_quantiles",
            "test_infinite_atoms_are_atoms_and_an_unknown_one_shows",
        ),
    ),
    Mutant(
        "device-tanh-of-nan-is-a-number",
        "S1-L1",
        DENSE,
        "    return tl.where(x == x, y, x)\n",
        "    return tl.where(x == x, y, 0.0)\n",
        unit("kernels/dense", "test_large_and_small_inputs_and_nan_keep_their_tanh"),
    ),
    Mutant(
        "device-weights-learn-from-behind-the-tanh",
        "S1-L1",
        DENSE,
        "        d = d.to(tl.float32) * (1.0 - y * y)\n",
        "        d = d.to(tl.float32)\n",
        unit("kernels/dense", "test_weights_learn_the_same_where_the_input_does_not"),
    ),
    Mutant(
        "device-filled-input-learns-too-wide",
        "S1-L1",
        "functional/kernels/layers/dense.py",
        "torch.mm(slope, weight)[:, : ctx.shape[-1]]",
        "torch.mm(slope, weight)[:, -ctx.shape[-1] :]",
        unit("kernels/dense", "test_an_input_of_another_type_is_filled_up_and_is_the_same"),
    ),
    Mutant(
        "device-column-that-is-passed-on-is-scaled",
        "S1-L1",
        "functional/kernels/decisions_triton.py",
        "tl.where(is_passed[None, :], given, scaled.to(given.dtype))",
        "scaled.to(given.dtype)",
        unit("kernels/decisions", "test_scaled_observations_are_those_of_the_formula"),
    ),
    Mutant(
        "device-class-that-there-is-not",
        "S1-L1",
        "functional/kernels/decisions_triton.py",
        '    score = tl.where(score == score, score, float("inf"))  # a NaN is the largest\n',
        "",
        unit("kernels/decisions", "test_a_row_of_nan_draws_a_class_that_there_is"),
    ),
    Mutant(
        "device-log-probability-of-the-largest",
        "S1-L1",
        "functional/kernels/decisions_triton.py",
        "tl.sum(tl.where(own, shifted, 0.0), axis=1) - tl.log(total)",
        "-tl.log(total)",
        unit("kernels/decisions", "test_log_probabilities_are_those_of_the_formula"),
    ),
    Mutant(
        "device-means-lose-the-digits-of-what-is-small",
        "2.12",
        "functional/kernels/affine_triton.py",
        "        y = y + (tl.load(added) - tl.load(taken)).to(KIND)\n",
        "        y = y + tl.load(added).to(KIND) - tl.load(taken).to(KIND)\n",
        unit("kernels/affine", "test_a_table_is_mapped_as_by_the_formula"),
    ),
    Mutant(
        "device-moments-of-rows-without-weight",
        "2.12",
        "functional/kernels/column_moments_triton.py",
        "((w > 0.0) | (w != w))",
        "(w == w)",
        unit("kernels/column_moments", "test_moments_of_columns_are_those_of_the_formula"),
    ),
    Mutant(
        "steady-weights-stay-for-ever",
        "S1-L1",
        "functional/kernels/layers/steady_weights.py",
        "        _MADE.reset(token)\n",
        "        pass\n",
        unit(
            "kernels/steady_weights",
            "test_what_is_made_of_weights_lives_as_long_as_they_are_steady",
        ),
    ),
    Mutant(
        "steady-weights-of-another-layer",
        "S1-L1",
        "functional/kernels/layers/steady_weights.py",
        "    key = (part, *map(id, weights))\n",
        "    key = part\n",
        unit("kernels/steady_weights", "test_rows_of_a_rollout_are_the_same_through_kernels"),
    ),
    Mutant(
        "device-sequences-of-the-first-row-only",
        "S1-L1",
        "functional/kernels/sequences_triton.py",
        "    source = (row // count).to(tl.int64) * size + place\n",
        "    source = (row // rows).to(tl.int64) * size + place\n",
        unit("kernels/sequences", "test_chosen_sequences_are_those_that_torch_selects"),
    ),
    Mutant(
        "device-heads-learn-from-behind-the-tanh",
        "S1-L1",
        HEADS,
        "        d = d * (1.0 - wide * wide)\n",
        "",
        VALUES_OF_HEADS,
    ),
    Mutant(
        "device-heads-learn-from-the-first-one",
        "S1-L1",
        HEADS,
        "grad + row[:, None] * (8 * grad_eighth) + (head * FILLED + level)[None, :],",
        "grad + row[:, None] * (8 * grad_eighth) + level[None, :],",
        VALUES_OF_HEADS,
    ),
    Mutant(
        "device-heads-forget-a-block-of-rows",
        "S1-L1",
        HEADS,
        '        of_weight = tl.dot(tl.trans(y), factor, of_weight, input_precision="ieee")\n',
        '        of_weight = tl.dot(tl.trans(y), factor, input_precision="ieee")\n',
        VALUES_OF_HEADS,
    ),
    Mutant(
        "device-heads-without-a-gradient-learn-what-memory-held",
        "S1-L1",
        OF_HEADS,
        "                slope[:, columns].zero_()\n",
        "                slope[:, columns].fill_(1.0)\n",
        unit("kernels/heads", "test_a_group_that_nobody_asks_has_no_gradient"),
    ),
    Mutant(
        "device-heads-of-an-account-go-without-it",
        "S1-L1",
        "modules/network.py",
        "        if len(trunks) == 1 and not self.after_memory:\n",
        "        if len(trunks) == 1:\n",
        unit("kernels/heads", "test_a_network_is_the_same_through_kernels"),
    ),
    Mutant(
        "device-quantile-loss-inverted",
        "M01 S1-D1",
        PAIRS,
        "0.5 * inner + lean * tl.abs(inner)",
        "0.5 * inner - lean * tl.abs(inner)",
        unit("kernels/quantile_pairs", "test_the_loss_is_that_of_the_oracle"),
    ),
    Mutant(
        "device-critics-read-the-atoms-of-others",
        "S1-D1",
        PAIRS,
        "rows = target + (sample // shared) * M",
        "rows = target + (sample % (samples // shared)) * M",
        unit("kernels/quantile_pairs", "test_loss_slope_and_share_are_those_of_all_pairs"),
    ),
    Mutant(
        "device-surrogate-takes-the-larger-branch-back",
        "S1-P1",
        POLICY,
        "is_flat = (cut < plain)",
        "is_flat = (cut > plain)",
        SUMS,
    ),
    Mutant(
        "device-divergence-lost-in-rounding",
        "S1-P1",
        POLICY,
        "return tl.where(tl.abs(x) < 0.5, x * x * series, tl.exp(x) - 1.0 - x)",
        "return tl.exp(x) - 1.0 - x",
        unit("kernels/policy_loss", "test_a_divergence_far_below_rounding_is_kept"),
    ),
    Mutant(
        "device-dropped-sample-keeps-its-weight",
        "S1-P1",
        POLICY,
        "w = tl.where(is_finite, given, 0.0)",
        "w = given",
        unit("kernels/policy_loss", "test_samples_that_are_not_finite_are_dropped_and_counted"),
    ),
    Mutant(
        "device-trace-survives-a-truncation",
        "X1 S1-P2",
        RETURNS,
        "tl.where(is_final | is_cut, 0.0, following)",
        "tl.where(is_final, 0.0, following)",
        unit("kernels/target_rows", "test_advantages_are_those_of_the_oracle"),
    ),
    Mutant(
        "device-closed-window-is-discounted-further",
        "S1-P2",
        RETURNS,
        "discount = tl.where(is_open, discount * gamma, discount)",
        "discount = discount * gamma",
        unit("kernels/target_rows", "test_atoms_are_those_of_the_oracle"),
    ),
    Mutant(
        "device-results-take-strides-of-their-inputs",
        "S1-P2",
        TARGETS,
        "torch.empty(like.shape, dtype=dtype, device=like.device)",
        "torch.empty_like(like, dtype=dtype)",
        unit("kernels/target_rows", "test_discounts_may_be_tensors_and_inputs_strided"),
    ),
)
