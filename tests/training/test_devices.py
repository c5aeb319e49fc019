"""Several devices: the same key gives the same learner, and what cannot be shared evenly is refused in a sentence."""

import json
import os
import subprocess
import sys

import jax
import pytest

from stmaml.errors import SettingError
from stmaml.training import devices
from stmaml.training.devices import ONE_DEVICE, layout_for

SCRIPT = """
import json
import equinox as eqx, jax, jax.random as jr, numpy as np
from stmaml.benchmarks import regression2d
from stmaml.benchmarks.sources import freeze
from stmaml.inner import InnerLoop
from stmaml.methods import maml
from stmaml.training import TrainConfig, train_learners
from stmaml.training.devices import ONE_DEVICE, layout_for

source = regression2d.Config(shots=3, query_size=4).open().train
val = freeze(source, 2, seed=1)

class OnHost:
    spec = source.spec
    def sample(self, num_tasks, *, key):
        return source.sample(num_tasks, key=key)

class Losses:
    def __init__(self): self.seen = []
    def progress(self, step, logs): self.seen.append(logs["loss"].tolist())
    def validated(self, *told): pass
    checkpoint = rolled_back = noted = validated

def train(layout, learners=1, source=source, chunk=None):
    config = TrainConfig(steps=4, tasks_per_batch=8, val_tasks=2, steps_per_call=2, outer_lr=0.01, task_chunk=chunk)
    build = maml.Config(hidden=(8,), inner=InnerLoop(inner_steps=1)).build
    fresh, losses = [build(source.spec, key=jr.key(i)) for i in range(learners)], Losses()
    keys = [jr.key(10 + i) for i in range(learners)]
    best = train_learners(fresh, source, val, config, keys=keys, observers=[losses], layout=layout)
    leaves = jax.tree.leaves(eqx.filter(best, eqx.is_inexact_array))
    return {"losses": losses.seen, "weights": [np.asarray(leaf).ravel().tolist() for leaf in leaves],
            "shares": layout.shares, "devices": layout.count}

print(json.dumps({
    "one": train(ONE_DEVICE), "four": train(layout_for("4", tasks=8)),
    "two in turns": train(layout_for("2", tasks=8), chunk=1),
    "two, tasks from the host": train(layout_for("2", tasks=8), source=OnHost()),
    "two learners on one": train(ONE_DEVICE, 2),
    "two learners on two": train(layout_for("2", tasks=8, learners=2), 2),
    "two learners on all": train(layout_for("all", tasks=8, learners=2), 2),
}))
"""


@pytest.fixture(scope="module")
def trained() -> dict:
    """What a process with four simulated devices has learnt, by how it was done."""
    return learnt(SCRIPT)


def learnt(script: str, **environment: str) -> dict:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    env = {**os.environ, "XLA_FLAGS": flags, **environment}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def close(a: dict, b: dict, rounding: float = 1.0) -> None:
    """Equal but for so many times single precision's rounding, grown over the steps."""
    for one, other in zip(a["losses"], b["losses"], strict=True):
        assert one == pytest.approx(other, rel=1e-5 * rounding)
    for one, other in zip(a["weights"], b["weights"], strict=True):
        assert one == pytest.approx(other, rel=1e-4 * rounding, abs=1e-6 * rounding)


@pytest.mark.parametrize("name", ["four", "two in turns", "two, tasks from the host"])
def test_devices_that_share_tasks_learn_what_one_does(trained, name):
    assert trained[name]["devices"] > 1
    assert trained[name]["shares"] == "tasks"
    close(trained["one"], trained[name])


@pytest.mark.parametrize(("name", "shares"), [("two learners on two", "learners"), ("two learners on all", "tasks")])
def test_learners_side_by_side_learn_what_they_do_on_one_device(trained, name, shares):
    assert trained[name]["shares"] == shares
    close(trained["two learners on one"], trained[name])


@pytest.mark.slow
def test_what_parts_devices_is_rounding():
    """In double precision it is smaller by as much as that is finer, 5e8; here at least by 1e7."""
    both = SCRIPT[: SCRIPT.index("print(")] + (
        'print(json.dumps({"one": train(ONE_DEVICE), "four": train(layout_for("4", tasks=8))}))'
    )
    found = learnt(both, JAX_ENABLE_X64="1")
    close(found["one"], found["four"], rounding=1e-7)


def test_four_steps_of_training_change_something(trained):
    first, last = trained["one"]["losses"]
    assert first != last


@pytest.fixture
def eight(monkeypatch):
    """A machine of eight devices."""
    one = jax.devices()[0]
    monkeypatch.setattr(devices.jax, "devices", lambda: [one] * 8)


def test_one_device_is_no_layout_at_all():
    assert layout_for(None, tasks=25) is ONE_DEVICE
    assert layout_for("1", tasks=25) is ONE_DEVICE
    tree = {"a": jax.numpy.ones(2)}
    for same in (ONE_DEVICE.everywhere, ONE_DEVICE.whole, ONE_DEVICE.here):
        assert same(tree) is tree


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("wanted", "tasks", "learners", "words"),
    [
        ("3", 25, 1, "3 devices cannot share the 25 tasks of a meta-batch evenly. Choose --devices 1 or 5, "),
        ("all", 25, 3, "nor the 3 seeds evenly. Choose --devices 1 or 3 or 5, or --tasks-per-batch 24."),
        ("9", 25, 1, "--devices 9 asks for too many: there are 8 (cpu). A CPU can pose as 9"),
        ("0", 25, 1, "--devices must be a number above 0 or 'all'; got '0'."),
        ("two", 25, 1, "--devices must be a number above 0 or 'all'; got 'two'."),
    ],
)
def test_what_cannot_be_shared_is_refused_with_what_can(wanted, tasks, learners, words):
    with pytest.raises(SettingError) as caught:
        layout_for(wanted, tasks=tasks, learners=learners)
    assert words in str(caught.value)


def test_the_command_refuses_devices_before_it_makes_a_run(stmaml, tmp_path):
    words = ("train", "regression2d", "--method", "maml", "--run", tmp_path / "run", "--devices", "64")
    code, _, err = stmaml(*words)
    assert code == 2
    assert "--devices 64 asks for too many" in err
    assert not (tmp_path / "run").exists()
