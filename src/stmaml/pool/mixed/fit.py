"""From grouped rows to a fitted linear mixed model."""

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg
from scipy.special import ndtr, ndtri

from stmaml.pool.base import Arrays, GroupedRows
from stmaml.pool.mixed.covariance import Covariance
from stmaml.pool.mixed.design import Design, Own, design_of, varies_within
from stmaml.pool.mixed.noise import NoisePrior, noise_prior
from stmaml.pool.mixed.reml import Groups, Solved, Structure, deviance, estimate, groups_of, reduce, slopes_of, solve
from stmaml.pool.mixed.sums import Matrices, Sums, chunks, sums_of, thinned

VARIANCE_ROWS = 100_000
"""Rows that variances are estimated from at most; all rows count for the common effects."""
VARIANCE_SIZE = 250_000
"""Numbers in the cross products of groups that variances are estimated from, but for the fewest groups."""
FEWEST_GROUPS = 100
CHUNK_SIZE = 20_000_000
"""Numbers of a design in memory at a time."""
CANDIDATES = 40
FULL_SLOPES = 3
"""Slopes with any covariance; further ones vary on their own."""
MOST_SLOPES = 12
MOST_CURVES = 2
LIKELY = 1.0
"""Spreads of chance by which a slope differs that may help to predict: what is little is shrunk away."""
CLEAR = 2.0
"""The same of a slope that people are told of, where a table has one column: one in thirty with one slope for all gets
as far. The best of many must be clearer, for one of them always is by chance."""


@dataclass(frozen=True)
class Kind:
    """What a model may have beside random levels."""

    columns: bool
    slopes: bool = False
    curves: bool = False


@dataclass(frozen=True)
class Model:
    """A fitted model in units of the noise. Effects: levels' own, common ones, and those of a group."""

    design: Design
    own: Own
    factor: Float[np.ndarray, "q q"]
    """A root of the covariance of a group's effects."""
    beta: Float[np.ndarray, " f"]
    half: Float[np.ndarray, "f f"]
    """A root of the covariance of the common effects."""
    level_mean: Float[np.ndarray, " l"]
    level_lean: Float[np.ndarray, "l f"]
    """How a level's effect moves with the common ones."""
    level_spread: Float[np.ndarray, " l"]
    """What is unknown of it once these are known."""
    unseen_spread: Float[np.ndarray, " a"]
    """The spread of an unseen level, for each further grouping."""
    center: float
    scale: float
    """Noise is in these units, after which `center` is added."""
    noise: NoisePrior

    def state(self) -> Arrays:
        """As arrays."""
        own = {"slopes": self.own.slopes, "full": np.array(self.own.full), "curves": self.own.curves}
        noise = {"noise": np.array([self.noise.dof, self.noise.scale])}
        center = {"target": np.array([self.center, self.scale])}
        common = {"factor": self.factor, "beta": self.beta, "half": self.half, "level_mean": self.level_mean}
        levels = {"level_lean": self.level_lean, "level_spread": self.level_spread, "unseen_spread": self.unseen_spread}
        return {**common, **levels, **center, **own, **noise, **self.design.state()}

    @staticmethod
    def restore(state: Arrays) -> "Model":
        """Back from its arrays."""
        own = Own(state["slopes"], int(state["full"]), state["curves"])
        dof, scale = (float(value) for value in state["noise"])
        center, size = (float(value) for value in state["target"])
        return Model(
            design=Design.restore(state),
            own=own,
            factor=state["factor"],
            beta=state["beta"],
            half=state["half"],
            level_mean=state["level_mean"],
            level_lean=state["level_lean"],
            level_spread=state["level_spread"],
            unseen_spread=state["unseen_spread"],
            center=center,
            scale=size,
            noise=NoisePrior(dof, scale),
        )


@dataclass(frozen=True)
class Starts:
    """Where searches for variances ended: a like part of the same table is searched from there."""

    ended: dict[tuple[object, ...], np.ndarray] = field(default_factory=dict)

    def search(self, sums: Sums, structure: Structure, own: Own) -> Float[np.ndarray, " t"]:
        """The variances that fit best."""
        like = (own.slopes.tobytes(), own.full, own.curves.tobytes(), len(structure.wide), structure.covariance)
        self.ended[like] = estimate(sums, structure, start=self.ended.get(like), tolerance=1e-5)
        return self.ended[like]


def labelled(rows: GroupedRows) -> GroupedRows:
    """The rows whose target is known."""
    return rows.at(np.flatnonzero(np.isfinite(rows.y)))


def fit_model(rows: GroupedRows, kind: Kind, starts: Starts | None = None) -> Model:
    """The model of this kind that fits the rows best."""
    starts = starts or Starts()
    rows, center, scale = _standard(labelled(rows))
    design = design_of(rows, columns=kind.columns)
    few = _few(rows, design, kind)
    own = chosen(few, design, kind, starts)
    theta, structure, sums = _variances(few, design, own, starts)
    factor = structure.covariance.factor(theta[: structure.covariance.num])
    solved = _solved(rows, design, own, structure, theta, factor)
    noise = _noise(few.group, design.matrices(few, own), sums, groups_of(sums, factor), solved, structure)
    return _assembled(design, own, factor, solved, theta, structure, center, scale, noise)


