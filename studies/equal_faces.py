"""Ambiguous faces on equal terms: every row by its recipe, scored as its z is drawn narrower or wider.

    python studies/equal_faces.py prepare FOLDER --data FACES                       decodes once: FOLDER/faces.npz
    python studies/equal_faces.py ahead FOLDER JOB ... --programs PROGRAMS          for a GPU that is not here
    python studies/equal_faces.py compile FOLDER JOB ... [--programs PROGRAMS]      and first speeds
    python studies/equal_faces.py train FOLDER JOB ... [--programs PROGRAMS] [--until UNIX_SECONDS]
    python studies/equal_faces.py show FOLDER ... [--figure docs/figures/faces-trade-off.png]

A JOB names a row, its changes and its seed (training_rows.py): `st-maml@method_settings.kl_weight=3:1`. With `open=0.5`
among the changes, half of the training tasks have supports as test tasks have them, with three training attributes or
none, and ask about one pair of the three, drawn at random.

The weights with the lowest NLL on the benchmark's validation tasks are kept, which have one rule each. What is chosen
afterwards goes by tasks of the test's kind made of validation attributes and pictures: the factor on sigma of
p(z | support) with the lowest NLL among those under which at least TARGET of the three rules have a model; that with
the highest coverage where there is none. Test tasks choose nothing. FOLDER/rows gets the scores, FOLDER/scores those of
each task: of `choosing` tasks and on a `curve` over some test tasks for every factor, with the FEW models that are
assigned to rules; of all `test` tasks with all models for factor 1 and the one that was chosen. FOLDER/answers keeps
what these FEW said, so that `show` can take the seeds of a row as one learner (faces_together.py), FOLDER/weights the
learner."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from ahead import Programs
from clock import parameters
from faces_figures import BY_FACTOR, SCORES, TARGET, pick, rows_of, show
from faces_together import ANSWERS, BY_PART, scores_of_each, with_seeds_together
from jaxtyping import Array, Float, PRNGKeyArray
from training_rows import Job, Training, arguments, some_of, take_turns, with_settings

from stmaml.ambiguity import NUM_ASSIGNED, samples_models
from stmaml.benchmarks.altered import mirrored
from stmaml.benchmarks.base import SEARCH_SEED, TEST_SEED, VAL_SEED, Benchmark, Shelf
from stmaml.benchmarks.celeba import PAIRS, AmbiguousTasks, Config, Drawn, FaceAlbum, PairTasks, ambiguous, locate
from stmaml.benchmarks.sources import TaskSet, freeze
from stmaml.data.faces import read_faces
from stmaml.evaluation import score_batch
from stmaml.limits import MODELS_AT_ONCE
from stmaml.methods.base import AbstractMetaLearner, predict_with
from stmaml.methods.st_maml import STMAML
from stmaml.methods.wrapper import in_use, with_inner
from stmaml.metrics import summarise
from stmaml.nets.set_encoder import DiagonalNormal, TaskEncoder
from stmaml.recipes import Experiment, recipe
from stmaml.recipes.base import with_changes
from stmaml.tasks import Task, TaskBatch, TaskSpec, Weight

FACTORS = (1.0, 0.0, 2.0, 4.0, 8.0, 16.0, 32.0)
OPEN = "open"
AT_ONCE, SIDE_BY_SIDE = 64, 16  # tasks scored in one call, and of those at the same time
VAL_AT_ONCE = 50
FEW = NUM_ASSIGNED


class Wider(eqx.Module):
    """A task encoder whose z spreads by a factor more."""

    encoder: TaskEncoder
    factor: Float[Array, ""]

    def __call__(self, xy: Float[Array, "n p"], weight: Weight) -> DiagonalNormal:
        """The same mean."""
        found = self.encoder(xy, weight)
        return DiagonalNormal(found.mu, self.factor * found.sigma)


def wider(learner: AbstractMetaLearner, factor: float) -> AbstractMetaLearner:
    """The learner with a wider z, of one shape for all factors; itself where it has no z."""
    if not isinstance(learner, STMAML):
        return learner
    return eqx.tree_at(lambda one: one.phi, learner, Wider(learner.phi, jnp.asarray(factor)))


class OpenTasks(eqx.Module):
    """Training tasks, a share of which have supports that leave open which two of three attributes decide."""

    pairs: PairTasks
    triplets: AmbiguousTasks
    share: float = eqx.field(static=True)

    @property
    def spec(self) -> TaskSpec:
        return self.pairs.spec

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        keys = jr.split(key, 5)
        plain, three = self.pairs.draw(num_tasks, key=keys[0]), self.triplets.draw(num_tasks, key=keys[1])
        asked = jr.randint(keys[2], (num_tasks,), 0, len(PAIRS))
        of_three = Drawn(three.support, three.query[jnp.arange(num_tasks), asked][:, None], three.label, three.family)
        left_open = jr.bernoulli(keys[3], self.share, (num_tasks,))

        def choose(one: Array, other: Array) -> Array:
            return jnp.where(left_open.reshape(-1, *[1] * (one.ndim - 1)), one, other)

        tasks = self.pairs.expand(jax.tree.map(choose, of_three, plain))
        return mirrored(tasks, key=keys[4]) if self.pairs.settings.mirror else tasks


@dataclass
class Tests:
    """The frozen tasks, which are the same for every row. Tasks for choosing and test tasks share one album, so that
    one program scores both."""

    opened: Benchmark
    flags: Any

    @cached_property
    def parts(self) -> Any:
        settings: Any = self.opened.settings
        return settings.read(self.opened.shelf)[0]

    @cached_property
    def album(self) -> FaceAlbum:
        _, (val, _), (test, _) = self.parts
        return FaceAlbum(jnp.concatenate([val.pictures, test.pictures]), ())

    @cached_property
    def test(self) -> TaskSet:
        tasks, before = self.opened.test_set(self.flags.test_tasks), self.parts[1][0].pictures.shape[0]
        drawn = tasks.stored
        moved = eqx.tree_at(lambda d: (d.support, d.query), drawn, (drawn.support + before, drawn.query + before))
        return replace(tasks, stored=moved)

    @cached_property
    def choosing(self) -> TaskSet:
        return freeze(self.three_of(1, "validation"), self.flags.choosing_tasks, seed=SEARCH_SEED)

    @cached_property
    def val(self) -> TaskSet:
        return self.opened.val_set(self.flags.val_tasks)

    def three_of(self, part: int, name: str) -> AmbiguousTasks:
        """Tasks of the test's kind on another part's attributes and pictures."""
        album, has = self.parts[part]
        settings: Any = replace(self.opened.settings, data=None)  # pyright: ignore
        return ambiguous(album, has, settings, name)


@dataclass(frozen=True)
class Row:
    """A training, and how it is scored."""

    training: Training
    tests: Tests

    def nll(self, learner: AbstractMetaLearner) -> float:
        """On validation tasks, which have one rule each."""
        count = self.tests.val.num_tasks
        found = [self.training.program(*self.judging(learner, first)) for first in range(0, count, VAL_AT_ONCE)]
        return float(np.concatenate([np.asarray(one) for one in found])[:count].mean())

    def judging(self, learner: AbstractMetaLearner, first: int) -> tuple[Any, ...]:
        """NLLs of VAL_AT_ONCE validation tasks from the first one on: name, program, and what it is given."""
        draws = self.training.config.val_samples

        def score(learner: AbstractMetaLearner, source: Any, drawn: Any, key: Any, first: Any) -> Any:
            return score_batch(looped(learner), source.expand(drawn), draws, key, first)["nll"]

        drawn = some_of(self.tests.val.stored, first, VAL_AT_ONCE)
        return "judge", score, learner, self.tests.opened.val, drawn, jr.key(VAL_SEED), jnp.asarray(first)

    def log_p(self, tasks: TaskSet, factor: float, count: int, models: int, seed: int) -> Float[np.ndarray, "m s r q"]:
        """Log-probabilities of the true labels of the first `count` tasks under each model, as `evaluate` samples
        them."""
        found, turns = [], -(-models // MODELS_AT_ONCE) if self.samples else 1
        for first in range(0, count, AT_ONCE):
            self.training.in_time()
            name, program, *args = self.answering(tasks, factor, seed, first)
            each = [self.training.program(name, program, *args, jnp.asarray(turn)) for turn in range(turns)]
            found.append(np.concatenate([np.asarray(one) for one in each], axis=1))
        return np.concatenate(found)[:count, :models]

    def answering(self, tasks: TaskSet, factor: float, seed: int, first: int) -> tuple[Any, ...]:
        """One turn of models on AT_ONCE tasks: name, program, and what it is given but for the number of the turn."""
        learner, drawn = wider(looped(self.training.states[1]), factor), some_of(tasks.stored, first, AT_ONCE)
        return "answers", answers, learner, self.tests.album, drawn, jr.key(seed), jnp.asarray(first)

    @cached_property
    def samples(self) -> bool:
        """Whether it gives as many models as it is asked for."""
        batch = next(self.tests.choosing.chunks(1))
        return samples_models(self.training.states[1], jax.tree.map(lambda leaf: leaf[0], batch.tasks.support))

    @property
    def factors(self) -> tuple[float, ...]:
        return FACTORS if isinstance(self.training.states[1], STMAML) else FACTORS[:1]


def looped(learner: AbstractMetaLearner) -> AbstractMetaLearner:
    """The learner in use, its inner steps as a loop: one to compile instead of five."""
    return with_inner(in_use(learner), lambda inner: replace(inner, remat=True))


def answers(learner: AbstractMetaLearner, album: FaceAlbum, drawn: Any, key: Any, first: Any, turn: Any) -> Any:
    """What one turn of models makes of some tasks: log-probabilities of true labels [m, s, r, q]."""
    batch = album.expand(drawn)

    def of_task(inputs: tuple[Task, Any]) -> Float[Array, "s r q"]:
        task, place = inputs
        own_key = jr.fold_in(jr.fold_in(key, place), turn)
        models = learner.adapt(task.support, num_samples=MODELS_AT_ONCE, key=own_key)
        x, y = (leaf.reshape(len(PAIRS), -1, *leaf.shape[1:]) for leaf in (task.query.x, task.query.y))
        each = [predict_with(models, some).components for some in x]
        true = [jnp.broadcast_to(some, one.mean().shape[:-1]) for some, one in zip(y, each, strict=True)]
        return jnp.stack([one.log_prob(some) for some, one in zip(true, each, strict=True)], axis=1)

    places = first + jnp.arange(batch.family.shape[0])
    return jax.lax.map(of_task, (batch.tasks, places), batch_size=SIDE_BY_SIDE)


def score_row(row: Row, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Scores for each factor on tasks for choosing, then on test tasks; each is kept as soon as it is there."""
    flags, path = row.tests.flags, folder / f"{row.training.job.name}.npz"
    said = folder.parent / ANSWERS / path.name
    values, answers = (dict(np.load(one)) if one.exists() else {} for one in (path, said))

    def kept(factor: float, tasks: TaskSet, seed: int, sizes: dict[str, tuple[int, int]]) -> None:
        """Scores of parts of a set, each of so many tasks and models."""
        if all(BY_FACTOR.format(part, factor, "nll") in values for part in sizes):
            return
        most, models = (max(some) for some in zip(*sizes.values(), strict=True))
        log_p = row.log_p(tasks, factor, most, models, seed)
        for part, (count, first) in sizes.items():
            found = scores_of_each(log_p[:count, :first])
            values.update({BY_FACTOR.format(part, factor, name): each for name, each in found.items()})
            answers[BY_PART.format(part, factor)] = log_p[:count, :FEW].astype(np.float16)
        for where, arrays in ((path, values), (said, answers)):
            where.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(where, **arrays)  # pyright: ignore[reportArgumentType]

    choosing, test = row.tests.choosing, row.tests.test
    for factor in row.factors:
        kept(factor, choosing, SEARCH_SEED, {"choosing": (choosing.num_tasks, FEW)})
    chosen = pick({factor: _means(values, "choosing", factor) for factor in row.factors})
    whole = {"test": (test.num_tasks, flags.samples)}
    for factor in row.factors:
        curve = {"curve": (min(flags.curve_tasks, test.num_tasks), min(FEW, flags.samples))}
        kept(factor, test, TEST_SEED, whole | curve if factor in (1.0, chosen) else curve)
    told = {part: _summaries(values, part, row.factors) for part in ("choosing", "curve", "test")}
    for factor in dict.fromkeys((1.0, chosen)):
        means = " ".join(f"{name} {one['mean']:.3f}" for name, one in told["test"][f"{factor:g}"].items())
        print(f"{row.training.job.name}: factor {factor:g}, {means}", flush=True)
    return {
        **about,
        "name": row.training.job.name,
        "parameters": parameters(row.training.states[1]),
        "factor": chosen,
        "target": TARGET,
        "models": {"few": FEW, "test": flags.samples},
        "triplets": {"choosing": len(row.tests.three_of(1, "validation").triplets.rules)},
        "digests": {"choosing": choosing.digest, "test": test.digest},
        "metrics": told,
    }


