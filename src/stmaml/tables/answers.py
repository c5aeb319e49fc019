"""The compiled part of prediction, and the columns it fills.

Groups of many sizes are padded to a few, so that thousands of them take a handful of compilations.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, Shaped

from stmaml.likelihoods import likelihood_for
from stmaml.methods.base import AbstractPredictor, pairs, predict_with
from stmaml.methods.on_linear import OnLinear
from stmaml.methods.standardised import Standardised
from stmaml.prediction import NormalOutcome, Prediction
from stmaml.tables.calibration import Calibration, class_sets, mixture_quantile, soften, spread_by
from stmaml.tables.novelty import suggest_rows
from stmaml.tables.reading import Groups
from stmaml.tables.schema import Schema
from stmaml.tasks import Examples, TaskSpec, weighted_mean

SUPPORT_SIZES = (1, 4, 16, 64, 256)
QUERY_SIZES = (8, 64, 256)
ROWS_AT_ONCE = 2**16
MAX_SUGGESTED_FROM = 2000


def fitting(count: int, sizes: tuple[int, ...]) -> int:
    """The smallest of the sizes that holds `count` rows."""
    return next(size for size in sizes if size >= count)


def group_keys(names: Sequence[str], seed: int) -> Key[Array, " m"]:
    """A key for each group by its name: its draws do not depend on which other groups are asked for."""
    digests = jnp.array([zlib.crc32(name.encode()) for name in names], dtype=jnp.uint32)
    return jax.vmap(lambda digest: jr.fold_in(jr.key(seed), digest))(digests)


def adapt_one(learner: Standardised, support: Examples, num_samples: int, key: PRNGKeyArray) -> AbstractPredictor:
    """The predictors of one group."""
    return learner.adapt(support, num_samples=num_samples, key=key)


@eqx.filter_jit
def adapt_groups(
    learner: Standardised, support: Examples, num_samples: int, keys: Key[Array, " m"]
) -> AbstractPredictor:
    """The predictors of each group, on a leading axis."""
    return eqx.filter_vmap(lambda s, k: adapt_one(learner, s, num_samples, k))(support, keys)


@eqx.filter_jit
def codes(learner: Standardised, support: Examples, spec: TaskSpec) -> tuple[Float[Array, "m c"], Float[Array, " m"]]:
    """Where each group stands among groups, and the entropy of z: its mean under p(z | support), where there is one.

    Other methods have no entropy, and the moments of their labelled rows stand in for the code.
    """

    def one(support: Examples) -> tuple[Float[Array, " c"], Float[Array, ""]]:
        y = support.y
        if learner.scale_targets:
            y = (y - learner.scaling.y_mean[0]) / learner.scaling.y_std[0]
        scaled = Examples(support.x, y, support.weight)
        seen, method = scaled, learner.learner
        if isinstance(method, OnLinear):
            seen, method = method.seen(scaled)[1], method.learner
        task_distribution = getattr(method, "task_distribution", None)
        if task_distribution is not None:
            z = task_distribution(seen)
            return z.mu, jnp.log(jnp.maximum(z.sigma, 1e-6)).sum() + z.mu.size * jnp.log(2 * jnp.pi * jnp.e) / 2
        rows = pairs(scaled, likelihood_for(spec))
        mean = weighted_mean(rows, support.weight)
        spread = jnp.sqrt(weighted_mean(jnp.square(rows - jnp.broadcast_to(mean, rows.shape)), support.weight))
        return jnp.concatenate([mean, spread]), jnp.array(jnp.nan)

    return jax.vmap(one)(support)


@eqx.filter_jit
def answer_groups(
    predictors: AbstractPredictor,
    x: Float[Array, "m q dx"],
    temperature: Float[Array, " m"],
    scores: Float[Array, "m l"],
    keep_functions: bool,
) -> dict[str, Float[Array, "m ..."]]:
    """What is predicted for each row of each group, recalibrated."""

    def one(predictors: AbstractPredictor, x: Array, temperature: Array, scores: Array) -> dict[str, Array]:
        prediction = predict_with(predictors, x)
        if not isinstance(prediction.components, NormalOutcome):
            return _class_answer(prediction, temperature, keep_functions)
        outcome = prediction.components
        loc, scale = spread_by(outcome.loc[..., 0], outcome.scale[..., 0], temperature)
        noise = jnp.square(scale).mean(0)
        values = {
            "mean": loc.mean(0),
            "std": jnp.sqrt(jnp.square(loc.std(0)) + noise),
            "task_std": loc.std(0),
            "quantiles": jax.vmap(lambda score: mixture_quantile(loc, scale, score))(scores),
        }
        return {**values, "functions": loc[..., None], "noise": noise} if keep_functions else values

    return eqx.filter_vmap(one)(predictors, x, temperature, scores)


def _class_answer(
    prediction: Prediction, temperature: Float[Array, ""], keep_functions: bool
) -> dict[str, Float[Array, "..."]]:
    probabilities = soften(prediction.mean, temperature)
    best = probabilities.argmax(-1)
    spread = jnp.take_along_axis(prediction.task_std, best[:, None], axis=1)[:, 0]
    values = {"probabilities": probabilities, "task_std": spread}
    if not keep_functions:
        return values
    noise = prediction.components.variance().mean(0).sum(-1)
    return {**values, "functions": prediction.components.mean(), "noise": noise}


@eqx.filter_jit
def draw_targets(
    predictors: AbstractPredictor, x: Float[Array, "n dx"], temperature: Float[Array, ""], key: PRNGKeyArray
) -> Shaped[Array, "s n"]:
    """A target for each row under each of the stacked predictors; real ones are spread by the temperature."""
    outcome = predict_with(predictors, x).components
    if isinstance(outcome, NormalOutcome):
        loc, scale = spread_by(outcome.loc[..., 0], outcome.scale[..., 0], temperature)
        return loc + scale * jr.normal(key, loc.shape)
    log_p = jnp.log(jnp.maximum(outcome.mean(), 1e-12)) / temperature
    return jr.categorical(key, log_p, axis=-1)


@dataclass(frozen=True)
class Item:
    """Some rows of a group to be predicted, and its labelled rows."""

    name: str
    support: Int[np.ndarray, " k"]
    rows: Int[np.ndarray, " q"]
    sizes: tuple[int, int]
    """What support and rows are padded to."""


@dataclass
class Collected:
    """The columns of an answer, filled batch by batch."""

    schema: Schema
    calibration: Calibration
    levels: tuple[float, ...]
    height: int
    keep_functions: bool
    coverage: float = 0.9
    """Of sets of classes."""
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    _functions: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = field(default_factory=dict)

    def add(self, items: list[Item], values: dict[str, np.ndarray], about: dict[str, np.ndarray]) -> None:
        """Takes in what was predicted for the items, which come first in the arrays."""
        for i, item in enumerate(items):
            count = len(item.rows)
            for name, value in self._named({key: value[i] for key, value in values.items()}).items():
                self._column(name)[item.rows] = value[:count]
            for name, value in about.items():
                self._column(name)[item.rows] = value[i]
            if self.keep_functions:
                kept = (item.rows, values["functions"][i, :, :count], values["noise"][i, :count])
                self._functions.setdefault(item.name, []).append(kept)

    def _named(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values of one group by the names of their columns."""
        if self.schema.target.is_class:
            classes = self.schema.target.classes
            shares = {f"p_{name}": values["probabilities"][:, i] for i, name in enumerate(classes)}
            return {"prediction": values["probabilities"].argmax(-1), **shares, "task_std": values["task_std"]}
        quantiles = {level_name(level): values["quantiles"][i] for i, level in enumerate(self.levels)}
        return {"prediction": values["mean"], "std": values["std"], **quantiles, "task_std": values["task_std"]}

    def _column(self, name: str) -> np.ndarray:
        if name not in self.columns:
            self.columns[name] = np.full(self.height, np.nan)
        return self.columns[name]

    def suggest(self, num_rows: int) -> None:
        """Ranks, in each group, the rows whose labels would tell most."""
        ranks = self._column("suggested")
        for parts in self._functions.values():
            rows = np.concatenate([part[0] for part in parts])
            functions = np.concatenate([part[1] for part in parts], axis=1)
            noise = np.concatenate([part[2] for part in parts])
            if len(rows) > MAX_SUGGESTED_FROM:
                few = np.linspace(0, len(rows) - 1, MAX_SUGGESTED_FROM).round().astype(int)
                rows, functions, noise = rows[few], functions[:, few], noise[few]
            best = suggest_rows(functions, noise, num_rows)
            ranks[rows[best]] = 1 + np.arange(len(best))

    def frame(self) -> pl.DataFrame:
        """All columns, with class names in place of their numbers and nothing where nothing is known."""
        frame = pl.DataFrame(self.columns).with_columns(pl.all().fill_nan(None))
        whole = [name for name in ("shots", "suggested") if name in frame.columns]
        frame = frame.with_columns(pl.col(name).cast(pl.Int64) for name in whole)
        if not self.schema.target.is_class:
            return frame
        names = pl.Series(self.schema.target.classes)
        frame = frame.with_columns(names.gather(frame["prediction"].cast(pl.Int64)).alias("prediction"))
        return frame.insert_column(frame.columns.index("task_std"), self._sets(frame))

    def _sets(self, frame: pl.DataFrame) -> pl.Series:
        """The classes that hold the true one with the wanted coverage, joined by bars."""
        classes = self.schema.target.classes
        floor = self.calibration.floor_at(frame["shots"].to_numpy(), self.coverage)
        inside = class_sets(frame.select(f"p_{name}" for name in classes).to_numpy(), floor)
        return pl.Series(set_name(self.coverage), ["|".join(np.array(classes)[row]) for row in inside])


def level_name(level: float) -> str:
    """The column of a quantile: q05, q50, q97.5."""
    percent = f"{100 * level:.12g}"
    return f"q{percent.zfill(2)}" if percent.isdigit() else f"q{percent}"


def set_name(coverage: float) -> str:
    """The column of a set of classes: set90."""
    return f"set{100 * coverage:.12g}"


def by_group(groups: Groups, name: str, most: int) -> Int[np.ndarray, " k"]:
    """The rows of a group by its name, evenly thinned out if there are more than `most`; none if it is not there."""
    if name not in groups.index:
        return np.zeros(0, dtype=np.int64)
    rows = groups.rows(groups.index[name])
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


def beside(query: pl.DataFrame, columns: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """The query's own columns, then the predicted ones."""
    if taken := [name for name in query.columns if name in columns.columns]:
        names = ", ".join(f"'{name}'" for name in taken)
        way = "give way to the predicted ones" if len(taken) > 1 else "gives way to the predicted one"
        notes.append(f"the query table's own {names} {way}")
    return pl.concat([query.drop(taken), columns], how="horizontal")
