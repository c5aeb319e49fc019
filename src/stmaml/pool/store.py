"""A pool in a run folder: what each member has learnt and said of held-out groups, and how they are pooled."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stmaml.border.run_content import check_pool_result
from stmaml.border.shapes import check_arrays
from stmaml.errors import RunError, forbidden
from stmaml.locks import check_unlocked
from stmaml.pool.averaging import restored
from stmaml.pool.base import Arrays, Fitted, Forecast
from stmaml.pool.group_effects import GroupEffects
from stmaml.pool.guarantee import Reaches
from stmaml.pool.guarded import Guarded, reading
from stmaml.pool.kind import POOL, is_pool
from stmaml.pool.model import PoolModel
from stmaml.pool.pooling import Pooling
from stmaml.pool.registry import all_members
from stmaml.pool.rows import Factors, has_target
from stmaml.pool.scoring import Scored, scored_arrays, scored_from
from stmaml.pool.usual import Usual
from stmaml.provenance import provenance
from stmaml.run_files import check_own, read_sealed, write_sealed
from stmaml.runs import Run, as_json, from_dict, read_npz, write_bytes
from stmaml.tables.benchmark import Config
from stmaml.tables.schema import Schema

__all__ = ["POOL", "PoolRun", "PoolSettings", "array_digest", "is_pool"]
FIELDS = ("mean", "task_variance", "noise_variance")


@dataclass(frozen=True)
class PoolSettings:
    """What a pool is made of."""

    members: tuple[str, ...] = ()
    """Members to use; all that suit the table if none is named."""
    shots: int | None = None
    """Most labelled rows to expect of a new group; what half of the groups can spare, up to ten, if not given."""
    minutes: float | None = None
    """Time for the training of the meta-learned member; by the size of the table if not given."""
    steps: int = 0
    """Steps in which the prior over tables is trained further on the table."""


@dataclass(frozen=True)
class PoolRun:
    """Names and opens the files of a pool's run folder."""

    run: Run

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return self.run.folder

    @property
    def pool_path(self) -> Path:
        """How members are pooled; written last, so that its being there means that all is."""
        return self.folder / "pool.json"

    @property
    def result_path(self) -> Path:
        """What the scores said."""
        return self.folder / "result.json"

    @property
    def known_path(self) -> Path:
        """Labelled rows of known groups."""
        return self.folder / "known.parquet"

    def create(self, table: Config, settings: PoolSettings, seed: int, *, force: bool = False) -> None:
        """Makes the folder and writes what the pool will be made of; nothing of an earlier one is left."""
        about = {
            "seed": seed,
            "benchmark": {"name": "table", "settings": as_json(table)},
            "method": {"name": POOL, "preset": "default", "settings": as_json(settings)},
        }
        if not force:
            self.run.check_free("fit")
        check_own(self.run.config_path, self._written())
        check_unlocked(self.folder)
        self.clear()
        self.run.create({**provenance(), **about}, force=force)

    @property
    def effects_path(self) -> Path:
        """How groups differ."""
        return self.folder / "effects.npz"

    @property
    def scored_path(self) -> Path:
        """Scores of each held-out group."""
        return self.folder / "scored.npz"

    def clear(self) -> None:
        """Deletes all that fitting wrote, so that nothing of it is taken for part of another run."""
        for path in self._written():
            path.unlink(missing_ok=True)

    def _written(self) -> list[Path]:
        kept = [path for part in ("members", "held-out", "mixed-up") for path in self.folder.glob(f"{part}/*.npz")]
        return [self.pool_path, self.result_path, self.known_path, self.effects_path, self.scored_path, *kept]

    def is_finished(self) -> bool:
        """Whether it can predict."""
        return self.pool_path.exists()

    def table(self) -> Config:
        """The table it was made from, and what was made of its columns."""
        return from_dict(Config, self.run.config()["benchmark"]["settings"])

    def settings(self) -> PoolSettings:
        """What it is made of."""
        return from_dict(PoolSettings, self.run.config()["method"]["settings"])

    def save_member(self, name: str, said: list[Forecast], fitted: Fitted, shaken: Arrays | None = None) -> None:
        """Keeps what a member learnt from all groups, and what its folds said of held-out ones, also with columns mixed
        up."""
        self.run.save_arrays(Path("members") / f"{name}.npz", fitted.state())
        if shaken:
            self.run.save_arrays(Path("mixed-up") / f"{name}.npz", shaken)
        arrays = {f"{i}.{field}": getattr(one, field) for i, one in enumerate(said) for field in FIELDS}
        self.run.save_arrays(Path("held-out") / f"{name}.npz", arrays)

    def save_members(self, model: PoolModel) -> None:
        """Keeps what the members of a pool made elsewhere have learnt."""
        for name, fitted in model.members.items():
            self.run.save_arrays(Path("members") / f"{name}.npz", fitted.state())

    def said(self, name: str, count: int) -> list[Forecast] | None:
        """What the folds of a member said, if that was kept."""
        path = self.folder / "held-out" / f"{name}.npz"
        if not path.exists() or not (self.folder / "members" / f"{name}.npz").exists():
            return None
        arrays = read_npz(path, sealed=True)
        with reading(path, "what a member said of held-out groups"):
            each = [Forecast(*(arrays[f"{i}.{field}"] for field in FIELDS)) for i in range(count)]
            return [check_arrays(one) for one in each]

    def shaken(self, name: str) -> Arrays:
        """What the folds of a member said with columns mixed up; nothing if that was not kept."""
        path = self.folder / "mixed-up" / f"{name}.npz"
        return read_npz(path, sealed=True) if path.exists() else {}

    def member(self, name: str) -> Fitted:
        """What a member learnt from all groups."""
        known = all_members()
        if name not in known:
            raise RunError(f"{self.folder} has a member '{name}' that this version does not know. Fit again.")
        path, arrays = self._member_path(name), self.arrays(name)
        with reading(path, f"the member '{name}'"):
            return Guarded(restored(known[name], arrays), path)

    def _member_path(self, name: str) -> Path:
        return self.folder / "members" / f"{name}.npz"

    def arrays(self, name: str) -> Arrays:
        """The arrays of a member."""
        return read_npz(self._member_path(name), sealed=True)

    def save_known(self, frame: pl.DataFrame) -> None:
        """Keeps labelled rows."""
        import io

        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        write_bytes(self.known_path, buffer.getvalue())

    def known(self) -> pl.DataFrame:
        """The labelled rows of known groups."""
        try:
            return pl.read_parquet(self.known_path)
        except PermissionError as error:
            raise RunError(forbidden(self.known_path)) from error
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise RunError(f"{self.known_path} cannot be read ({error}). Restore it, or fit again.") from error

    def save(self, model: PoolModel, result: Mapping[str, Any]) -> None:
        """Keeps all but the members, `pool.json` last."""
        self.save_known(model.known)
        write_sealed(self.result_path, result)
        about = {
            "pooling": model.pooling.to_json(),
            "usual": dataclasses.asdict(model.usual),
            "factors": model.factors.levels,
            "reaches": None if model.reaches is None else model.reaches.to_json(),
        }
        write_sealed(self.pool_path, about)

    def load(self) -> PoolModel:
        """The pool, ready to predict."""
        if not self.is_finished():
            raise RunError(f"{self.folder} is not finished. Go on with 'stmaml fit --resume {self.folder}'.")
        about, config = read_sealed(self.pool_path), self.table()
        with reading(self.folder, "a whole pool"):
            return self._load(about, config)

    def _load(self, about: dict[str, Any], config: Config) -> PoolModel:
        pooling = Pooling.from_json(about["pooling"])
        members = {name: self.member(name) for name in pooling.used()}
        factors = Factors({name: tuple(levels) for name, levels in about["factors"].items()})
        if config.schema is None:
            raise RunError("its settings do not say what its columns hold")
        schema = Schema.from_json(config.schema)
        usual, said = Usual.from_json(about["usual"]), about.get("reaches")
        reaches = None if said is None else Reaches.from_json(said)
        known = self.known()
        known = known.filter(has_target(schema, known))  # `update` once kept rows without a target
        return PoolModel(config, schema, factors, pooling, usual, members, known, reaches)

    def result(self) -> dict[str, Any]:
        """What the scores said."""
        content = read_sealed(self.result_path)
        with reading(self.result_path, "the scores of a pool"):
            return check_pool_result(content)

    def save_effects(self, effects: GroupEffects) -> None:
        """Keeps how groups differ."""
        self.run.save_arrays(Path(self.effects_path.name), effects.state())

    def effects(self) -> GroupEffects:
        """How groups differ; a sentence for a run that does not say."""
        if not self.is_finished():
            raise RunError(f"{self.folder} is not finished. Go on with 'stmaml fit --resume {self.folder}'.")
        if self.result().get("kind") == "class":
            raise RunError("effects are for numbers, and this pool predicts classes. 'stmaml report' shows its scores.")
        if not self.effects_path.exists():
            raise RunError(f"{self.folder} was fitted before effects were kept. Fit again to have them.")
        arrays = read_npz(self.effects_path, sealed=True)
        with reading(self.effects_path, "how groups differ"):
            return GroupEffects.restore(arrays)

    def save_scored(self, scored: Sequence[Scored]) -> None:
        """Keeps the scores of each held-out group."""
        self.run.save_arrays(Path(self.scored_path.name), scored_arrays(scored))

    def scored(self) -> list[Scored]:
        """The scores of each held-out group, by number of labelled rows."""
        if not self.scored_path.exists():
            raise RunError(f"{self.folder} has no scores of single groups. Fit again to have them.")
        arrays = read_npz(self.scored_path, sealed=True)
        with reading(self.scored_path, "scores of groups"):
            return scored_from(arrays)


def array_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """A short name for the contents of arrays."""
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:16]
