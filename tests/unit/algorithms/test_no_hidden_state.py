"""Nothing that an agent computes is left behind in it: what goes in comes out, and that is all."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest
import torch
from torch import nn

import stormsail.modules
from learner_lab import ACTIONS, aged, learner, settings
from stormsail.modules.action_values import ActionValues
from stormsail.modules.agent import Agent, ImageSpec

FOLDER = Path(stormsail.modules.__file__).parent
IMAGE = "an image beside the columns"
SHAPES = {
    "lstm": {},
    IMAGE: {"network__enable_critic_lstm": True},
    "gru of two layers": {"network__memory": "gru", "network__num_layers": 2},
    "no memory": {"network__memory": "none"},
    "learned start": {"network__learn_initial_state": True},
    "critics with a memory of their own": {"network__enable_critic_lstm": True},
    "monotone": {"critic__monotone_quantiles": True},
    "one critic": {"critic__use_twin_critics": False},
    "relu": {"network__activation": "relu"},
    "categorical": {"critic__kind": "categorical"},
    "scalar": {"critic__kind": "scalar", "target__kind": "lambda_return"},
}
CASES = [(name, "categorical") for name in SHAPES] + [("lstm", "gaussian"), ("lstm", "beta")]


def held(agent):
    """Return what every module and the action head hold: which objects, and how often written."""
    result = {}
    owners = [*agent.named_modules(), ("head", agent.network.head)]
    for path, owner in owners:
        for name, value in vars(owner).items():
            result[path, name] = id(value)
            if isinstance(value, dict):
                for key, part in value.items():
                    version = part._version if isinstance(part, torch.Tensor) else 0
                    result[path, name, key] = (id(part), version)
    return result


def everything(agent):
    """Compute whatever can be asked of an agent, with and without gradients."""
    source = torch.Generator().manual_seed(1)
    rows, count = 4, 3
    observation = torch.randn(rows, count, agent.spec.columns, generator=source)
    memory = agent.initial_memory(count)
    reset = torch.rand(rows, count, generator=source) < 0.3
    network, head, critic = agent.network, agent.network.head, agent.network.critic
    for row in observation:
        agent.decide(row, memory, deterministic=True)
        decision = agent.decide(row, memory, deterministic=False, generator=source)
        memory = decision.memory
    output = network(agent.normalised(observation), memory, reset)
    raw = head.sample(output.actor.detach(), source)
    parts = [head.log_prob(output.actor, raw).sum(), head.entropy(output.actor).sum()]
    head.mode(output.actor)
    head.to_task(raw)
    head.kl(output.actor.detach(), output.actor)
    parts += [critic.value(output.critic).sum(), critic.distribution(output.critic).sum()]
    scale = agent.return_scale
    parts.append(scale.encode(scale.decode(output.critic)).sum())
    torch.autograd.grad(sum(parts), list(agent.parameters()), allow_unused=True)


@pytest.fixture
def forwarded():
    """Collect the classes whose `forward` ran."""
    seen = set()

    def note(module, *_):
        seen.add(type(module))

    handle = nn.modules.module.register_module_forward_hook(note)
    yield seen
    handle.remove()


def action_values():
    return ActionValues(
        6, rewards=2, actions=3, sizes=(4,), generator=torch.Generator().manual_seed(0)
    )


def agent_of(shape, actions):
    space, changes = ACTIONS[actions]
    agent = aged(learner(settings(**SHAPES[shape], **changes), actions=space)).agent
    if shape == IMAGE:
        image = ImageSpec(name="camera", channels=2, height=9, width=8)
        return Agent(agent.spec.replace(images=(image,)), torch.Generator().manual_seed(2))
    return agent


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("shape", "actions"), CASES)
@pytest.mark.spec("S3-arch")
def test_no_forward_pass_leaves_anything_in_a_module(shape, actions, training):
    agent = agent_of(shape, actions).train(training)
    before = held(agent)
    assert len(before) > 100
    everything(agent)
    after = held(agent)
    assert sorted(map(str, after.keys() ^ before.keys())) == []
    assert {name for name in before if before[name] != after[name]} == set()


@pytest.mark.spec("S3-arch")
def test_values_of_all_actions_leave_nothing_behind():
    values = action_values()
    before = {
        (path, name): id(v) for path, m in values.named_modules() for name, v in vars(m).items()
    }
    value, added = values(torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))
    (value.sum() + added.square().sum()).backward()
    after = {
        (path, name): id(v) for path, m in values.named_modules() for name, v in vars(m).items()
    }
    assert after == before


def test_every_module_of_the_package_was_asked(forwarded):
    for shape, actions in CASES:
        everything(agent_of(shape, actions))
    action_values()(torch.zeros(2, 6))
    names = [f"stormsail.modules.{one.name}" for one in pkgutil.iter_modules([str(FOLDER)])]
    own = {
        result
        for name in names
        for result in vars(importlib.import_module(name)).values()
        if isinstance(result, type)
        and issubclass(result, nn.Module)
        and result.__module__.startswith("stormsail")
        and "forward" in vars(result)
    }
    assert len(own) >= 6
    assert own <= forwarded


def test_a_cached_tensor_would_be_seen():
    agent = agent_of("lstm", "categorical")
    real = agent.network.critic.forward

    def caches(x):
        agent.network.critic.last_seen = x.detach()
        return real(x)

    before = held(agent)
    agent.network.critic.forward = caches
    everything(agent)
    del agent.network.critic.forward
    assert held(agent).keys() - before.keys() == {("network.critic", "last_seen")}


def assigned(tree):
    """Return methods that set an attribute of their object and are not its constructor."""
    result = []
    for method in ast.walk(tree):
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for node in ast.walk(method):
            calls = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr"
            if calls or _is_own(node):
                result.append(method.name)
    return result


def _is_own(node):
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
@pytest.mark.spec("S3-arch")
def test_only_a_constructor_sets_attributes(file):
    assert assigned(ast.parse(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("self.x = 1", ["forward"]),
        ("self.x += 1", ["forward"]),
        ("self.x: int = 1", ["forward"]),
        ("y, self.x = 1, 2", ["forward"]),
        ("setattr(self, 'x', 1)", ["forward"]),
        ("x = self.x", []),
        ("self.x.y = 1", []),
        ("x[self.y] = 1", []),
    ],
)
def test_an_assignment_in_a_method_is_noticed(line, seen):
    first = "class A:\n    def __init__(self):\n        self.x = 0\n"
    code = f"{first}    def forward(self):\n        {line}\n"
    assert assigned(ast.parse(code)) == seen
