"""The training loop: resuming, side-by-side learners, divergence, sources."""

import dataclasses
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.sources import Pool, TaskSet, check_batch, freeze
from stmaml.errors import SettingError, SourceError
from stmaml.experiments import create_runs, meta_train, train_runs
from stmaml.inner import InnerLoop
from stmaml.methods import maml, st_maml
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, stack_one
from stmaml.nets.layers import MLP
from stmaml.outcomes import NormalOutcome
from stmaml.progress import listening
from stmaml.recipes import Experiment
from stmaml.runs import Run, read_npz
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec
from stmaml.training import Diverged, Interrupted, Recorder, State, TrainConfig, initial_state, train_learners, unbundle
from tests.changed import changed

TASKS = regression2d.Config(shots=5, query_size=5)
TRAINING = TrainConfig(
    steps=60, tasks_per_batch=4, val_every=20, val_tasks=8, checkpoint_every=20, steps_per_call=10, warmup=5
)
EXPERIMENT = Experiment(
    benchmark="regression2d",
    method="st-maml",
    preset="paper",
    benchmark_settings=TASKS,
    method_settings=changed(
        st_maml.Config(), hidden=(8,), encoder=(8,), z_size=4, h_size=3, inner=InnerLoop(inner_steps=1)
    ),
    training=TRAINING,
)
BENCHMARK = TASKS.open()


class Constant(AbstractPredictor):
    """The same mean everywhere."""

    level: jax.Array

    def __call__(self, x):
        loc = jnp.broadcast_to(self.level, (x.shape[0], 1))
        return NormalOutcome(loc, jnp.ones_like(loc))


class Climber(AbstractMetaLearner):
    """Its level rises by Adam's step size in every step; above `cliff` its loss is not a number."""

    level: jax.Array
    cliff: float = eqx.field(static=True, default=float("inf"))

    def loss(self, task, *, key):
        del task, key
        return jnp.where(self.level > self.cliff, jnp.nan, -self.level), {}

    def adapt(self, support, *, num_samples, key):
        del support, num_samples, key
        return stack_one(Constant(self.level))


def stack(tasks: list[Task]) -> TaskBatch:
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)
    return TaskBatch(batch, jnp.zeros(len(tasks), dtype=int))


class Plateau:
    """A source on the host: every target is 2."""

    spec = TaskSpec((2,), 1)

    def sample(self, num_tasks, *, key):
        def examples(key):
            return Examples.of(jr.normal(key, (3, 2)), jnp.full((3, 1), 2.0))

        keys = jr.split(key, (num_tasks, 2))
        return stack([Task(examples(a), examples(b)) for a, b in keys])


class OnHost:
    """A device source, called on the host."""

    def __init__(self, source):
        self.source = source
        self.spec = source.spec

    def sample(self, num_tasks, *, key):
        return self.source.sample(num_tasks, key=key)


class Broken:
    """A source whose batches were spoilt."""

    def __init__(self, spoil, spec=Plateau.spec):
        self.spoil, self.spec = spoil, spec

    def sample(self, num_tasks, *, key):
        return self.spoil(Plateau().sample(num_tasks, key=key))


class Silent:
    """Hears of everything and does nothing."""

    def progress(self, step, logs):
        pass

    def validated(self, step, scores, improved, state):
        pass

    def checkpoint(self, step, state):
        pass

    def rolled_back(self, step, to_step, seed_index, rate):
        pass

    def noted(self, step, seed_index, note):
        pass


class Notebook(Silent):
    """Keeps what it is told."""

    def __init__(self):
        self.steps, self.scores, self.improved, self.rollbacks, self.notes = [], [], [], [], []
        self.saved: dict[int, State] = {}
        self.heights: dict[int, jax.Array] = {}

    def progress(self, step, logs):
        self.steps.append(step)

    def validated(self, step, scores, improved, state):
        self.scores.append((step, scores[0]["mse"]))
        self.improved.append(improved[0])

    def checkpoint(self, step, state):
        self.saved[step] = state
        if isinstance(state.learner, Climber):
            self.heights[step] = state.learner.level

    def rolled_back(self, step, to_step, seed_index, rate):
        self.rollbacks.append((step, to_step, seed_index, rate))

    def noted(self, step, seed_index, note):
        self.notes.append((step, seed_index, note))


