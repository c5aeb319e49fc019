"""Bounded memory: sizes, the choice of a plan, and that no plan changes what is learnt."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.sources import freeze
from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import maml, neural_processes, st_maml
from stmaml.methods.standardised import Standardised
from stmaml.progress import listening
from stmaml.tasks import Scaling, TaskBatch, TaskSpec
from stmaml.training import TrainConfig, initial_state, loop, memory, meta_step, train_learners
from stmaml.training.memory import Plan, choose, largest_divisor, parse_size, recomputing, size_text
from tests.changed import changed

SOURCE = regression2d.Config(shots=4, query_size=5).open().train
INNER = InnerLoop(inner_lr=0.05, inner_steps=2)
LEARNERS = {
    "maml": maml.Config(hidden=(8,), inner=INNER),
    "st-maml": changed(st_maml.Config(), hidden=(8,), encoder=(8,), z_hidden=(), z_size=4, h_size=3, inner=INNER),
}


QUICK = maml.Config(hidden=(4,), inner=InnerLoop(inner_lr=0.05, inner_steps=1))


class Blobs(eqx.Module):
    """Two-way tasks of 4x4 grey images; a class is a mean brightness."""

    spec: TaskSpec = eqx.field(static=True, default=TaskSpec((4, 4, 1), 2, target="class"))

    def sample(self, num_tasks, *, key):
        x = jr.uniform(key, (num_tasks, 8, 4, 4, 1))
        y = jnp.tile(jnp.arange(8) % 2, (num_tasks, 1))
        x = x + y[:, :, None, None, None]
        return TaskBatch.of(x[:, :4], y[:, :4], x[:, 4:], y[:, 4:])


class ImageMean(maml.MAML):
    """MAML on flattened images: an image learner that compiles quickly."""

    def loss(self, task, *, key):
        return super().loss(jax.tree.map(_flat, task), key=key)

    def adapt(self, support, *, num_samples, key):
        return super().adapt(jax.tree.map(_flat, support), num_samples=num_samples, key=key)


def _flat(leaf):
    return leaf.reshape(*leaf.shape[:-3], -1) if leaf.ndim >= 4 else leaf


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("1.5 GiB", 3 * 2**29), ("500mb", 5 * 10**8), ("auto", None), (" Auto", None)],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["8", "GB", "-1GB", "0GB", "8 bananas", "", "nan GB"])
def test_other_sizes_are_refused(text):
    with pytest.raises(SettingError, match=f"--memory must be 'auto' or a size such as 8GB or 500MB; got '{text}'"):
        TrainConfig(memory=text)


@pytest.mark.parametrize("chunk", [0, -2, 3, 50])
def test_a_chunk_divides_the_batch(chunk):
    with pytest.raises(SettingError, match=f"--task-chunk must divide --tasks-per-batch, which is 25; got {chunk}"):
        TrainConfig(task_chunk=chunk)


@pytest.mark.parametrize(("size", "text"), [(5_140_000_000, "5.14 GB"), (12_300_000, "12.3 MB"), (800, "0.8 kB")])
def test_sizes_are_written(size, text):
    assert size_text(size) == text


def test_divisors():
    assert [largest_divisor(12, limit) for limit in (0, 1, 5, 6, 11, 12, 100)] == [1, 1, 4, 6, 6, 12, 12]


class Model:
    """What a step would need: a fixed part, and one for each task at once, a quarter of it if recomputed."""

    def __init__(self, fixed, each):
        self.fixed, self.each, self.asked = fixed, each, []

    def __call__(self, chunk, recompute):
        self.asked.append((chunk, recompute))
        return self.fixed + chunk * (self.each // 4 if recompute else self.each)


@pytest.mark.parametrize(
    ("budget", "chunk", "recompute", "needed"),
    [
        (10_000, 32, False, 3300),  # all fits
        (None, 32, False, 3300),  # nothing is known
        (1_000, 8, False, 900),
        (900, 8, False, 900),  # just
        (899, 4, False, 500),
        (200, 1, False, 200),
        (199, 1, True, 125),  # 2 tasks recomputed would fit too, but nobody knows before measuring: budget // 125 is 1
        (125, 1, True, 125),
    ],
)
def test_the_fastest_plan_that_fits_is_chosen(budget, chunk, recompute, needed):
    model = Model(100, 100)
    plan = choose(model, tasks=32, most_at_once=32, budget=budget, can_recompute=True)
    assert plan == Plan(32, chunk, recompute, needed, budget)
    assert len(model.asked) <= 7
    assert model.asked[0] == (32, False)


def test_recomputed_tasks_go_together_where_they_fit():
    plan = choose(Model(0, 400), tasks=6, most_at_once=6, budget=399, can_recompute=True)
    assert plan == Plan(6, 3, True, 300, 399)
    plan = choose(Model(0, 400), tasks=6, most_at_once=2, budget=399, can_recompute=True)
    assert plan == Plan(6, 2, True, 200, 399)


@pytest.mark.parametrize(("can_recompute", "message"), [(True, "--order first"), (False, "even one task at a time, ")])
def test_advice_where_nothing_fits(can_recompute, message):
    with pytest.raises(SettingError, match="may take 124 kB") as caught:
        choose(Model(100_000, 100_000), tasks=4, most_at_once=4, budget=124_000, can_recompute=can_recompute)
    assert message in str(caught.value)
    assert ("inner steps recomputed" in str(caught.value)) == can_recompute


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (Plan(32, 4, True, 5_100_000_000, 8 * 10**9), "needs about 5.1 GB of 8 GB: micro-batches of 4 tasks, inner"),
        (Plan(32, 32, False, 10**9, None), "needs about 1 GB: all tasks at once"),
        (Plan(4, 1, False, 10**9, 2 * 10**9), "needs about 1 GB of 2 GB: one task at a time"),
    ],
)
def test_a_plan_is_told_in_a_line(plan, sentence):
    assert plan.sentence.startswith(sentence)


def test_free_memory_of_a_host(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\n")
    free = lambda: memory._free_host_bytes(tmp_path / "meminfo", tmp_path)  # noqa: E731
    assert free() == 2000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300\n")
    assert free() == 2000 * 1024
    (tmp_path / "memory.max").write_text("1000\n")
    assert free() == 700
    assert memory._free_host_bytes(tmp_path / "none", tmp_path / "none") is None


def test_no_more_is_planned_with_than_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    assert memory.budget_for("auto") == 900
    assert memory.budget_for("1GB") == 900
    assert memory.budget_for("0.5kB") == 500
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    assert memory.budget_for("auto") is None
    assert memory.budget_for("0.5kB") == 500


def gradient_step(learner, chunk, key):
    """Learner, loss and metrics after a step on six tasks. Plain descent in effect: Adam's first step is of signs."""
    config = TrainConfig(tasks_per_batch=6, task_chunk=chunk, schedule="constant", clip_norm=1e9)
    state = initial_state(learner, config)
    batch = SOURCE.sample(6, key=key)
    after, (loss, metrics) = eqx.filter_jit(meta_step)(state, batch, config, key=jr.key(7))
    return after.opt_state, loss, metrics


