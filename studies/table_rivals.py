"""What else one would take for a table with groups: boosting, a mixed model, and both at once. Each is fitted to all
rows of known groups and to the known rows of new ones, in a process of its own.

    python studies/table_rivals.py RIVAL FOLDER    the table there, as the bench has written it; prints a line of JSON
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

KNOWN = 5  # labelled rows of a group that is new
RIVALS = {"boosting": "sklearn", "LightGBM": "lightgbm", "mixed model": "statsmodels", "GPBoost": "gpboost"}


def rival(name: str, room: Path) -> dict[str, float]:
    """Seconds to fit and to predict, by the clock and of processors, and the error at rows of new groups."""
    known, ask = pl.read_parquet(room / "known.parquet"), pl.read_parquet(room / "ask.parquet")
    table = pl.concat([pl.read_parquet(room / "table.parquet"), known])
    means = table.group_by("group").agg(pl.col("y").head(KNOWN).mean().alias("level"))
    train, test = (_numbers(part.join(means, on="group", how="left")) for part in (table, ask))
    start = _now()
    model = {"boosting": _boosting, "LightGBM": _lightgbm, "mixed model": _mixed, "GPBoost": _gpboost}[name]
    answer = model(train, table["group"].to_numpy(), table["y"].to_numpy())
    fitted = _now()
    error = np.sqrt(np.mean((answer(test, ask["group"].to_numpy()) - ask["truth"].to_numpy()) ** 2))
    clock, processor = zip(start, fitted, _now(), strict=True)
    taken = {"fit": clock[1] - clock[0], "ask": clock[2] - clock[1]}
    used = {"fit_processor": processor[1] - processor[0], "ask_processor": processor[2] - processor[1]}
    return {**taken, **used, "error": float(error)}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _numbers(table: pl.DataFrame) -> np.ndarray:
    """Columns as numbers, with the mean of the group's first labels: what boosting can know of a new group."""
    kinds = [(table["kind"] == f"k{k}").cast(pl.Float64) for k in range(4)]
    return np.stack([table["x1"], table["x2"], *kinds, table["level"]], axis=1).astype(float)


def _boosting(x: np.ndarray, groups: np.ndarray, y: np.ndarray) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_iter=300).fit(x, y)
    return lambda ask, groups: model.predict(ask)


def _lightgbm(x: np.ndarray, groups: np.ndarray, y: np.ndarray) -> Any:
    import lightgbm

    model = lightgbm.LGBMRegressor(n_estimators=300, verbose=-1).fit(x, y)
    return lambda ask, groups: model.predict(ask)


def _mixed(x: np.ndarray, groups: np.ndarray, y: np.ndarray) -> Any:
    """A level and a slope of x1 by group."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    fixed = np.column_stack([np.ones(len(x)), x[:, :5]])
    model = MixedLM(y, fixed, groups, exog_re=fixed[:, :2]).fit(method="lbfgs")
    own = model.random_effects

    def answer(ask: np.ndarray, groups: np.ndarray) -> np.ndarray:
        effects = np.array([own[group] for group in groups])
        return (
            np.column_stack([np.ones(len(ask)), ask[:, :5]]) @ model.fe_params
            + effects[:, 0]
            + effects[:, 1] * ask[:, 0]
        )

    return answer


def _gpboost(x: np.ndarray, groups: np.ndarray, y: np.ndarray) -> Any:
    """Trees with a random level and slope of x1 by group."""
    import gpboost

    effects = gpboost.GPModel(group_data=groups, group_rand_coef_data=x[:, :1], ind_effect_group_rand_coef=[1])
    data = gpboost.Dataset(x[:, :6], y)
    model = gpboost.train({"learning_rate": 0.1, "verbose": -1}, data, gp_model=effects, num_boost_round=100)

    def answer(ask: np.ndarray, groups: np.ndarray) -> np.ndarray:
        given = {"group_data_pred": groups, "group_rand_coef_data_pred": ask[:, :1]}
        return model.predict(data=ask[:, :6], predict_var=False, **given)["response_mean"]

    return answer


if __name__ == "__main__":
    print(json.dumps(rival(sys.argv[1], Path(sys.argv[2]))))