def climbing(**changes) -> TrainConfig:
    """A constant step size of 0.1: after n steps a Climber stands at n / 10."""
    plain = TrainConfig(
        steps=40, tasks_per_batch=2, outer_lr=0.1, schedule="constant", val_every=10, val_tasks=2, checkpoint_every=20
    )
    return dataclasses.replace(plain, **{"steps_per_call": 10, **changes})


def plateau_set() -> TaskSet:
    return freeze(Plateau(), 2, seed=0)


def climb(config, key, *, cliff=float("inf"), source=None, observer=None, **rest) -> jax.Array:
    """The height of the best climber."""
    observers = () if observer is None else (observer,)
    source, climber = source or Plateau(), Climber(jnp.array(0.0), cliff)
    (best,) = train_learners([climber], source, plateau_set(), config, keys=[key], observers=observers, **rest)
    assert isinstance(best, Climber)
    return best.level


def final_state(run: Run) -> dict[str, np.ndarray]:
    return read_npz(run.folder / "checkpoints" / f"step-{run.checkpoint_steps()[-1]:09d}.npz")


def test_a_resumed_run_ends_with_the_same_weights_to_the_bit(tmp_path):
    (whole,) = create_runs(EXPERIMENT, BENCHMARK, tmp_path / "whole", [3])
    train_runs([whole], EXPERIMENT, BENCHMARK)
    (parted,) = create_runs(EXPERIMENT, BENCHMARK, tmp_path / "parted", [3])
    watch = Notebook()
    with pytest.raises(Interrupted) as stop:
        train_runs([parted], EXPERIMENT, BENCHMARK, observers=(watch,), should_stop=lambda: watch.steps[-1] == 30)
    assert stop.value.step == 30
    assert parted.checkpoint_steps() == [20, 30]
    train_runs([parted], EXPERIMENT, BENCHMARK)
    want, got = final_state(whole), final_state(parted)
    assert whole.checkpoint_steps()[-1] == parted.checkpoint_steps()[-1] == 60
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    want, got = read_npz(whole.learner_path), read_npz(parted.learner_path)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    entries = [[{k: v for k, v in e.items() if k != "seconds"} for e in run.log()] for run in (whole, parted)]
    assert entries[0] == entries[1]


def test_a_finished_run_is_not_trained_again(tmp_path):
    short = dataclasses.replace(EXPERIMENT, training=dataclasses.replace(TRAINING, steps=10))
    (run,) = create_runs(short, BENCHMARK, tmp_path, [0])
    first = train_runs([run], short, BENCHMARK)[0]
    watch = Notebook()
    again = train_runs([run], short, BENCHMARK, observers=(watch,))[0]
    assert watch.steps == []
    assert isinstance(first, st_maml.STMAML)
    assert isinstance(again, st_maml.STMAML)
    np.testing.assert_array_equal(first.theta.head.weight, again.theta.head.weight)


def test_learners_side_by_side_equal_those_trained_alone(tmp_path):
    short = dataclasses.replace(EXPERIMENT, training=dataclasses.replace(TRAINING, steps=20))
    together = create_runs(short, BENCHMARK, tmp_path / "both", [0, 1])
    assert [run.folder.name for run in together] == ["seed-0", "seed-1"]
    train_runs(together, short, BENCHMARK)
    finals = []
    for run, seed in zip(together, (0, 1), strict=True):
        (alone,) = create_runs(short, BENCHMARK, tmp_path / f"alone-{seed}", [seed])
        train_runs([alone], short, BENCHMARK)
        want, got = final_state(alone), final_state(run)
        assert want.keys() == got.keys()
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=2e-3, atol=1e-4, err_msg=name)
        finals.append(got["learner.theta.head.weight"])
    assert not np.allclose(finals[0], finals[1], atol=1e-3)