def slopes_for(rows: GroupedRows, starts: Starts) -> Own:
    """Slopes that differ between groups."""
    rows = _standard(rows)[0]
    return chosen(rows, design_of(rows), Kind(columns=True, slopes=True), starts)


def misfit(rows: GroupedRows, own: Own, starts: Starts) -> float:
    """Minus twice the log-likelihood, but for a constant: how scales of the target compare."""
    rows, _, scale = _standard(rows)
    theta, structure, sums = _variances(rows, design_of(rows), own, starts)
    return deviance(theta, sums, structure)[0] + 2.0 * len(rows.y) * float(np.log(scale))


def _standard(rows: GroupedRows) -> tuple[GroupedRows, float, float]:
    """Targets with mean 0 and spread 1, and what these were."""
    center = float(rows.y.mean()) if len(rows.y) else 0.0
    spread = float(rows.y.std()) if len(rows.y) else 0.0
    scale = spread if spread > 1e-9 * (1.0 + abs(center)) else 1.0
    return replace(rows, y=(rows.y - center) / scale), center, scale


def _few(rows: GroupedRows, design: Design, kind: Kind) -> GroupedRows:
    """Groups enough for the variances: fewer where each has many effects."""
    width = sum(design.blocks()) + len(design.center) + 2
    effects = 1 + 4 * kind.slopes + 16 * kind.curves
    kept = thinned(rows.counts, VARIANCE_ROWS, max(VARIANCE_SIZE // (width * effects), FEWEST_GROUPS))
    return rows if len(kept) == rows.num_groups else rows.of_groups(kept)


def structure_of(design: Design, own: Own) -> Structure:
    """Blocks of effects: level and telling slopes together, other slopes alone, curves."""
    alone = (1,) * (len(own.slopes) - own.full)
    return Structure(Covariance(1 + own.full, alone + design.curve_sizes(own)), design.blocks())


def _variances(rows: GroupedRows, design: Design, own: Own, starts: Starts) -> tuple[np.ndarray, Structure, Sums]:
    structure = structure_of(design, own)
    sums = sums_of(design.matrices(rows, own), design.levels.num)
    return starts.search(sums, structure, own), structure, sums


def chosen(rows: GroupedRows, design: Design, kind: Kind, starts: Starts) -> Own:
    """Slopes and curves that differ between groups by more than chance, the clearest first."""
    if not (kind.slopes or kind.curves):
        return Own.nothing()
    varies = np.flatnonzero(varies_within(rows) & (design.inverse_scale > 0.0))[:CANDIDATES]
    theta, _, _ = _variances(rows, design, Own.nothing(), starts)
    slopes = varies[_telling(rows, design, theta, Own(varies, 0, varies[:0]))[: _most(rows.num_groups)]]
    full = min(len(slopes), FULL_SLOPES) if rows.num_groups >= 15 else 0
    bending = np.array([column for column in varies if int(column) in design.bends and kind.curves], dtype=int)
    curves = bending[_telling(rows, design, theta, Own(varies[:0], 0, bending))[:MOST_CURVES]]
    return Own(slopes, full, curves)


def _most(num_groups: int) -> int:
    return min(MOST_SLOPES, num_groups // 4)


def differing(rows: GroupedRows, columns: Int[np.ndarray, " c"], most: int) -> list[int]:
    """Which of some columns have straight slopes that differ between groups by clearly more than chance, the clearest
    first. Each is judged beside those before it: what they leave unsaid would look like slopes of others."""
    rows = _standard(rows)[0]
    design = design_of(rows, products=False, curves=False)
    few = _few(rows, design, Kind(columns=True, slopes=True))
    found: list[int] = []
    while len(found) < min(most, len(columns)):
        own = Own(np.array(found, dtype=int), 0, np.zeros(0, dtype=int))
        theta, _, _ = _variances(few, design, own, Starts())
        left = np.setdiff1d(columns, found)
        parts = np.split(left, range(CANDIDATES, len(left), CANDIDATES))
        score = np.concatenate([_scores(few, design, theta, replace(own, slopes=part), own.slopes) for part in parts])
        if score.max() <= -ndtri(ndtr(-CLEAR) / len(left)):
            break
        found.append(int(left[score.argmax()]))
    return found


def _telling(rows: GroupedRows, design: Design, theta: np.ndarray, own: Own) -> Int[np.ndarray, " k"]:
    """Which of the slopes, or of the curves, to let differ."""
    score = _scores(rows, design, theta, own, own.slopes[:0])
    order = np.argsort(-score, kind="stable")
    return order[score[order] > LIKELY]


def _scores(
    rows: GroupedRows, design: Design, theta: np.ndarray, own: Own, known: Int[np.ndarray, " k"]
) -> Float[np.ndarray, " c"]:
    """A score test of the variance at 0 of each slope, or of each curve, in spreads of chance; `theta` has a variance
    for each of the known slopes."""
    num = 1 + len(known)
    own = replace(own, slopes=np.concatenate([known, own.slopes]))
    structure = structure_of(design, own)
    if len(structure.covariance.shared) == len(known):
        return np.zeros(0)
    sums = sums_of(design.matrices(rows, own), design.levels.num)
    zeros = np.zeros(len(structure.covariance.shared) - len(known))
    padded = np.concatenate([theta[:num], zeros, theta[num:]])
    groups = groups_of(sums, structure.covariance.factor(padded[: structure.covariance.num]))
    reduced = reduce(sums, groups)
    solved = solve(reduced, structure, padded, np.diag(sums.rr))
    slopes = slopes_of(sums, groups, reduced, solved, structure)
    gains = structure.covariance.sum_blocks(-np.diag(slopes.effects)[1:])
    chance = np.sqrt(structure.covariance.sum_blocks(slopes.traces[1:] ** 2))
    return (gains / np.maximum(chance, 1e-300))[len(known) :]


def _solved(
    rows: GroupedRows, design: Design, own: Own, structure: Structure, theta: np.ndarray, factor: np.ndarray
) -> Solved:
    """The common effects from all rows, part after part."""
    width = len(factor) + structure.num_wide + len(design.center) + 2
    parts, squares = [], np.zeros(0)
    for part in chunks(rows.group, CHUNK_SIZE // width):
        sums = sums_of(design.matrices(_at(rows, part), own), design.levels.num)
        parts.append(reduce(sums, groups_of(sums, factor)))
        squares = np.diag(sums.rr) + (squares if len(squares) else 0.0)
    return solve(sum(parts[1:], parts[0]), structure, theta, squares)


def _at(rows: GroupedRows, part: np.ndarray) -> GroupedRows:
    return rows if len(part) == len(rows.y) else rows.at(part)


def leftovers(sums: Sums, groups: Groups, gamma: Float[np.ndarray, " f"]) -> Float[np.ndarray, "g q"]:
    """Z'V^-1 (y - common effects): times their covariance, each group's expected effects."""
    seen = groups.t @ sums.zr
    return seen[:, :, -1] - seen[:, :, :-1] @ gamma


def _noise(
    group: np.ndarray, rows: Matrices, sums: Sums, groups: Groups, solved: Solved, structure: Structure
) -> NoisePrior:
    """How the noise of the training groups differs."""
    covariance = groups.factor @ groups.factor.T
    effects = leftovers(sums, groups, solved.gamma) @ covariance
    levels = structure.num_wide - (rows.rest.shape[1] - 1 - (len(solved.gamma) - structure.num_wide))
    known = np.concatenate([solved.gamma[:levels], [0.0]])[rows.codes].sum(axis=1)
    mean = known + rows.rest[:, :-1] @ solved.gamma[levels:] + (rows.z * effects[group]).sum(axis=1)
    squares = np.bincount(group, (rows.rest[:, -1] - mean) ** 2) / solved.sigma2
    used = np.einsum("ij,gjk,gki->g", covariance, groups.t, sums.zz)
    return noise_prior(squares, np.bincount(group) - used)


def _assembled(
    design: Design,
    own: Own,
    factor: np.ndarray,
    solved: Solved,
    theta: np.ndarray,
    structure: Structure,
    center: float,
    scale: float,
    noise: NoisePrior,
) -> Model:
    """The model, its levels' effects split into what moves with the common effects and what is their own."""
    num, sigma = design.levels.num, float(np.sqrt(solved.sigma2))
    levels, common = solved.half[:num], solved.half[num:]
    between = common @ common.T
    lifted = between + 1e-12 * np.eye(len(between)) * max(float(np.trace(between)), 1e-300)
    lean = linalg.solve(lifted, common @ levels.T, assume_a="pos", check_finite=False).T
    alone = np.sqrt(np.maximum(((levels - lean @ common) ** 2).sum(axis=1), 0.0))
    unseen = theta[structure.covariance.num :][: len(design.levels.sizes)]
    gamma = solved.gamma / sigma
    return Model(
        design=design,
        own=own,
        factor=factor,
        beta=gamma[num:],
        half=_square(common),
        level_mean=gamma[:num],
        level_lean=lean,
        level_spread=alone,
        unseen_spread=unseen,
        center=center,
        scale=scale * sigma,
        noise=noise,
    )


def _square(root: np.ndarray) -> np.ndarray:
    """A root with as many columns as rows."""
    return root if root.shape[0] == root.shape[1] else np.asarray(np.linalg.qr(root.T, mode="r")).T