def _means(values: dict[str, np.ndarray], part: str, factor: float) -> dict[str, float]:
    return {name: float(values[BY_FACTOR.format(part, factor, name)].mean()) for name in SCORES}


def _summaries(values: dict[str, np.ndarray], part: str, factors: tuple[float, ...]) -> dict[str, Any]:
    known = [factor for factor in factors if BY_FACTOR.format(part, factor, "nll") in values]
    return {
        f"{factor:g}": {name: summarise(values[BY_FACTOR.format(part, factor, name)]) for name in SCORES}
        for factor in known
    }


def compile_ahead(row: Row) -> None:
    """All programs of a row, for a GPU that is not here."""
    training, tests = row.training, row.tests
    training.ahead(*training.stepping(training.states[0], 0))
    training.ahead(*row.judging(training.states[1], 0))
    training.ahead(*row.answering(tests.test, 1.0, TEST_SEED, 0), jnp.asarray(0))


def compile_row(row: Row) -> None:
    """All programs of a row, run twice, and how long that took."""
    row.training.paced()
    models = MODELS_AT_ONCE * AT_ONCE
    for turn in range(2):
        began = time.time()
        row.nll(row.training.states[1])
        middle = time.time()
        row.log_p(row.tests.test, 1.0, AT_ONCE, MODELS_AT_ONCE, TEST_SEED)
        taken = time.time() - middle
        what = f"validation {middle - began:.1f} s, {models / taken:,.0f} models/s (call {turn})"
        print(f"{row.training.job.row}: {what}", flush=True)