def assert_close(a, b):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", list(LEARNERS))
def test_turns_and_recomputing_change_nothing(name, key):
    """Gradients are compared as Adam's moments, which hold them and their squares."""
    learner = LEARNERS[name].build(SOURCE.spec, key=key)
    frugal = recomputing(learner)
    assert frugal is not None
    plain = gradient_step(learner, None, key)
    assert float(jnp.abs(jax.tree.leaves(plain[0])[1]).max()) > 1e-4  # there is a gradient to compare
    for other in (gradient_step(learner, 2, key), gradient_step(frugal, 1, key)):
        assert_close(plain, other)


def test_who_can_recompute(key):
    learner = LEARNERS["maml"].build(SOURCE.spec, key=key)
    frugal = recomputing(learner)
    assert isinstance(frugal, maml.MAML)
    assert frugal.settings.inner == replace(INNER, remat=True)
    assert recomputing(frugal) is None
    scaled = Standardised(learner, Scaling((0.0, 0.0), (1.0, 1.0), (0.0,), (1.0,)), scale_targets=True)
    inside = recomputing(scaled)
    assert isinstance(inside, Standardised)
    assert inside.learner.settings.inner.remat  # pyright: ignore[reportAttributeAccessIssue]
    assert recomputing(neural_processes.CNPConfig(encoder=(8,), decoder=(8,)).build(SOURCE.spec, key=key)) is None


def short(**changes):
    plain = TrainConfig(steps=4, tasks_per_batch=4, val_every=4, val_tasks=2, steps_per_call=2, schedule="constant")
    return replace(plain, **changes)


def train(learners, source, config):
    told = []
    with listening(lambda one: None if one.total else told.append(one.what)):
        val = freeze(source, 2, seed=0)
        best = train_learners(learners, source, val, config, keys=[jr.key(i) for i in range(len(learners))])
    return best, told


