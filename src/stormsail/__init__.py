"""stormsail: trading agents that know their own tail risk.

Layers, from the bottom: `core` (words), `functional` (formulas), `modules`, `optim`, `market` and
`monitors` (weights, steps, bars, verdicts), `evaluation` (judging), `algorithms` and `execution`
(order), `cli` (verbs). A file imports from lower layers and from its own package only.
"""

__version__ = "0.1.0"
