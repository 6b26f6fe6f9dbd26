"""Critics: twins that differ, readings of several as one, and units that move."""

import pytest
import torch

from stormsail.core.errors import ConfigError
from stormsail.functional import quantile
from stormsail.modules.config import CriticConfig
from stormsail.modules.critics import Critic
from stormsail.modules.scale import ReturnScale

H = 6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def build(*, seed=0, dtype=torch.float64, sizes=(8,), **settings):
    config = CriticConfig(**settings)
    made = Critic(H, config, sizes=sizes, activation="tanh", generator=seeded(seed))
    return made.to(dtype)


def features(*shape, seed=1):
    return torch.randn(*shape, H, generator=seeded(seed), dtype=torch.float64)


KINDS = {
    "quantile": {"kind": "quantile", "num_quantiles": 7},
    "monotone": {"kind": "quantile", "num_quantiles": 7, "monotone_quantiles": True},
    "categorical": {"kind": "categorical", "num_atoms": 9},
    "scalar": {"kind": "scalar"},
}


def gain_of(settings):
    """Return the gain of the last layer: monotone quantiles begin with nearly no weights."""
    return 0.01 if settings.get("monotone_quantiles") else 1.0


all_kinds = pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)


@all_kinds
@pytest.mark.parametrize("twins", [False, True])
def test_shapes(settings, twins):
    critic = build(**settings, use_twin_critics=twins)
    width = {"quantile": 7, "categorical": 9, "scalar": 1}[settings["kind"]]
    predicted = critic(features(4, 3))
    assert predicted.shape == (4, 3, 1 + twins, width)
    assert critic.means(predicted).shape == (4, 3, 1 + twins)
    assert critic.value(predicted).shape == (4, 3)
    assert critic.distribution(predicted).shape == (4, 3, width)
    assert len(critic.last_layers()) == 1 + twins


@pytest.mark.parametrize("count", [1, 2, 21, 51])
@pytest.mark.spec("T-Q4", "S2-opt2")
def test_any_number_of_quantiles_works(count):
    critic = build(num_quantiles=count)
    predicted = critic(features(2))
    assert predicted.shape == (2, 2, count)
    assert torch.equal(critic.means(predicted), predicted.mean(-1))


@all_kinds
@pytest.mark.parametrize("sizes", [(), (8,), (8, 5)])
def test_twins_start_different_in_every_layer(settings, sizes):
    first, second = build(**settings, sizes=sizes).heads
    pairs = list(zip(first.named_parameters(), second.named_parameters(), strict=True))
    assert len(pairs) == 2 * (1 + len(sizes))
    for (name, one), (_, other) in pairs:
        assert not name.endswith("weight") or not torch.equal(one, other)
    x = features(5)
    assert (first(x) - second(x)).abs().max() > 0.05 * gain_of(settings)


@all_kinds
def test_weights_start_orthogonal_with_the_gains_of_ppo(settings):
    for head in build(**settings).heads:
        body, last = head.body.layers[0], head.last
        square = body.weight.t() @ body.weight  # 8 x 6: columns
        torch.testing.assert_close(square, 2.0 * torch.eye(H).double(), rtol=0, atol=1e-6)
        wide = last.weight @ last.weight.t() if last.weight.shape[0] <= 8 else None
        if wide is not None:
            eye, unit = torch.eye(len(wide)).double(), gain_of(settings) ** 2
            torch.testing.assert_close(wide / unit, eye, rtol=0, atol=1e-6)
        assert not body.bias.any()
        assert not last.bias.any()


def test_the_same_generator_gives_the_same_critics():
    one, again, other = build(seed=3), build(seed=3), build(seed=4)
    assert all(map(torch.equal, one.parameters(), again.parameters()))
    assert not torch.equal(one.heads[0].last.weight, other.heads[0].last.weight)


def biased(kind, *, gap=1.0, **settings):
    """Return two equal critics, of which the first predicts `gap` more."""
    critic = build(**KINDS[kind], **settings)
    critic.heads[0].load_state_dict(critic.heads[1].state_dict())
    with torch.no_grad():
        critic.heads[0].last.bias.add_(gap)
    return critic


@pytest.mark.spec("T-T2", "S1-T1", "S3-FP2")
@pytest.mark.parametrize("kind", ["quantile", "scalar"])
def test_the_smaller_of_two_biased_critics_is_read(kind):
    critic = biased(kind)
    predicted = critic(features(5))
    torch.testing.assert_close(critic.value(predicted), predicted[:, 1].mean(-1))
    torch.testing.assert_close(critic.distribution(predicted), predicted[:, 1])
    both = biased(kind, twin_value_mode="mean")
    torch.testing.assert_close(both.value(predicted), predicted[:, 1].mean(-1) + 0.5)


