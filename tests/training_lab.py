"""Runs so small that hundreds of them fit into a test, and what must be equal of two runs."""

import hashlib
import json
from pathlib import Path
from typing import Any

from stormsail.algorithms.callbacks import Progress
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.trainer import Run, Trainer, train

UPDATES = 6
SMALL: dict[str, Any] = {
    "network.encoder_sizes": (6,),
    "network.lstm_hidden_size": 5,
    "network.head_sizes": (6,),
    "critic.num_quantiles": 5,
    "critic.num_atoms": 7,
    "ppo.n_envs": 4,
    "ppo.n_steps": 8,
    "ppo.batch_size": 2,
    "ppo.n_epochs": 2,
    "ppo.total_steps": UPDATES * 32,
    "ppo.learning_rate": 1e-3,
    "checkpoint.every_updates": 2,
    "validation.every_updates": 4,
    "validation.episodes": 3,
    "observation.warmup_steps": 0,
    "seed": 5,
}

MARKET: dict[str, Any] = {
    "task.name": "market",
    "task.data.world_bars": 700,
    "task.data.world_symbols": 2,
    "task.market.features": (
        {"name": "log_return", "parameters": {"horizon": 1}},
        {"name": "realised_volatility", "parameters": {"window": 24}},
    ),
    "task.market.episode_bars": 12,
    "task.market.randomise.taker_fee": (0.5, 2.0),
    "task.market.randomise.impact": (0.5, 2.0),
    "task.market.degrade.stale_prob": 0.1,
    "task.market.degrade.drop_prob": 0.1,
    "task.market.degrade.delay_prob": 0.2,
    "task.market.degrade.max_delay_bars": 2,
    "task.market.stops.drawdown": 0.02,
    "task.market.no_trade.daily": ("08:00-09:00",),
    "network.learn_initial_state": True,
    "network.enable_critic_lstm": True,
    "network.num_layers": 2,
    "ppo.sequence_length": 4,
    "ppo.batch_size": 4,
    "ppo.microbatch_size": 2,
    "ppo.clip_range_warmup_updates": 5,
    "ppo.vf_coef_warmup_updates": 5,
    "ppo.vf_bad_explained_scale": 0.5,
    "kl.penalty": True,
    "kl.target_kl": 0.02,
    "bc.awr_coef": 0.2,
    "bc.bc_warmup_steps": 64,
    "bc.bc_decay_steps": 100,
    "entropy.ent_coef_plateau_window": 3,
    "entropy.ent_coef_plateau_min_updates": 3,
    "entropy.ent_coef_plateau_tolerance": 1.0,
    "entropy.ent_coef_decay_steps": 4,
    "entropy.entropy_boost_factor": 1.5,
    "value_clip.clip_range_vf": 0.2,
    "value_clip.distributional_vf_clip_mode": "mean_and_variance",
    "returns.warmup_updates": 2,
    "returns.std_floor_mode": "adaptive",
    "critic.v_range_ema_alpha": 0.2,
    "risk.cvar_use_constraint": True,
    "risk.cvar_limit": -0.005,
    "risk.cvar_weight": 0.2,
    "risk.cvar_alpha": 0.4,
    "risk.cvar_window": 7,
    "risk.cvar_min_samples": 4,
    "risk.cvar_min_tail_samples": 1,
    "risk.cvar_activation_threshold": -50.0,
    "risk.cvar_ramp_updates": 4,
}
"""The market with everything on that carries something from update to update."""

TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"task.name": "CartPole-v1", "network.memory": "none"},
    "cartpole-lstm": {"task.name": "CartPoleNoVel-v1"},
    "pendulum": {"task.name": "Pendulum-v1", "entropy.entropy_mode": "corrected_mc"},
    "market": MARKET,
}


def small(task: str = "cartpole-lstm", **changes: Any) -> TrainConfig:
    """Return a tiny run; a double underscore reaches into a section."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return derive(TrainConfig().replace(**{**SMALL, **TASKS[task], **dotted}))


def run_all(config: TrainConfig, out: Path) -> Run:
    return train(config, out=out, tensorboard=False)


def interrupted(config, out, monkeypatch, updates, **options):
    """Train through the public call until a signal comes after some updates."""
    real = Trainer.advance

    def advance(self):
        real(self)
        if self.ppo.update_count >= updates:
            self.stop(15)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", advance)
        return train(config, out=out, tensorboard=False, **options)


def run_for(config: TrainConfig, out: Path, updates: int) -> Run:
    """Train for some updates, then interrupt as a signal would."""
    bound = binding(config)
    with open_run(out, config, bound) as folder:
        trainer = Trainer(folder, bound)

        def watch(progress: Progress) -> None:
            if progress.update >= updates:
                trainer.stop(15)

        trainer._on_progress = watch
        return trainer.run()


def image(out: Path) -> dict[str, str]:
    """Return the SHA-256 of everything that two equal runs have in common at their end.

    The newest checkpoint holds every tensor, every random stream, every counter and controller.
    The place of a run in its trial ledger, whose lines hold times, is its own.
    """
    newest = max((out / "checkpoints").glob("[0-9]*"))
    files = [*newest.iterdir(), *(out / "best").iterdir()]
    files += [out / name for name in ("config.toml", "metrics.parquet", "events.jsonl")]
    contents = {str(path.relative_to(out)): path.read_bytes() for path in files}
    manifest = json.loads((out / "manifest.json").read_text())
    contents["manifest.json"] = json.dumps(manifest | {"trials": None}).encode()
    return {name: hashlib.sha256(contents[name]).hexdigest() for name in sorted(contents)}
