"""Faster twins of formulas, each tested against the plain one. Nothing here is public.

For a CPU: `packed_lstm`, `quantile_huber`, and `traced_huber` for its compiler. For a CUDA device
with Triton, which is imported when a kernel is launched first (`devices.may_launch` tells whether
it can be); static shapes, no host sync, numbers that change between updates as 0-dim tensors:

- `recurrent.recurrent_sequence(kind, x, Layer(input_weight, hidden_weight, input_bias,
  hidden_bias), state [B, P, H], reset [T, B], initial [P, H], *, dtype=None)` -> outputs [T, B, H]
  in `dtype`, state in float32. `dtype` is float32 or bfloat16, by default that of autocast. Without
  gradients nothing is kept for the way back; one row is the cell of a rollout.
- `dense.dense(x, weight, bias, *, tanh, dtype=None)` -> [*b, N] in `dtype`, as above.
- `heads.heads(x, groups, *, dtype=None)`: hidden layers with a tanh and last layers on one input ->
  float32 [*b, heads, N] of each group; `groups` are lists of `Head`.
- `decisions.standardised`, `drawn_classes`, `class_log_prob`: of each row of a decision.
- `steady_weights.steady_weights()`: a rollout's scope, in which what is made of weights is kept.
- `affine.mapped(x, factor=, added=, taken=, divisor=)`: an affine map in one pass, where it `maps`.
- `column_moments.column_moments(x [n, N], weight [n])`: as `statistics.moments`, where it `adds`.
- `sequences.chosen_sequences(table, chosen, axis)`: as `index_select`.
- `quantile_pairs.huber_loss(predicted, target, tau, kappa, mass)` -> [*b]; `huber_active`, and
  `huber_loss_and_seen` for both, crossing and means in one pass. A target expanded over critics is
  read where it is.
- `policy_loss.policy_sums(logits, action, old_log_prob, old_logits, advantage, weight, *, clip,
  entropy_coef, kl_coef, extreme)` -> `PolicySums`; an advantage [*b, A] is that of every action.
- `target_rows.gae`, `quantile_nstep_targets` and `windows`: as in `functional.returns`.
- `utility_step` and `utility_rows`: the step of an optimizer, launched by `optim.fused`.

The `*_triton` modules hold the kernels, the others launch them.
"""