def test_the_learner_with_the_best_validation_is_kept(key):
    """A climber passes the height of 2 at step 20 and goes on to 4."""
    watch = Notebook()
    best = climb(climbing(), key, observer=watch)
    np.testing.assert_allclose(best, 2.0, rtol=1e-4)
    assert watch.improved == [True, True, False, False]
    np.testing.assert_allclose([score for _, score in watch.scores], [1, 0, 1, 4], atol=1e-3)
    np.testing.assert_allclose(watch.heights[40], [4.0], rtol=1e-4)


@pytest.mark.parametrize("handed", [True, False])
def test_a_resumed_training_gives_back_the_best_learner_so_far(handed, key):
    """Stopped at a height of 3, after the best of 2, it meets no better one. States know scores, not learners."""
    watch = Notebook()
    with pytest.raises(Interrupted):
        climb(climbing(), key, observer=watch, should_stop=lambda: watch.steps[-1:] == [30])
    start = (30, unbundle(eqx.combine(watch.saved[30], initial_state(Climber(jnp.array([0.0])), climbing())), 1))
    best: list[AbstractMetaLearner] | None = [Climber(jnp.array(2.0))] if handed else None
    np.testing.assert_allclose(climb(climbing(), key, start=start, best=best), 2.0 if handed else 3.0, rtol=1e-4)


def test_a_better_learner_than_the_one_handed_over_is_kept(key):
    start = (0, [initial_state(Climber(jnp.array(0.0)), climbing())])
    best: list[AbstractMetaLearner] = [Climber(jnp.array(9.0))]
    np.testing.assert_allclose(climb(climbing(), key, start=start, best=best), 2.0, rtol=1e-4)
    np.testing.assert_array_equal(best[0].level, 9.0)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_validation_metric_nobody_computes_is_named_before_training(key):
    watch = Notebook()
    with pytest.raises(SettingError, match=r"--val-metric accuracy is not scored .* choose one of .*mse"):
        climb(climbing(val_metric="accuracy"), key, observer=watch)
    assert not watch.scores
    climb(climbing(val_metric="mae"), key, observer=watch)
    assert len(watch.scores) == 4


def test_a_coverage_is_best_where_it_is_nearest_to_what_is_claimed(key):
    """Heights 1, 2 and 3 have the target of 2 in their intervals; that of 4, the last, has not."""
    np.testing.assert_allclose(climb(climbing(val_metric="coverage90"), key), 1.0, rtol=1e-4)


def test_a_metric_that_is_neither_good_nor_bad_chooses_no_learner(key):
    with pytest.raises(SettingError, match=r"--val-metric width90 is neither good nor bad .* choose one of mse, .*nll"):
        climb(climbing(val_metric="width90"), key)


def test_a_loss_that_is_not_finite_stops_with_its_step(key):
    """The loss of step s is taken at height s / 10, so that 3.05 is first passed in step 31."""
    with pytest.raises(Diverged, match="not finite from step 31 on") as stop:
        climb(climbing(), key, cliff=3.05)
    assert (stop.value.step, stop.value.seed_index) == (31, 0)


def test_the_learner_that_diverged_is_named(key):
    climbers: list[AbstractMetaLearner] = [Climber(jnp.array(level), 3.05) for level in (0.0, 1.0)]
    with pytest.raises(Diverged) as stop:
        train_learners(climbers, Plateau(), plateau_set(), climbing(), keys=list(jr.split(key)))
    assert (stop.value.step, stop.value.seed_index) == (21, 1)


def test_a_rollback_halves_the_rate_and_finishes(key):
    watch = Notebook()
    climb(climbing(on_divergence="rollback"), key, cliff=3.05, observer=watch)
    assert watch.rollbacks == [(31, 20, 0, 0.5)]
    assert watch.steps == [10, 20, 30, 30, 40]
    np.testing.assert_allclose(watch.heights[40], [2.0 + 20 * 0.05], rtol=1e-4)
    np.testing.assert_array_equal(watch.saved[40].rate, [0.5])


def test_a_rollback_forgets_no_best_learner(key):
    """The best height, 2.0, is validated at step 20, after the last checkpoint; what follows is worse."""
    watch = Notebook()
    config = climbing(steps=36, on_divergence="rollback", checkpoint_every=1000, val_every=20)
    best = climb(config, key, cliff=3.05, observer=watch)
    assert watch.rollbacks[0] == (31, 0, 0, 0.5)
    np.testing.assert_allclose(best, 2.0, rtol=1e-4)
    assert watch.improved.count(True) == 1


