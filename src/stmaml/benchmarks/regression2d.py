"""2D regression: curves and surfaces of six function families (the paper's appendix; ARML's benchmark)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.base import Benchmark, Pool, Showcase, freeze
from stmaml.errors import SettingError
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec, pad

POOL_SEED = 10_000


@dataclass(frozen=True)
class Family:
    """A function of x = (x1, x2) with uniform coefficients."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    function: Callable[[Array, Array, Array], Array]
    """Coefficients (k first), x1, x2 -> y."""
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
    Family(
        "ripple",
        (-0.2, -3.0),
        (0.2, 3.0),
        lambda c, x1, x2: jnp.sin(-c[0] * (x1**2 + x2**2)) + c[1],
        uses_x2=True,
    ),
)
NUM_COEFFICIENTS = 4
SHOWCASE_SEED = 50  # functions that are easy to tell apart by eye
SHOWCASE_CONDITIONS = ((10, 0.3), (2, 0.3), (5, 0.3), (10, 0.8), (10, 0.1))


@dataclass(frozen=True)
class Config:
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

    def __post_init__(self):
        low, high = self.input_range
        if not low < high:
            raise SettingError(f"--input-range needs a lower and a higher number; got {low} and {high}.")
        if self.noise <= 0:
            raise SettingError(f"--noise must be above 0; got {self.noise}.")
        sizes = ("shots", "query_size", "test_query_size")
        for flag, value in ((f"--{name.replace('_', '-')}", getattr(self, name)) for name in sizes):
            if value < 1:
                raise SettingError(f"{flag} must be at least 1; got {value}.")
        if self.min_shots is not None and not 0 <= self.min_shots <= self.shots:
            raise SettingError(f"--min-shots must lie between 0 and --shots ({self.shots}); got {self.min_shots}.")
        if self.pool is not None and self.pool < 1:
            raise SettingError(f"--pool must be at least 1 task; got {self.pool}.")

    def open(self) -> Benchmark:
        """Training tasks as set; validation and test tasks with all their shots."""
        train = Curves(self, random_shots=True)
        held_out = Curves(replace(self, query_size=self.test_query_size))
        if self.pool is not None:
            stored = freeze(train, self.pool, seed=POOL_SEED, name="regression2d/pool").batch
            train = Pool(jax.tree.map(jnp.asarray, stored), held_out.spec)
        low, high = self.input_range
        return Benchmark(
            train=train,
            val=held_out,
            test=held_out,
            families=tuple(family.name for family in FAMILIES),
            test_name=f"regression2d/range{low:g}..{high:g}/noise{self.noise:g}/shots{self.shots}/query{self.test_query_size}",
            showcases=lambda: _showcases(self),
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
        support = Examples(x[:shots], y[:shots], self._shot_weights(shots_key))
        return Task(support, Examples.of(x[shots:], y[shots:])), clean[shots:]

    def _shot_weights(self, key: PRNGKeyArray) -> Float[Array, " n"]:
        shots, fewest = self.settings.shots, self.settings.min_shots
        if fewest is None or not self.random_shots:
            return jnp.ones(shots)
        return (jnp.arange(shots) < jr.randint(key, (), fewest, shots + 1)).astype(float)


def draw_coefficients(family: Int[Array, ""], *, key: PRNGKeyArray) -> Float[Array, " k"]:
    """Coefficients of a family's function, padded with zeros to a common number."""
    pad = [(0.0,) * (NUM_COEFFICIENTS - len(f.low)) for f in FAMILIES]
    low = jnp.array([f.low + p for f, p in zip(FAMILIES, pad, strict=True)])
    high = jnp.array([f.high + p for f, p in zip(FAMILIES, pad, strict=True)])
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


@lru_cache(maxsize=4)
def _showcases(settings: Config) -> tuple[Showcase, ...]:
    """A curve of each family, under the conditions of the appendix's figures."""
    conditions = [replace(settings, shots=s, noise=noise, min_shots=None) for s, noise in SHOWCASE_CONDITIONS]
    return tuple(
        showcase(one, family, key=jr.key(family + SHOWCASE_SEED))
        for one in conditions
        for family in range(len(FAMILIES))
    )


def showcase(settings: Config, family: int, *, key: PRNGKeyArray) -> Showcase:
    """A task of one family along x1; the two-dimensional ones are cut at the middle of the range of x2.

    Inputs and coefficients depend on the key alone, so that figures for other shots and noise show the same function.
    """
    coefficient_key, x_key, noise_key = jr.split(key, 3)
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
        support=pad(Examples.of(x, y[:, None]), max(shots for shots, _ in SHOWCASE_CONDITIONS)),  # one shape, one trace
        x=grid,
        truth=evaluate_family(index, coefficients, grid)[:, None],
        axis=axis,
    )