def test_distributions_of_a_categorical_critic_are_probabilities():
    critic = build(**KINDS["categorical"])
    predicted = critic(features(5))
    probs = predicted.softmax(-1)
    torch.testing.assert_close(critic.distribution(predicted).sum(-1), torch.ones(5).double())
    means = (probs * critic.atoms).sum(-1)
    torch.testing.assert_close(critic.means(predicted), means)
    torch.testing.assert_close(critic.value(predicted), means.amin(-1))
    chosen = probs[torch.arange(5), means.argmin(-1)]
    torch.testing.assert_close(critic.distribution(predicted), chosen)
    mixed = build(**KINDS["categorical"], twin_dist_mode="mixture")
    torch.testing.assert_close(mixed.distribution(predicted), probs.mean(-2))


def test_monotone_quantiles_never_cross():
    predicted = build(**KINDS["monotone"])(10.0 * features(200))
    assert (predicted.diff(dim=-1) >= 0.0).all()
    assert (build(**KINDS["quantile"])(10.0 * features(200)).diff(dim=-1) < 0.0).any()


@pytest.mark.parametrize("count", [1, 2, 8, 32, 200])
def test_monotone_quantiles_begin_around_zero_and_two_units_wide(count):
    """As wide as the plain head's, not 0.69 for every quantile with a mean of half of that."""
    made = build(num_quantiles=count, monotone_quantiles=True, sizes=(64,))
    predicted = made(features(256)).detach()
    assert float(predicted.mean(-1).abs().max()) < 0.1
    width = predicted[..., -1] - predicted[..., 0]
    low, high = (0.0, 0.0) if count == 1 else (1.8, 2.2)
    assert low <= float(width.min()) <= float(width.max()) <= high


@pytest.mark.parametrize("count", [2, 32])
def test_the_first_gradient_reaches_every_layer_of_a_monotone_head(count):
    made = build(num_quantiles=count, monotone_quantiles=True)
    tau = quantile.midpoints(count, like=torch.zeros(1, dtype=torch.float64))
    target = torch.full((16, 2, 4), 3.0, dtype=torch.float64)
    quantile.huber_loss(made(features(16)), target, tau, kappa=0.02).sum().backward()
    for name, parameter in made.named_parameters():
        assert float(parameter.grad.abs().max()) > 1e-5, name


@pytest.mark.parametrize("count", [2, 8, 32])
def test_monotone_quantiles_fit_known_ones_as_well_as_plain_ones(count):
    """A normal and an exponential distribution, one in each of two states, from 256 atoms."""
    normal = torch.distributions.Normal(0.0, 1.0)

    def inverse(level):
        return torch.stack((normal.icdf(level), -torch.log1p(-level) - 1.0))

    levels, atoms = quantile.midpoints(count), inverse(quantile.midpoints(256))
    states, wanted = features(2).float(), inverse(levels)[:, None]
    error = {}
    for monotone in (False, True):
        made = build(
            num_quantiles=count, monotone_quantiles=monotone, dtype=torch.float32, sizes=(16,)
        )
        optimizer = torch.optim.Adam(made.parameters(), lr=0.02)
        for step in range(200):
            optimizer.param_groups[0]["lr"] = 0.02 * (1.0 - step / 200)
            target = atoms[:, None].expand(2, 2, 256)
            loss = quantile.huber_loss(made(states), target, levels, kappa=0.02).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error[monotone] = float((made(states).detach() - wanted).abs().mean())
    assert error[True] < 0.02
    assert error[True] < 1.2 * error[False] + 0.002


MOVES = [((0.0, 1.0), (3.0, 0.25)), ((2.0, 0.5), (-400.0, 30.0)), ((-1.0, 2.0), (-1.0, 2.0))]


def decoded(critic, x, mean, std):
    """Return every prediction in reward units: quantiles or values, or atoms and probabilities."""
    scale = ReturnScale()
    scale.mean.fill_(mean)
    scale.std.fill_(std)
    predicted = critic(x)
    if critic.config.kind == "categorical":
        return [
            scale.decode(critic.atoms),
            predicted.softmax(-1),
            scale.decode(critic.means(predicted)),
        ]
    return [scale.decode(predicted), scale.decode(critic.value(predicted))]