def experiment_of(job: Job, flags: Any) -> Experiment:
    """The recipe of a row, with its changes."""
    experiment = with_settings(recipe("celeba", job.recipe, "paper"), job.changes, (OPEN,))
    sizes = {"data": str(flags.data), "image_size": flags.image_size}
    return with_changes(experiment, {f"benchmark_settings.{name}": value for name, value in sizes.items()})


def keep_weights(row: Row, folder: Path) -> None:
    """Those that did best on validation tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    eqx.tree_serialise_leaves(folder / f"{row.training.job.name}.eqx", row.training.states[1])


def train_rows(flags: Any) -> None:
    opened = Config(data=str(flags.data), image_size=flags.image_size).open(Shelf())
    tests, programs = Tests(opened, flags), Programs(flags.programs)

    def work(job: Job) -> dict[str, Any] | None:
        began = time.time()
        experiment = experiment_of(job, flags)
        benchmark = experiment.benchmark_settings.open(opened.shelf)
        source: Any = benchmark.train
        if share := job.changes.get(OPEN):
            source = OpenTasks(source, tests.three_of(0, "training"), share)
        row = Row(Training(job, experiment, benchmark, source, programs, flags.until), tests)
        print(f"{job.name}: ready after {time.time() - began:.0f} s", flush=True)
        if flags.stage == "ahead":
            return compile_ahead(row)
        if flags.stage == "compile":
            return compile_row(row)
        about = row.training.train(row.nll, flags.folder / "states", fit=flags.fit)
        keep_weights(row, flags.folder / "weights")
        return score_row(row, flags.folder / "scores", about)

    take_turns(flags, work)


def main() -> None:
    parser = arguments(__doc__, ["prepare", "ahead", "compile", "train", "show"], tasks=48_000, jobs="*")
    parser.add_argument("--data", help="faces as the benchmark reads them; FOLDER/faces.npz if not given")
    parser.add_argument("--val-tasks", type=int, default=200)
    parser.add_argument("--choosing-tasks", type=int, default=200)
    parser.add_argument("--curve-tasks", type=int, default=300)
    parser.add_argument("--test-tasks", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100, help="models of a test task")
    parser.add_argument("--figure", type=Path)
    flags = parser.parse_args()
    if flags.stage == "show":
        folders = [flags.folder, *map(Path, flags.jobs)]
        return show(with_seeds_together(rows_of(folders), folders), flags.figure)
    saved = flags.folder / "faces.npz"
    if flags.stage == "prepare":
        flags.folder.mkdir(parents=True, exist_ok=True)
        return read_faces(locate(Path(flags.data)), flags.image_size).save(saved)
    flags.data = flags.data or saved
    return train_rows(flags)


if __name__ == "__main__":
    main()