def test_rollbacks_come_to_an_end(key):
    with pytest.raises(Diverged):
        climb(climbing(on_divergence="rollback"), key, cliff=-1.0)


def test_a_stop_is_asked_for_once_a_chunk_and_saved(key):
    """A stop between two questions would be answered without a checkpoint."""
    watch, answers = Notebook(), iter([False, True])
    with pytest.raises(Interrupted, match="stopped at step 20") as stop:
        climb(climbing(checkpoint_every=1000), key, observer=watch, should_stop=lambda: next(answers))
    assert list(watch.saved) == [stop.value.step]


def test_a_host_source_gives_the_tasks_of_a_device_source(key):
    source = regression2d.Curves(TASKS)
    learner = maml.Config(hidden=(8,), inner=InnerLoop(inner_steps=1)).build(source.spec, key=key)
    config = dataclasses.replace(TRAINING, steps=10, steps_per_call=5)
    val = freeze(source, 4, seed=0)
    device, host = (train_learners([learner], s, val, config, keys=[key])[0] for s in (source, OnHost(source)))
    for got, want in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_host_source_is_checked_in_every_step(key):
    seen = []

    def later(batch):
        seen.append(0)
        return batch if len(seen) < 15 else replace_query(batch, lambda e: e.y, jnp.nan * batch.tasks.query.y)

    with pytest.raises(SourceError, match="query targets of task 0 hold NaN"):
        climb(climbing(), key, source=Broken(later))
    assert len(seen) == 15


def replace_query(batch, where, value):
    return eqx.tree_at(lambda b: where(b.tasks.query), batch, value)


def replace_support(batch, where, value):
    return eqx.tree_at(lambda b: where(b.tasks.support), batch, value)


SPOILT = {
    "inputs": (
        lambda b: replace_support(b, lambda e: e.x, b.tasks.support.x[..., :1]),
        r"support inputs have shape \(2, 3, 1\); expected \(tasks, examples, 2\)",
    ),
    "targets": (
        lambda b: replace_query(b, lambda e: e.y, b.tasks.query.y[..., 0]),
        r"query targets have shape \(2, 3\); expected \(2, 3, 1\)",
    ),
    "nan": (
        lambda b: replace_query(b, lambda e: e.x, b.tasks.query.x.at[1, 2, 0].set(jnp.nan)),
        "query inputs of task 1 hold NaN or infinity",
    ),
    "nan in a row that does not count": (
        lambda b: replace_support(
            replace_support(b, lambda e: e.y, b.tasks.support.y.at[1, 0].set(jnp.nan)),
            lambda e: e.weight,
            b.tasks.support.weight.at[1, 0].set(0.0),
        ),
        "support targets of task 1 hold NaN .* weight 0 and a finite number",
    ),
    "empty query": (
        lambda b: replace_query(b, lambda e: e.weight, b.tasks.query.weight.at[1].set(0.0)),
        "task 1 has an empty query set; give it at least one row",
    ),
    "empty supports": (
        lambda b: replace_support(b, lambda e: e.weight, 0 * b.tasks.support.weight),
        "every support set of the batch is empty",
    ),
    "weight": (
        lambda b: replace_support(b, lambda e: e.weight, b.tasks.support.weight.at[0, 0].set(-1.0)),
        "support weights hold NaN, infinity or a negative number",
    ),
    "not a batch": (lambda b: b.tasks, "sample returned Task; expected a TaskBatch"),
}


@pytest.mark.parametrize("name", list(SPOILT))
def test_a_bad_source_is_refused_before_training(name, key):
    spoil, message = SPOILT[name]
    with pytest.raises(SourceError, match=message):
        climb(climbing(), key, source=Broken(spoil))


def test_classes_out_of_range_are_refused(key):
    def as_classes(batch):
        return replace_query(
            replace_support(batch, lambda e: e.y, jnp.zeros((2, 3), dtype=int)), lambda e: e.y, jnp.full((2, 3), 4)
        )

    with pytest.raises(SourceError, match="query classes must be 0 to 2; found 4 to 4"):
        climb(climbing(), key, source=Broken(as_classes, TaskSpec((2,), 3, target="class")))


