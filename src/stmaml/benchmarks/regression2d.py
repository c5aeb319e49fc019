"""2D regression: curves and surfaces of six function families (the paper's appendix; ARML's benchmark)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Shelf, Showcase, check_shots
from stmaml.benchmarks.floors import find_floor
from stmaml.benchmarks.sources import Pool, freeze, shot_weights
from stmaml.conditions import Conditions
from stmaml.errors import SettingError, above, at_least
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec, pad

POOL_SEED = 10_000


@dataclass(frozen=True)
class Family:
    """A function of x = (x1, x2) with uniform coefficients."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    function: Callable[[Array, Array, Array], Array]  # coefficients (k first), x1, x2 -> y
    uses_x2: bool = False


FAMILIES = (
    Family("sinusoid", (0.1, 0.8, 0.0), (5.0, 1.2, 2 * jnp.pi), lambda c, x1, x2: c[0] * jnp.sin(c[1] * x1 + c[2])),
    Family("line", (-3.0, -3.0), (3.0, 3.0), lambda c, x1, x2: c[0] * x1 + c[1]),
    Family("quadratic", (-0.2, -2.0, -3.0), (0.2, 2.0, 3.0), lambda c, x1, x2: (c[0] * x1 + c[1]) * x1 + c[2]),
    Family(
        "cubic",
        (-0.1, -0.2, -2.0, -3.0),
        (0.1, 0.2, 2.0, 3.0),
        lambda c, x1, x2: ((c[0] * x1 + c[1]) * x1 + c[2]) * x1 + c[3],
    ),
    Family("surface", (-1.0, -1.0), (1.0, 1.0), lambda c, x1, x2: c[0] * x1**2 + c[1] * x2**2, uses_x2=True),
    Family("ripple", (-0.2, -3.0), (0.2, 3.0), lambda c, x1, x2: jnp.sin(-c[0] * (x1**2 + x2**2)) + c[1], uses_x2=True),
)
NUM_COEFFICIENTS = 4
SHOWCASE_SEED = 50  # functions that are easy to tell apart by eye
USUAL_CURVE = (10, 0.3)
AMBIGUOUS_CURVES = ((2, 0.3), (5, 0.3), (10, 0.8), (10, 0.1))
"""Shots and noise of the appendix's figures: all families as in the paper's text, some seen through fewer or noisier
examples."""
AMBIGUOUS_FAMILIES = ("sinusoid", "cubic")


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """Settings of the 2D regression benchmark."""

    input_range: tuple[float, float] = (0.0, 5.0)
    """Range of the inputs: 0 5 in the paper's text, -5 5 in the authors' code and ARML's."""
    noise: float = 0.3
    """Standard deviation of the noise on all targets."""
    shots: int = 10
    """Labelled examples in a support set."""
    min_shots: int | None = None
    """Draw each training task's number of examples between this and `shots`; always `shots` if not given."""
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
        cpu=Budget(steps=4_000, seeds=3, tasks=1_000),
        paper=Budget(steps=10_000, tasks_per_batch=100, seeds=3, tasks=1_000, steps_per_call=500, own_pace=True),
    )

    def __post_init__(self):
        low, high = self.input_range
        if not low < high:
            raise SettingError(f"--input-range needs a lower and a higher number; got {low} and {high}.")
        above(0, noise=self.noise)
        at_least(1, query_size=self.query_size, test_query_size=self.test_query_size)
        check_shots(self.shots, self.min_shots)
        if self.pool is not None and self.pool < 1:
            raise SettingError(f"--pool must be at least 1 task; got {self.pool}.")

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """Training tasks as set; validation and test tasks with all their shots."""
        del shelf  # nothing is read
        train = Curves(self, random_shots=True)
        held_out = Curves(replace(self, query_size=self.test_query_size))
        if self.pool is not None:
            stored = freeze(train, self.pool, seed=POOL_SEED).batch
            train = Pool(jax.tree.map(jnp.asarray, stored), held_out.spec)
        conditions = {"input_range": self.input_range, "noise": self.noise, "shots": self.shots}
        conditions |= {"query": self.test_query_size, "balanced": self.balanced}
        return Benchmark(
            settings=self,
            train=train,
            val=held_out,
            test=held_out,
            families=tuple(family.name for family in FAMILIES),
            conditions=conditions,
            showcases=lambda: _showcases(self),
            floor=lambda: find_floor(Conditions("regression2d", conditions)),
        )


class Curves(eqx.Module):
    """Tasks drawn from the six families."""

    settings: Config = eqx.field(static=True)
    random_shots: bool = eqx.field(static=True, default=False)

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

    def _task(self, family: Int[Array, ""], key: PRNGKeyArray) -> tuple[Task, Float[Array, "q 1"]]:
        shots, total = self.settings.shots, self.settings.shots + self.settings.query_size
        coefficient_key, x_key, noise_key, shots_key = jr.split(key, 4)
        low, high = self.settings.input_range
        x = draw_inputs(family, jr.uniform(x_key, (total, 2), minval=low, maxval=high))
        clean = evaluate_family(family, draw_coefficients(family, key=coefficient_key), x)[:, None]
        y = clean + self.settings.noise * jr.normal(noise_key, clean.shape)
        fewest = self.settings.min_shots if self.random_shots else None
        support = Examples(x[:shots], y[:shots], shot_weights(shots, fewest, key=shots_key))
        return Task(support, Examples.of(x[shots:], y[shots:])), clean[shots:]


def draw_coefficients(family: Int[Array, ""], *, key: PRNGKeyArray) -> Float[Array, " k"]:
    """Coefficients of a family's function, padded with zeros to a common number."""
    ends = ([f.low for f in FAMILIES], [f.high for f in FAMILIES])
    low, high = (jnp.array([(*end, *[0.0] * (NUM_COEFFICIENTS - len(end))) for end in each]) for each in ends)
    return low[family] + (high[family] - low[family]) * jr.uniform(key, (NUM_COEFFICIENTS,))


def draw_inputs(family: Int[Array, ""], x: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
    """The inputs as a family sees them: x2 is 1 where the function does not use it."""
    uses_x2 = jnp.array([f.uses_x2 for f in FAMILIES])[family]
    return x.at[:, 1].set(jnp.where(uses_x2, x[:, 1], 1.0))


def evaluate_family(
    family: Int[Array, ""], coefficients: Float[Array, " k"], x: Float[Array, "n 2"]
) -> Float[Array, " n"]:
    """The family's function at x, without noise."""
    return jnp.stack([f.function(coefficients, x[:, 0], x[:, 1]) for f in FAMILIES])[family]


def _showcases(settings: Config) -> tuple[Showcase, ...]:
    """A curve of each family, then some of the same functions under harder conditions."""
    wanted = [("curves", *USUAL_CURVE, family) for family in FAMILIES]
    ambiguous = [family for family in FAMILIES if family.name in AMBIGUOUS_FAMILIES]
    wanted += [("ambiguity", shots, noise, family) for shots, noise in AMBIGUOUS_CURVES for family in ambiguous]
    return tuple(
        showcase(replace(settings, shots=shots, noise=noise, min_shots=None), FAMILIES.index(family), figure=figure)
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
    return Showcase(
        name=f"{FAMILIES[family].name}-shots{settings.shots}-noise{settings.noise:g}",
        figure=figure,
        labels={"family": FAMILIES[family].name, "shots": settings.shots, "noise": settings.noise},
        support=pad(Examples.of(x, y[:, None]), max(settings.shots, USUAL_CURVE[0])),  # one shape, one trace
        x=grid,
        truth=evaluate_family(index, coefficients, grid)[:, None],
        axis=axis,
    )
