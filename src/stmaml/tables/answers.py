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
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, Shaped

from stmaml.likelihoods import likelihood_for
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, pairs, predict_with
from stmaml.methods.wrapper import as_seen
from stmaml.prediction import AbstractPrediction, Prediction
from stmaml.tables.calibration import Calibration, Recalibration, class_sets
from stmaml.tables.matching import MOST_LABELLED
from stmaml.tables.novelty import suggest_rows
from stmaml.tables.schema import Schema
from stmaml.tasks import Examples, TaskSpec, weighted_mean

SUPPORT_SIZES = (1, 4, 16, 64, MOST_LABELLED)
QUERY_SIZES = (8, 64, 256)
MAX_SUGGESTED_FROM = 2000


def fitting(count: int, sizes: tuple[int, ...]) -> int:
    """The smallest of the sizes that holds `count` rows."""
    return next(size for size in sizes if size >= count)


def group_keys(names: Sequence[str], seed: int) -> Key[Array, " m"]:
    """A key for each group by its name: its draws do not depend on which other groups are asked for."""
    digests = jnp.array([zlib.crc32(name.encode()) for name in names], dtype=jnp.uint32)
    return jax.vmap(lambda digest: jr.fold_in(jr.key(seed), digest))(digests)


@eqx.filter_jit
def adapt_groups(
    learner: AbstractMetaLearner, support: Examples, num_samples: int, keys: Key[Array, " m"]
) -> AbstractPredictor:
    """The predictors of each group, on a leading axis."""
    return eqx.filter_vmap(lambda s, k: learner.adapt(s, num_samples=num_samples, key=k))(support, keys)


@eqx.filter_jit
def codes(
    learner: AbstractMetaLearner, support: Examples, spec: TaskSpec
) -> tuple[Float[Array, "m c"], Float[Array, " m"]]:
    """Where each group stands among groups, and the entropy of z: its mean under p(z | support), where there is one.

    Other methods have no entropy, and the moments of their labelled rows stand in for the code."""

    def one(support: Examples) -> tuple[Float[Array, " c"], Float[Array, ""]]:
        z = learner.task_distribution(support)
        if z is not None:
            return z.mu, jnp.log(jnp.maximum(z.sigma, 1e-6)).sum() + z.mu.size * jnp.log(2 * jnp.pi * jnp.e) / 2
        rows = pairs(as_seen(learner, support), likelihood_for(spec))
        mean = weighted_mean(rows, support.weight)
        spread = jnp.sqrt(weighted_mean(jnp.square(rows - jnp.broadcast_to(mean, rows.shape)), support.weight))
        return jnp.concatenate([mean, spread]), jnp.array(jnp.nan)

    return jax.vmap(one)(support)


@eqx.filter_jit
def answer_groups(
    predictors: AbstractPredictor,
    x: Float[Array, "m q dx"],
    recalibration: Recalibration,
    levels: Float[Array, " l"],
    keep_functions: bool,
) -> dict[str, Float[Array, "m ..."]]:
    """What is predicted for each row of each group, recalibrated."""

    def one(predictors: AbstractPredictor, x: Array, recalibration: Recalibration) -> dict[str, Array]:
        return answer_group(predictors, x, recalibration, levels, keep_functions=keep_functions)

    return eqx.filter_vmap(one)(predictors, x, recalibration)


def answer_group(
    predictors: AbstractPredictor,
    x: Float[Array, "q dx"],
    recalibration: Recalibration,
    levels: Float[Array, " l"],
    *,
    keep_functions: bool = False,
) -> dict[str, Float[Array, "..."]]:
    """What is predicted for each row of one group, recalibrated."""
    prediction = predict_with(predictors, x)
    finished = recalibration(prediction)
    if prediction.target == "class":
        return _class_answer(prediction, finished, keep_functions)
    return _real_answer(finished, levels, keep_functions)


def _real_answer(
    finished: AbstractPrediction, levels: Float[Array, " l"], keep_functions: bool
) -> dict[str, Float[Array, "..."]]:
    values = {"mean": finished.mean, "std": finished.std, "task_std": finished.task_std}
    values = {name: value[:, 0] for name, value in values.items()}
    values["quantiles"] = finished.quantiles(levels)[..., 0]
    if not keep_functions:
        return values
    return {**values, "functions": finished.components.mean(), "noise": jnp.square(finished.noise_std[:, 0])}


def _class_answer(
    prediction: Prediction, finished: AbstractPrediction, keep_functions: bool
) -> dict[str, Float[Array, "..."]]:
    best = finished.mean.argmax(-1)
    spread = jnp.take_along_axis(prediction.task_std, best[:, None], axis=1)[:, 0]
    values = {"probabilities": finished.mean, "task_std": spread}
    if not keep_functions:
        return values
    noise = prediction.components.variance().mean(0).sum(-1)
    return {**values, "functions": prediction.components.mean(), "noise": noise}


@eqx.filter_jit
def draw_targets(
    predictors: AbstractPredictor, x: Float[Array, "n dx"], temperature: Float[Array, ""], key: PRNGKeyArray
) -> Shaped[Array, "s n"]:
    """A target for each row under each of the stacked predictors, at that temperature."""
    prediction = predict_with(predictors, x)
    center = jnp.broadcast_to(prediction.mean, prediction.components.mean().shape)
    return prediction.components.tempered(temperature, center).sample(key=key).reshape(-1, x.shape[0])


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
        shots, which = np.unique(frame["shots"].to_numpy(), return_inverse=True)  # few, where rows may be millions
        floor = np.asarray(self.calibration.at(shots).floor(self.coverage))[which]
        inside = class_sets(frame.select(f"p_{name}" for name in classes).to_numpy(), floor)
        return pl.Series(set_name(self.coverage), sets_of(classes, np.asarray(inside)))


def level_name(level: float) -> str:
    """The column of a quantile: q05, q50, q97.5."""
    percent = f"{100 * level:.12g}"
    return f"q{percent.zfill(2)}" if percent.isdigit() else f"q{percent}"


def set_name(coverage: float) -> str:
    """The column of a set of classes: set90."""
    return f"set{100 * coverage:.12g}"


def sets_of(classes: Sequence[str], inside: Bool[np.ndarray, "n c"]) -> list[str]:
    """A set of classes for each row, joined by bars; a name that holds a bar stands in quotes."""
    names = np.array([f'"{name}"' if "|" in name else name for name in classes], dtype=object)
    return ["|".join(names[row]) for row in inside]


def beside(query: pl.DataFrame, columns: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """The query's own columns, then the predicted ones."""
    if taken := [name for name in query.columns if name in columns.columns]:
        names = ", ".join(f"'{name}'" for name in taken)
        way = "give way to the predicted ones" if len(taken) > 1 else "gives way to the predicted one"
        notes.append(f"the query table's own {names} {way}")
    return pl.concat([query.drop(taken), columns], how="horizontal")
