"""Ambiguous faces: what the seeds of a row are worth as one learner.

Each gives as many of the models as any other, so that their number is that of one learner alone: of MAML's seeds there
are then as many models as seeds. Made from the log-probabilities that `studies/equal_faces.py` keeps of the first
models, so nothing is trained or asked again."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from faces_figures import BY_FACTOR, SCORES, Row, pick
from jaxtyping import Float

from stmaml.ambiguity import NUM_ASSIGNED, score_rules

ANSWERS = "answers"  # folder of log-probabilities, and how they are called by part and factor
BY_PART = "{} {:g}"
TOGETHER = "{}, {} seeds together"
EVEN = np.log(0.5)


def scores_of_each(log_p: Float[np.ndarray, "m s r q"]) -> dict[str, Float[np.ndarray, " m"]]:
    """The benchmark's scores of each task. Of two labels, the true one is the likeliest if it has more than half."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        right = np.exp(log_p).mean(1) > 0.5
        found = jax.vmap(score_rules)(jnp.asarray(log_p), jnp.asarray(log_p > EVEN), jnp.asarray(right))
    return {name: np.asarray(found[name], np.float32) for name in SCORES}


def in_turns(each: Sequence[Float[np.ndarray, "m s r q"]]) -> Float[np.ndarray, "m t r q"]:
    """The first models of all learners, then the second ones, and so on: no more than are assigned to rules."""
    models = np.stack(each, axis=2)  # [m, s, learner, r, q]
    flat = models.reshape(models.shape[0], -1, *models.shape[3:])
    return flat[:, :NUM_ASSIGNED].astype(np.float32)


def together(row: Row, folders: Sequence[Path]) -> Row | None:
    """The seeds of a row as one learner; None where there is one seed, or what they said was not kept."""
    paths = [path for seed in row.told if (path := _path(row, seed, folders))]
    if len(paths) < 2 or len(paths) < len(row.told):
        return None
    each = [np.load(path) for path in paths]
    names = [name for name in each[0] if all(name in one for one in each)]
    scores = {}
    for name in names:
        part, factor = name.rsplit(" ", 1)
        found = scores_of_each(in_turns([one[name] for one in each]))
        scores.update({BY_FACTOR.format(part, float(factor), kind): values for kind, values in found.items()})
    factors = [float(name.rsplit(" ", 1)[1]) for name in names if name.startswith("choosing ")]
    means = {f: {kind: float(scores[BY_FACTOR.format("choosing", f, kind)].mean()) for kind in SCORES} for f in factors}
    told = {**next(iter(row.told.values())), "factor": pick(means)}
    return Row(TOGETHER.format(row.name, len(paths)), {0: told}, {0: scores})


def with_seeds_together(rows: Mapping[str, Row], folders: Sequence[Path]) -> dict[str, Row]:
    """All rows, and those whose seeds can be one learner once more as such."""
    found = [one for row in rows.values() if (one := together(row, folders))]
    return {**rows, **{row.name: row for row in found}}


def _path(row: Row, seed: int, folders: Sequence[Path]) -> Path | None:
    name = row.told[seed].get("name", "")  # rows of before do not tell
    found = [path for folder in folders if (path := folder / ANSWERS / f"{name}.npz").exists()]
    return found[0] if found else None