@pytest.mark.spec("T-R1", "S0-3", "S2-3")
@all_kinds
@pytest.mark.parametrize(("old", "new"), MOVES)
def test_decoded_predictions_stay_while_units_move(settings, old, new):
    critic, x = build(**settings), features(20)
    before = [part.detach().clone() for part in decoded(critic, x, *old)]
    numbers = [torch.tensor(value, dtype=torch.float64) for value in (*old, *new)]
    critic.rescale(*numbers)
    for a, b in zip(decoded(critic, x, *new), before, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    if old != new and settings["kind"] != "categorical":  # both critics moved
        raw = critic(x)
        assert ((raw[:, 0] - before[0][:, 0]).abs() > 1e-3).any()
        assert ((raw[:, 1] - before[0][:, 1]).abs() > 1e-3).any()


@all_kinds
def test_a_thousand_moves_cost_no_digits_in_float32(settings):
    critic, x = build(**settings, dtype=torch.float32), features(20).float()
    units = (0.0, 1.0)
    before = [part.detach().clone() for part in decoded(critic, x, *units)]
    steps = torch.randn(1000, 2, generator=seeded(9)).double()
    for shift, stretch in steps.tolist():
        moved = (0.95 * units[0] + 0.1 * shift, min(max(units[1] * 1.1**stretch, 0.2), 5.0))
        critic.rescale(*(torch.tensor(value).double() for value in (*units, *moved)))
        units = moved
    for a, b in zip(decoded(critic, x, *units), before, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_rescaling_is_not_recorded_and_keeps_the_parameters():
    critic = build()
    kept = list(critic.parameters())
    critic.rescale(*(torch.tensor(value).double() for value in (0.0, 1.0, 1.0, 2.0)))
    assert all(one is other for one, other in zip(kept, critic.parameters(), strict=True))
    assert all(parameter.is_leaf and parameter.grad is None for parameter in kept)


def test_gradients_of_one_critic_stay_its_own():
    critic = build()
    critic(features(5))[:, 0].sum().backward()
    assert all(parameter.grad.any() for parameter in critic.heads[0].parameters())
    assert all(
        parameter.grad is None or not parameter.grad.any()
        for parameter in critic.heads[1].parameters()
    )


def test_the_support_starts_where_the_configuration_says():
    critic = build(kind="categorical", num_atoms=5, v_min=-2.0, v_max=6.0)
    assert critic.atoms.tolist() == [-2.0, 0.0, 2.0, 4.0, 6.0]


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"v_min": 1.0, "v_max": 1.0}, "`v_min` must be below `v_max`, not 1.0 and 1.0"),
        (
            {"kind": "categorical", "twin_dist_mode": "elementwise_min"},
            "`twin_dist_mode` must be `argmin` or `mixture` for a categorical critic",
        ),
        ({"num_atoms": 1}, "num_atoms"),
        ({"num_quantiles": 0}, "num_quantiles"),
    ],
)
def test_settings_that_fit_no_critic_are_refused(settings, words):
    with pytest.raises(ConfigError) as caught:
        CriticConfig(**settings)
    assert words in str(caught.value)


TAIL = {"kind": "quantile", "num_quantiles": 8, "levels": "tail"}


def test_tail_levels_of_a_critic_by_hand():
    # 8 levels: two cells of .025, six of .95 / 6
    critic = build(**TAIL)
    wide = 0.95 / 6
    expected = [0.0125, 0.0375, *(0.05 + wide * (i + 0.5) for i in range(6))]
    assert critic.levels().tolist() == pytest.approx(expected, rel=1e-12)
    assert critic.weights().tolist() == pytest.approx([0.025] * 2 + [wide] * 6, rel=1e-12)
    plain = build(kind="quantile", num_quantiles=8)
    assert plain.weights() is None
    assert plain.levels().tolist() == [(i + 0.5) / 8 for i in range(8)]
    assert build(kind="categorical", levels="uniform").weights() is None


@pytest.mark.parametrize("monotone", [False, True])
def test_means_and_values_are_read_by_mass(monotone):
    critic = build(**TAIL, monotone_quantiles=monotone)
    with torch.no_grad():
        for head in critic.heads:
            head.last.weight.normal_(generator=seeded(3))
    predicted = critic(features(4)).detach()
    expected = (predicted * critic.weights()).sum(-1)
    assert torch.allclose(critic.means(predicted), expected, atol=1e-12)
    assert torch.allclose(critic.value(predicted), expected.amin(-1), atol=1e-12)
    chosen = expected.argmin(-1)
    assert torch.equal(critic.distribution(predicted), predicted[torch.arange(4), chosen])
    if monotone:
        assert bool((predicted.diff(dim=-1) >= 0.0).all())


def test_weighted_predictions_keep_their_value_through_a_change_of_units():
    for monotone in (False, True):
        critic = build(**TAIL, monotone_quantiles=monotone)
        scale = torch.tensor([0.3, 2.0, -1.0, 0.7], dtype=torch.float64)
        before = critic(features(5)).detach() * scale[1] + scale[0]
        critic.rescale(*scale)
        after = critic(features(5)).detach() * scale[3] + scale[2]
        assert torch.allclose(before, after, atol=1e-10)


def test_the_levels_of_mixed_twins_are_those_of_all_their_quantiles():
    mixed = build(kind="quantile", num_quantiles=3, twin_dist_mode="mixture")
    assert mixed.distribution_levels().tolist() == pytest.approx([(i + 0.5) / 6 for i in range(6)])
    assert build(**TAIL).distribution_levels().tolist() == build(**TAIL).levels().tolist()


@pytest.mark.refusal
def test_a_mixture_at_tail_levels_is_refused():
    with pytest.raises(ConfigError, match="`twin_dist_mode` must be `argmin` or `elementwise_min`"):
        CriticConfig(levels="tail", twin_dist_mode="mixture")
