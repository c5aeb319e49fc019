"""2D regression: curves and surfaces of six function families (the paper's appendix; ARML's benchmark)."""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Shelf, Showcase, Sweep, check_shots
from stmaml.benchmarks.families2d import FAMILIES, draw_coefficients, draw_inputs, evaluate_family
from stmaml.benchmarks.floors import find_floor
from stmaml.benchmarks.posterior2d import drawn_beside
from stmaml.benchmarks.sources import Pool, freeze, shot_weights
from stmaml.conditions import Conditions
from stmaml.errors import SettingError, above, at_least
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec, pad

POOL_SEED = 10_000
RANGES = ((0.0, 5.0), (-5.0, 5.0))  # of inputs: in the paper's text, in its authors' code

SHOWCASE_SEED = 50  # functions that are easy to tell apart by eye
USUAL_CURVE = (10, 0.3)
AMBIGUOUS_CURVES = ((2, 0.3), (5, 0.3), (10, 0.8), (10, 0.1))
"""Shots and noise of the appendix's figures: all families as in the paper's text, some seen through fewer or noisier
examples."""
AMBIGUOUS_FAMILIES = ("sinusoid", "cubic")
LIMITED_SHOTS = (1, 2, 5, 10)
LIMITED_FAMILY = "sinusoid"
"""The function that is shown beside what can be known of it at best, and from how many examples."""


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """Settings of the 2D regression benchmark."""

    input_range: tuple[float, float] = (0.0, 5.0)
    """Range of the inputs: 0 5 in the paper's text, -5 5 in the authors' code and ARML's."""
    both_ranges: bool = False
    """Draw the inputs of every other training task, at random, from 0 5, and those of the others from -5 5: one learner
    then serves both, since the functions are the same. `input_range` stays that of validation and test tasks."""
    noise: float = 0.3
    """Standard deviation of the noise on all targets."""
    noise_range: tuple[float, float] | None = None
    """Draw each training task's noise from this range, evenly; always `noise` if not given. The Bayes limit is then
    that of a predictor that is not told the noise either."""
    shots: int = 10
    """Labelled examples in a support set."""
    min_shots: int | None = None
    """Draw each training task's number of examples between this and `shots`; always `shots` if not given."""
    most_shots: int | None = None
    """Draw it up to this number instead of `shots`, which stays that of validation and test tasks."""
    query_size: int = 40
    """Examples in the query set of a training task."""
    test_query_size: int = 40
    """Examples in the query set of a validation or test task."""
    balanced: bool = False
    """Every family equally often in a batch, as in the authors' code, instead of at random."""
    pool: int | None = None
    """Train on a fixed number of tasks instead of ever new ones."""
    page = "curves"
    budgets = Budgets(
        smoke=Budget(steps=50, tasks_per_batch=8, seeds=1, tasks=50, quick=True),
        cpu=Budget(steps=4_000, seeds=3, tasks=5_000),
        paper=Budget(steps=25_000, tasks_per_batch=200, seeds=3, tasks=20_000, steps_per_call=500, own_pace=True),
    )

    def __post_init__(self):
        low, high = self.input_range
        if not low < high:
            raise SettingError(f"--input-range needs a lower and a higher number; got {low} and {high}.")
        above(0, noise=self.noise)
        at_least(1, query_size=self.query_size, test_query_size=self.test_query_size)
        check_shots(self.shots, self.min_shots)
        _check_ranges(self)
        if self.pool is not None and self.pool < 1:
            raise SettingError(f"--pool must be at least 1 task; got {self.pool}.")

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """Training tasks as set; validation and test tasks with all their shots."""
        del shelf  # nothing is read
        train = curves = Curves(self, random_shots=True)
        held_out = Curves(replace(self, query_size=self.test_query_size))
        if self.pool is not None:
            stored = freeze(train, self.pool, seed=POOL_SEED).batch
            train = Pool(jax.tree.map(jnp.asarray, stored), held_out.spec)
        conditions = {"input_range": self.input_range, "noise": self.noise, "shots": self.shots}
        conditions |= {"query": self.test_query_size, "balanced": self.balanced}
        unknown = {} if self.noise_range is None else {"noise_range": self.noise_range}
        return Benchmark(
            settings=self,
            train=train,
            val=held_out,
            test=held_out,
            families=tuple(family.name for family in FAMILIES),
            conditions=conditions,
            showcases=lambda: _showcases(self),
            floor=lambda: find_floor(Conditions("regression2d", conditions | unknown)),
            sweep=Sweep(LIMITED_SHOTS),
            movable=None if self.pool is not None else curves.movable(),
        )

    def searched(self) -> tuple["Config", ...]:
        """The range of the paper's text and that of its authors' code."""
        return tuple(replace(self, input_range=extent) for extent in RANGES)


