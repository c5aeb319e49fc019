"""The settings of an estimator: what is to be learnt from a table, and for whom each of them is."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import polars as pl
from sklearn.utils import check_random_state

from stmaml.errors import SettingError
from stmaml.estimators.learning import Learnt, learn_method, learn_pool
from stmaml.methods import METHODS
from stmaml.pool.prior import NAME as PRIOR
from stmaml.pool.store import POOL, PoolSettings
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.groups import Sizes
from stmaml.tables.settings import Preset, table_recipe
from stmaml.tables.target import WantedTarget

FOR_METHODS: dict[str, Any] = {"steps": None, "preset": "default", "linear": True}
"""Settings that a pool has no use for, and what they are if nobody says."""
FOR_POOLS: dict[str, Any] = {"members": (), "minutes": None, "prior": None}
TABLES = "tables"


@dataclass(frozen=True)
class Wanted:
    """Parameters of an estimator, by their names."""

    method: str
    members: tuple[str, ...]
    minutes: float | None
    shots: int | None
    order: str | None
    steps: int | None
    preset: Preset
    linear: bool
    min_query: int
    prior: str | None = None

    def learn(self, rows: pl.DataFrame, task: str, target: str, kind: WantedTarget, *, seed: int) -> Learnt:
        """What is learnt from the rows of many groups."""
        self._check()
        shots = {} if self.shots is None else {"shots": self.shots}
        sizes = Sizes(**shots, min_query=self.min_query)
        table = TableConfig(task, target, kind=kind, order=self.order, keep_codes=True, sizes=sizes)
        if self.method == POOL:
            members = self.members if self.prior is None else (PRIOR,)
            settings = PoolSettings(members, self.shots, self.minutes, self.steps or 0)
            return learn_pool(rows, Config(table), settings, seed=seed)
        recipe = table_recipe(Config(table), self.method, steps=self.steps, preset=self.preset, linear=self.linear)
        return learn_method(rows, table, recipe, seed=seed)

    def _check(self) -> None:
        """Raises SettingError for a method that there is not, and for settings that it has no use for."""
        if self.method not in (POOL, *METHODS):
            raise SettingError(f"there is no method '{self.method}'; choose {POOL}, or one of: {', '.join(METHODS)}.")
        if self.prior not in (None, TABLES):
            raise SettingError(f"there is no prior '{self.prior}'; the one there is is called '{TABLES}'.")
        if self.prior is not None and self.members:
            raise SettingError("prior predicts alone; name it among members as 'prior' instead, or leave members out.")
        is_pool = self.method == POOL
        for name, usual in (FOR_METHODS if is_pool else FOR_POOLS).items():
            if getattr(self, name) != usual and not (name == "steps" and self.prior is not None):
                whom, way = ("one method alone", "name it as method") if is_pool else ("a pool", f"use method='{POOL}'")
                raise SettingError(f"{name} is for {whom}; {way}, or leave {name} out.")


def seed_of(random_state: Any) -> int:
    """An integer as it stands; else one drawn from the state, or at random for None."""
    drawn = check_random_state(random_state).randint(2**31 - 1)  # refuses what is no state
    return int(random_state) if isinstance(random_state, Integral) else int(drawn)