@pytest.mark.slow
def test_training_within_memory(monkeypatch, key):
    """The real program is measured: less memory is really needed, the same is learnt, settings come back as given."""
    source = regression2d.Config(shots=4, query_size=100).open().train
    learners = [replace(QUICK, hidden=(64,)).build(source.spec, key=k) for k in jr.split(key)]
    monkeypatch.setattr(memory, "free_bytes", lambda: 10**9)
    plain, (line,) = train(learners, source, short(memory="auto"))
    assert line.endswith("of 900 MB: all tasks at once")
    needed, unit = float(line.split()[2]), line.split()[3]
    assert unit == "kB"
    frugal, (line,) = train(learners, source, short(memory=f"{needed * 0.9}kB"))
    assert line.endswith(("one task at a time", "micro-batches of 2 tasks"))
    assert jax.tree.structure(frugal) == jax.tree.structure(plain)
    assert_close(plain, frugal)


def test_memory_is_not_looked_at_unasked(key):
    assert train([QUICK.build(SOURCE.spec, key=key)], SOURCE, short())[1] == []


def test_nothing_fits_in_a_kilobyte(key):
    learner = QUICK.build(SOURCE.spec, key=key)
    with pytest.raises(
        SettingError, match=r"a step needs about .* even one task at a time with inner steps recomputed"
    ):
        train([learner], SOURCE, short(memory="1kB"))


def test_images_go_one_by_one_on_a_cpu(key):
    flat = QUICK.build(TaskSpec((16,), 2, target="class"), key=key)
    learner = ImageMean(**{name: getattr(flat, name) for name in ("theta", "likelihood", "settings")})
    (best,), (line,) = train([learner], Blobs(), short(val_metric="nll"))
    assert line.endswith("one task at a time")
    (together,), (line,) = train([learner], Blobs(), short(val_metric="nll", task_chunk=4))
    assert line.endswith("all tasks at once")
    assert_close(best, together)


class OnHost:
    """The same tasks, made on the host."""

    spec = SOURCE.spec

    def __init__(self):
        self.drawn = 0

    def sample(self, num_tasks, *, key):
        self.drawn += 1
        return SOURCE.sample(num_tasks, key=key)


def test_batches_from_the_host_wait_in_bounded_memory(monkeypatch, key):
    learner = QUICK.build(SOURCE.spec, key=key)
    calls = []
    draw = loop._Loop._draw
    monkeypatch.setattr(loop._Loop, "_draw", lambda self, steps: calls.append(steps) or draw(self, steps))
    (plain,), _ = train([learner], OnHost(), short(steps_per_call=4))
    assert calls == [range(0, 4)]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(SOURCE.sample(4, key=key)))
    monkeypatch.setattr(loop, "DRAWN_BYTES", 3 * size)
    calls.clear()
    (bounded,), _ = train([learner], OnHost(), short(steps_per_call=4))
    assert calls == [range(0, 2), range(2, 4)]
    assert_close(plain, bounded)


def test_a_lack_of_memory_becomes_advice(monkeypatch, key):
    def run(*arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")

    monkeypatch.setattr(loop, "run_steps", run)
    with pytest.raises(SettingError, match=r"ran out of memory with 4 tasks at once\. Try --memory auto"):
        train([QUICK.build(SOURCE.spec, key=key)], SOURCE, short())


def test_other_failures_of_the_device_stay_what_they_are(monkeypatch, key):
    def run(*arguments):
        raise jax.errors.JaxRuntimeError("INTERNAL: cable pulled.")

    monkeypatch.setattr(loop, "run_steps", run)
    with pytest.raises(jax.errors.JaxRuntimeError, match="cable pulled"):
        train([QUICK.build(SOURCE.spec, key=key)], SOURCE, short())


def test_the_command_says_what_it_takes(stmaml, tmp_path):
    words = ("train", "regression2d", "--method", "maml", "--hidden", "8", "--inner-steps", "1", "--steps", "2")
    words = (*words, "--tasks-per-batch", "4", "--val-tasks", "2", "--run", tmp_path / "run")
    code, _, err = stmaml(*words, "--memory", "1GB")
    assert code == 0
    assert "all tasks at once" in err


@pytest.mark.parametrize("command", [("train",), ("reproduce", "--rows", "maml")])
def test_the_commands_refuse_what_is_no_size(stmaml, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    code, _, err = stmaml(command[0], "regression2d", *command[1:], "--memory", "plenty")
    assert code == 2
    assert "--memory must be 'auto' or a size" in err