class Curves(eqx.Module):
    """Tasks drawn from the six families."""

    settings: Config = eqx.field(static=True)
    random_shots: bool = eqx.field(static=True, default=False)
    """Whether shots and noise differ between tasks, where the settings say so: in training alone."""
    extent: Float[Array, " 2"] | None = None
    """The range of the inputs as numbers of the compiled program; that of the settings if not given."""

    @property
    def spec(self) -> TaskSpec:
        """Two inputs, one real target."""
        return TaskSpec(x_shape=(2,), y_size=1)

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Fresh tasks with fresh coefficients, inputs and noise."""
        family_key, task_key = jr.split(key)
        if self.settings.balanced:
            family = (jnp.arange(num_tasks) + jr.randint(family_key, (), 0, len(FAMILIES))) % len(FAMILIES)
        else:
            family = jr.randint(family_key, (num_tasks,), 0, len(FAMILIES))
        tasks, clean = jax.vmap(self._task)(family, jr.split(task_key, num_tasks))
        return TaskBatch(tasks, family, clean)

    def movable(self) -> "Curves":
        """The same with the range of its inputs in an array."""
        alike = replace(self.settings, input_range=RANGES[0])
        return replace(self, settings=alike, extent=jnp.array(self.settings.input_range))

    def _task(self, family: Int[Array, ""], key: PRNGKeyArray) -> tuple[Task, Float[Array, "q 1"]]:
        shots = self.settings.most_shots or self.settings.shots if self.random_shots else self.settings.shots
        coefficient_key, x_key, noise_key, shots_key = jr.split(key, 4)
        noise = self._noise(key=jr.fold_in(key, 4))
        low, high = self._range(key=jr.fold_in(key, 5))
        x = draw_inputs(family, jr.uniform(x_key, (shots + self.settings.query_size, 2), minval=low, maxval=high))
        clean = evaluate_family(family, draw_coefficients(family, key=coefficient_key), x)[:, None]
        y = clean + noise * jr.normal(noise_key, clean.shape)
        fewest = self.settings.min_shots if self.random_shots else None
        support = Examples(x[:shots], y[:shots], shot_weights(shots, fewest, key=shots_key))
        return Task(support, Examples.of(x[shots:], y[shots:])), clean[shots:]

    def _range(self, *, key: PRNGKeyArray) -> tuple[Float[Array, ""] | float, Float[Array, ""] | float]:
        if self.settings.both_ranges and self.random_shots:
            low, high = jnp.array(RANGES)[jr.randint(key, (), 0, len(RANGES))]
        else:
            low, high = self.settings.input_range if self.extent is None else self.extent
        return low, high

    def _noise(self, *, key: PRNGKeyArray) -> Float[Array, ""] | float:
        settings = self.settings
        if settings.noise_range is None or not self.random_shots:
            return settings.noise
        return jr.uniform(key, minval=settings.noise_range[0], maxval=settings.noise_range[1])


def _check_ranges(settings: Config) -> None:
    """Refuses training tasks that cannot be drawn, or that would not have what the settings say."""
    noise, most, shots = settings.noise_range, settings.most_shots, settings.shots
    if noise is not None and not 0 < noise[0] < noise[1]:
        raise SettingError(f"--noise-range needs two rising numbers above 0; got {noise[0]:g} and {noise[1]:g}.")
    if most is not None and (settings.min_shots is None or most < shots):
        got = f"{most}, with --shots {shots} and --min-shots {settings.min_shots}"
        raise SettingError(f"--most-shots goes with --min-shots and is at least --shots; got {got}.")


def _showcases(settings: Config) -> tuple[Showcase, ...]:
    """A curve of each family, then some of the same functions under harder conditions."""
    wanted = [("curves", *USUAL_CURVE, family) for family in FAMILIES]
    ambiguous = [family for family in FAMILIES if family.name in AMBIGUOUS_FAMILIES]
    wanted += [("ambiguity", shots, noise, family) for shots, noise in AMBIGUOUS_CURVES for family in ambiguous]
    limited = [family for family in FAMILIES if family.name == LIMITED_FAMILY]
    wanted += [("limit", shots, USUAL_CURVE[1], family) for shots in LIMITED_SHOTS for family in limited]
    return tuple(
        showcase(settings.at_test("regression2d", shots=shots, noise=noise), FAMILIES.index(family), figure=figure)
        for figure, shots, noise, family in wanted
    )


def showcase(settings: Config, family: int, *, figure: str = "curves") -> Showcase:
    """A task of one family along x1; the two-dimensional ones are cut at the middle of the range of x2.

    Inputs and coefficients depend on the family alone: figures for other shots and noise show the same function."""
    coefficient_key, x_key, noise_key = jr.split(jr.key(family + SHOWCASE_SEED), 3)
    index = jnp.asarray(family)
    low, high = settings.input_range
    coefficients = draw_coefficients(index, key=coefficient_key)
    x = jr.uniform(x_key, (64, 2), minval=low, maxval=high)[: settings.shots]
    axis = jnp.linspace(low, high, 120)
    middle = (low + high) / 2 if FAMILIES[family].uses_x2 else 1.0
    grid = jnp.stack([axis, jnp.full_like(axis, middle)], axis=1)
    x = draw_inputs(index, x).at[:, 1].set(middle)
    y = evaluate_family(index, coefficients, x) + settings.noise * jr.normal(noise_key, (64,))[: settings.shots]
    support = pad(Examples.of(x, y[:, None]), max(settings.shots, USUAL_CURVE[0]))  # one shape, one trace
    name = f"{FAMILIES[family].name}-shots{settings.shots}-noise{settings.noise:g}"
    limited, noise = figure == "limit", settings.noise_range or settings.noise
    return Showcase(
        name=f"limit-{name}" if limited else name,
        figure=figure,
        labels={"family": FAMILIES[family].name, "shots": settings.shots, "noise": settings.noise},
        support=support,
        x=grid,
        truth=evaluate_family(index, coefficients, grid)[:, None],
        axis=axis,
        limit=(lambda: drawn_beside(support, grid, noise=noise, key=coefficient_key)) if limited else None,
    )