def test_some_empty_supports_are_welcome(key):
    def hide_one(batch):
        return replace_support(batch, lambda e: e.weight, batch.tasks.support.weight.at[0].set(0.0))

    climb(climbing(steps=10), key, source=Broken(hide_one))


def test_chunks_of_one_length_are_traced_once(key):
    """Even if a parameter begins as a Python float, whose type is weak."""
    traces = []

    class Counted(AbstractMetaLearner):
        level: jax.Array

        def loss(self, task, *, key):
            del task, key
            traces.append(0)
            return jnp.square(self.level), {}

        def adapt(self, support, *, num_samples, key):
            del support, num_samples, key
            return stack_one(Constant(self.level))

    class Count(Silent):
        after: tuple[int, ...] = ()

        def progress(self, step, logs):
            self.after = (*self.after, len(traces))

    count = Count()
    config = climbing(steps=50)
    train_learners(
        [Counted(jnp.exp(jnp.asarray(0.0)))],
        regression2d.Curves(TASKS),
        plateau_set(),
        config,
        keys=[key],
        observers=(count,),
    )
    assert len(count.after) == 5
    assert set(count.after) == {count.after[0]}


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize(("warmup", "rise"), [(0, 0), (4, 4), (10, 10), (1000, 10)])
def test_the_step_size_follows_the_schedule(schedule, warmup, rise, key):
    """A climber's height is the sum of the step sizes: a warm-up, of a quarter at most, then half a cosine or level."""
    config = climbing(schedule=schedule, warmup=warmup, steps=40)
    watch = Notebook()
    climb(config, key, observer=watch)
    warm = 0.1 * np.arange(rise) / max(rise, 1)
    rest = np.arange(40 - rise) / (40 - rise)
    cool = 0.1 * (1 + np.cos(np.pi * rest)) / 2 if schedule == "cosine" else np.full(40 - rise, 0.1)
    np.testing.assert_allclose(watch.heights[40], [warm.sum() + cool.sum()], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "--steps must be at least 1; got 0"),
        ("warmup", -5, "--warmup must be at least 0; got -5"),
        ("outer_lr", 0.0, "--outer-lr must be above 0; got 0.0"),
        ("outer_lr", float("inf"), "--outer-lr must be a finite number; got inf"),
        ("clip_norm", float("nan"), "--clip-norm must be a finite number; got nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, value, message):
    with pytest.raises(SettingError, match=message):
        TrainConfig(**{name: value})


def test_a_log_has_losses_and_validations(tmp_path: Path):
    short = dataclasses.replace(EXPERIMENT, training=dataclasses.replace(TRAINING, steps=20))
    (run,) = create_runs(short, BENCHMARK, tmp_path, [0])
    train_runs([run], short, BENCHMARK)
    losses = [entry for entry in run.log() if "loss" in entry]
    assert [entry["step"] for entry in losses] == [10, 20]
    assert {"fit", "kl", "seconds"} <= losses[0].keys()
    (validation,) = [entry for entry in run.log() if "validation" in entry]
    assert validation["step"] == 20
    assert {"mse", "nll", "crps"} <= validation["validation"].keys()


def test_classes_are_integers(key):
    batch = replace_support(Plateau().sample(2, key=key), lambda e: e.y, jnp.zeros((2, 3)))
    with pytest.raises(SourceError, match="support classes are float32 numbers; expected integers"):
        check_batch(batch, TaskSpec((2,), 1, target="class"))


@pytest.mark.parametrize("width", [(), (0,)])
def test_a_network_of_no_width_is_refused(width, key):
    with pytest.raises(SettingError, match="at least"):
        MLP((2, *width), key=key)


def test_an_unknown_method_is_named_with_those_there_are():
    with pytest.raises(SettingError, match="no method 'mmml'; choose one of: anp"):
        meta_train("mmml", Broken(lambda b: b))


class Level(AbstractMetaLearner):
    """Its loss is the distance to `goal`, whatever the tasks; what it says of them is a constant, or nonsense."""

    level: jax.Array
    goal: float = eqx.field(static=True, default=2.0)
    says: float = eqx.field(static=True, default=1.0)

    def loss(self, task, *, key):
        del key
        return jnp.square(self.level - self.goal) + 0 * task.query.y.sum(), {}

    def adapt(self, support, *, num_samples, key):
        del support, num_samples, key
        return stack_one(Constant(self.level * self.says))


def level_after(learner: Level, key, *, source=None) -> tuple[float, list[str], Notebook]:
    """Where training takes it, what is said meanwhile, and what is noted."""
    said: list[str] = []
    watch = Notebook()
    with listening(lambda told: None if told.total or "kept: none after" in told.what else said.append(told.what)):
        (best,) = train_learners(
            [learner], source or Plateau(), plateau_set(), climbing(), keys=[key], observers=(watch,)
        )
    assert isinstance(best, Level)
    return float(best.level), said, watch


def test_a_learner_that_improves_is_not_talked_about(key):
    level, said, watch = level_after(Level(jnp.array(0.0)), key)
    assert level == pytest.approx(2.0, abs=0.3)
    assert (said, watch.notes) == ([], [])


def test_a_training_that_does_no_good_is_told_and_noted(key):
    """It begins at the height of all targets and is drawn away from it."""
    _, said, watch = level_after(Level(jnp.array(2.0), goal=9.0), key)
    words = "training did not improve on the untrained learner: validation mse was 0 before the first step"
    assert said == [f"{words} and is no better after it"]
    assert watch.notes == [(40, 0, said[0])]


def test_where_no_score_is_finite_the_last_learner_comes_back_and_it_is_told(key):
    """Infinity is not below infinity: the untrained learner would come back."""
    level, said, watch = level_after(Level(jnp.array(0.0), says=1e30), key)
    assert level == pytest.approx(2.0, abs=0.3)
    assert watch.improved == [True] * 4
    assert said[0] == "mse is not finite on 2 of 2 validation tasks, such as task 0"
    assert said[-1].startswith("no validation mse was finite, so the learner of the last one is kept. Look for")
    assert watch.notes == [(40, 0, said[-1])]


def test_a_note_is_kept_in_the_log(tmp_path):
    run = Run(tmp_path)
    run.create({"seed": 0})
    Recorder([run]).noted(40, 0, "no good")
    assert list(run.log()) == [{"step": 40, "note": "no good"}]


@pytest.mark.parametrize("value", [1e30, -3e15, np.inf, np.nan])
@pytest.mark.parametrize("part", ["support", "query"])
@pytest.mark.parametrize("what", ["x", "y"])
def test_a_wild_number_is_named_with_its_task(value, part, what):
    batch = Plateau().sample(4, key=jr.key(0))

    def at(batch):
        return getattr(getattr(batch.tasks, part), what)

    batch = eqx.tree_at(at, batch, at(batch).at[2, 1, 0].set(value))
    hold = f"{value:.3g}, beyond 1e\\+15" if np.isfinite(value) else "NaN or infinity"
    words = f"the {part} {dict(x='inputs', y='targets')[what]} of task 2 hold {hold.replace('e+30', 'e.30')}"
    with pytest.raises(SourceError, match=words.replace("3e+15", "3e.15")):
        check_batch(batch, Plateau.spec)
    spoilt = eqx.tree_at(at, batch, at(batch).at[3, 0, 0].set(value))
    with pytest.raises(SourceError, match=r"task 2 hold .*, as do 1 more"):
        check_batch(spoilt, Plateau.spec)


def test_a_spoilt_task_that_was_drawn_on_the_device_is_named(key):
    """The first batch, the only one looked at before, does not draw one."""
    batch = Plateau().sample(400, key=key)
    batch = eqx.tree_at(lambda b: b.tasks.query.y, batch, batch.tasks.query.y.at[7::20].set(jnp.nan))
    with pytest.raises(SourceError, match=r"the loss is not finite from step \d+ on, where the query targets of task"):
        level_after(Level(jnp.array(0.0)), key, source=Pool(batch, Plateau.spec))
