"""The files of a population as a report reads them, written by hand."""

import json

RATE, SCALE = "ppo.learning_rate", "optimizer.noise_scale"
CONFIG = """
[population]
population_size = 3
metric_mode = "{mode}"
[population.search."ppo.learning_rate"]
min = 0.001
max = 0.1
is_log_scale = true
[population.search."optimizer.noise_scale"]
values = ["rms_grad", "a<b"]
is_log_scale = false
"""
FIRST = ((0.01, "rms_grad"), (0.02, "a<b"), (0.04, "rms_grad"))


def _decision(member, source, rate, scale):
    values = {RATE: rate, SCALE: scale}
    reason = {"reason": "", "stream": "", "explored": source != member}
    return {"member": member, "source": source, "values": values, **reason}


def ledger_line(number, raw, fitness, decisions):
    outcomes = [
        {
            "member": member, "round": number, "fitness": value, "updates": 10 * (number + 1),
            "digest": "", "applied": {}, "metrics": {}, "stopped": value is None,
        }
        for member, value in enumerate(raw)
    ]  # fmt: skip
    kept = [_decision(member, *entry) for member, entry in enumerate(decisions)]
    return {"round": number, "outcomes": outcomes, "fitness": fitness, "decisions": kept}


def rounds():
    """Return the lines of a ledger.

    Member 2 copies 1, then 0 copies 2: the weights of 0 came from 1, 2 and itself.
    """
    zero, one, two = (0, 0.01, "rms_grad"), (1, 0.02, "a<b"), (2, 0.024, "a<b")
    return [
        ledger_line(0, [1.0, 2.0, None], [1.0, 2.0, None], [zero, one, (1, 0.024, "a<b")]),
        ledger_line(1, [0.5, 2.0, 4.0], [0.75, 2.0, 3.0], [(2, 0.0288, "rms_grad"), one, two]),
        ledger_line(2, [9.0, 2.0, 4.0], [6.0, 2.0, 3.5], []),
    ]


def write_ledger(root, lines, mode="max"):
    """Write the files of a population that a report reads."""
    root.mkdir(parents=True)
    (root / "config.toml").write_text(CONFIG.format(mode=mode))
    (root / "population.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    for member, (rate, scale) in enumerate(FIRST):
        own = root / "members" / f"{member:02d}"
        own.mkdir(parents=True)
        values = {RATE: rate, SCALE: scale}
        copies = [{"old": values, "new": {}}, {"old": {}, "new": {}}] if member == 2 else []
        (own / "lineage.json").write_text(json.dumps({"copies": copies}))
        rate = 0.5 if copies else rate  # a configuration holds the values after copies
        text = f'[ppo]\nlearning_rate = {rate}\n[optimizer]\nnoise_scale = "{scale}"\n'
        (own / "config.toml").write_text(text)
    return root
