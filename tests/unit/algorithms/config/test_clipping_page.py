"""`docs/clipping.md` names settings, metrics and alarms that exist, and the defaults it tells."""

import re
from pathlib import Path

import pytest

from stormsail.algorithms.config import TrainConfig
from stormsail.core.config import Config

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "clipping.md").read_text(encoding="utf-8")
KNOWN = set(re.findall(r"^\| `([^`]+)` \|", (DOCS / "metrics.md").read_text("utf-8"), re.MULTILINE))
SECTIONS = tuple(
    name for name, value in TrainConfig() if isinstance(value, Config) and name != "task"
)


def named(pattern):
    return sorted(set(re.findall(rf"`({pattern})`", PAGE)))


METRICS = named(r"(?:train|vgs|lstm|warn|alert|error)/[\w/]+")
SETTINGS = named(rf"(?:{'|'.join(SECTIONS)})\.\w+")


@pytest.mark.spec("S4-Q2", "S4-V7")
def test_every_metric_and_alarm_of_the_page_exists():
    assert len(METRICS) >= 35
    assert [name for name in METRICS if name not in KNOWN] == []


def test_every_share_that_is_reported_is_explained():
    shares = {name for name in KNOWN if name.startswith("train/clip_active_frac/")}
    assert len(shares) == 5
    assert shares <= set(METRICS)


@pytest.mark.spec("S4-Q2")
def test_every_setting_of_the_page_exists():
    functions = {"policy.drop_nonfinite", "policy.count_nonfinite"}
    settings = [name for name in SETTINGS if name not in functions]
    assert len(settings) >= 28
    default = TrainConfig()
    for name in settings:
        section, _, field = name.partition(".")
        assert field in type(getattr(default, section)).model_fields, name
    held = type(default.value_clip).model_fields
    for field in named(r"(?:vf|distributional)_\w+"):
        assert field in held, field


@pytest.mark.parametrize(
    ("mechanism", "on", "path", "value"),
    [
        ("ratio band 1 ± ε", "yes, 0.2", "ppo.clip_range", 0.2),
        ("divergence stop", "yes, 0.08", "kl.target_kl", 0.08),
        ("bounds of the penalty", "no", "kl.penalty", False),
        ("value limit ± L", "no", "value_clip.value_clip_limit", None),
        ("advantage clip", "no", "ppo.adv_clip", None),
        ("weight cap of imitation", "no: the term has weight 0", "bc.awr_coef", 0.0),
        ("value clip, quantile critic", "no", "value_clip.clip_range_vf", None),
        ("Huber threshold κ", "yes, 0.02", "critic.huber_kappa", 0.02),
        ("floor of the return spread", "yes, 1e-8", "returns.std_floor", 1e-8),
        ("cap of the gain", "yes, 1000", "returns.value_target_scale_cap", 1000.0),
        ("cap of the noise ratio", "no", "vgs.enabled", False),
        ("gradient clip", "yes, 0.5", "ppo.max_grad_norm", 0.5),
        ("bounds of the learning rate", "floor yes, 5e-6", "ppo.optimizer_lr_min", 5e-6),
        ("bounds of the entropy bonus", "floor yes, boost no", "entropy.entropy_boost_factor", 1.0),
        ("observation clip ± 10", "yes", "observation.normalise", True),
        ("samples that are not finite", "yes", "ppo.nonfinite_policy", "drop"),
        ("range of a target", 'cut: only with `target.kind = "lambda_return"`', "target.kind",
         "nstep"),
    ],
)  # fmt: skip
@pytest.mark.spec("S4-Q2")
def test_what_the_page_calls_on_is_on_by_default(mechanism, on, path, value):
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {mechanism} |")]
    assert line.split(" | ")[2] == on
    section, _, field = path.partition(".")
    assert getattr(getattr(TrainConfig(), section), field) == value


def test_the_scaler_never_reaches_its_cap():
    vgs = TrainConfig().vgs
    least = vgs.min_scaling_factor
    assert (1.0 / least - 1.0) / vgs.alpha == pytest.approx(10.0)  # as the page says
    assert vgs.variance_cap == 50.0
