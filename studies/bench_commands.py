"""Seconds and memory of commands, each in a process of its own: how long they take to begin, and what `fit` and
`predict` take on tables of some sizes, beside other ways to the same predictions.

    python studies/bench_commands.py RIVAL FOLDER    fits a rival to the table there and predicts, as the bench calls it
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

SIZES = (10**4, 10**5, 10**6)
A_GROUP = 50  # rows of a group
KNOWN = 5  # labelled rows of a group that is new
MINUTES = "1"
RIVALS = {"boosting": "sklearn", "LightGBM": "lightgbm", "mixed model": "statsmodels", "GPBoost": "gpboost"}


def run_start() -> list[dict[str, Any]]:
    """Seconds of short commands on an empty cache, and when the same command has been run before."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        table, asked, known = write_table(room, 2_000)
        asked = asked.drop("truth")
        ten, one = asked.head(10), asked.filter(pl.col("group") == asked["group"][0])
        ten.write_csv(room / "ten.csv")
        one.write_csv(room / "one.csv")
        known.write_csv(room / "known.csv")
        fitted = ["fit", str(table), "--task", "group", "--target", "y", "--run", str(room / "fit")]
        of = ["predict", str(room / "fit"), "--support", str(room / "known.csv"), "--out", str(room / "out.csv")]
        one_step = [
            "train",
            "regression2d",
            "--method",
            "st-maml",
            "--steps",
            "1",
            "--run",
            str(room / "run"),
            "--force",
        ]
        commands = {
            "import": None,
            "train to the end of its first step": one_step,
            "fit of one method to the end of its first step": [
                *fitted,
                "--method",
                "st-maml",
                "--steps",
                "1",
                "--force",
            ],
            "predict, ten rows": [*of, "--query", str(room / "ten.csv")],
            "predict, one group": [*of, "--query", str(room / "one.csv")],
        }
        for name, command in commands.items():
            turns = [_run(_stmaml(command), room / "cache") for _ in range(3)]
            found.append({"name": name, "first": turns[0], "again": min(turns[1:], key=lambda turn: turn["seconds"])})
    return found


def _stmaml(command: list[str] | None) -> list[str]:
    return (
        [sys.executable, "-c", "import stmaml.cli.fit"]
        if command is None
        else [sys.executable, "-m", "stmaml", *command]
    )


def run_tables(largest: int) -> list[dict[str, Any]]:
    """`fit` and `predict` beside rivals on the same made-up table: seconds, memory, and the error on new groups."""
    found = []
    for size in (size for size in SIZES if size <= largest):
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            table, asked, known = write_table(room, size)
            asked.write_parquet(room / "ask.parquet")
            known.write_parquet(room / "known.parquet")
            found.append({"rows": size, "name": "stmaml"} | _own(table, room))
            there = [name for name, package in RIVALS.items() if importlib.util.find_spec(package)]
            found += [{"rows": size, "name": name} | _rival(name, room) for name in there]
            print(f"  table of {size:,} rows done", flush=True)
    return found


def _own(table: Path, room: Path) -> dict[str, Any]:
    fit = ["fit", str(table), "--task", "group", "--target", "y", "--run", str(room / "fit"), "--minutes", MINUTES]
    pl.read_parquet(room / "ask.parquet").drop("truth").write_parquet(room / "query.parquet")
    ask = ["--query", str(room / "query.parquet"), "--support", str(room / "known.parquet")]
    fitted = _run(_stmaml(fit), None)
    asked = _run(_stmaml(["predict", str(room / "fit"), *ask, "--out", str(room / "out.csv")]), None)
    error = float("nan")
    if asked["code"] == 0:
        found, truth = pl.read_csv(room / "out.csv"), pl.read_parquet(room / "ask.parquet")["truth"].to_numpy()
        error = float(np.sqrt(np.mean((found["prediction"].to_numpy() - truth) ** 2)))
    return {"fit": fitted, "predict": asked, "error": error}


def _rival(name: str, room: Path) -> dict[str, Any]:
    turn = _run([sys.executable, __file__, name, str(room)], None)
    answer = json.loads(turn.pop("out").strip().splitlines()[-1]) if turn["code"] == 0 else {}
    fitted = turn | {"seconds": answer.get("fit", float("nan"))}
    asked = {"seconds": answer.get("ask", float("nan")), "memory_gb": turn["memory_gb"], "code": turn["code"]}
    return {"fit": fitted, "predict": asked, "error": answer.get("error", float("nan"))}


def _run(command: list[str], cache: Path | None) -> dict[str, Any]:
    """Seconds by the clock, of processors, and the most memory of a command."""
    environment = os.environ | ({"STMAML_CACHE": str(cache)} if cache else {})
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        seconds, _ = time.perf_counter() - start, out.seek(0)
        text = out.read()[-400:]
    code = os.waitstatus_to_exitcode(status)
    processor, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
    return {"seconds": seconds, "processor_s": processor, "memory_gb": memory, "code": code, "out": text}


def write_table(room: Path, rows: int) -> tuple[Path, pl.DataFrame, pl.DataFrame]:
    """Groups with a level and a slope of their own: the table, and of new groups the rows asked for and those known."""
    draw = np.random.default_rng(0)
    groups = rows // A_GROUP + 20
    level, slope = draw.normal(0, 2, groups), draw.normal(1, 0.5, groups)
    group = np.repeat(np.arange(groups), A_GROUP)
    x1, x2 = draw.normal(size=(2, len(group)))
    kind = draw.integers(0, 4, len(group))
    clean = level[group] + slope[group] * x1 + np.sin(2 * x2) + 0.3 * kind
    y = clean + 0.5 * draw.normal(size=len(group))
    data = {"group": group, "x1": x1, "x2": x2, "kind": [f"k{k}" for k in kind], "y": y, "truth": clean}
    table = pl.DataFrame(data).with_columns(pl.format("g{}", "group").alias("group"))
    table[:rows].drop("truth").write_parquet(room / "table.parquet")
    new = table[rows:].with_columns(pl.int_range(pl.len()).over("group").alias("place"))
    known = new.filter(pl.col("place") < KNOWN).drop("truth", "place")
    return room / "table.parquet", new.filter(pl.col("place") >= KNOWN).drop("y", "place"), known


# Rivals: each is fitted to all rows of known groups and to the known rows of new ones


def rival(name: str, room: Path) -> dict[str, float]:
    """Seconds to fit and to predict, and the error at rows of new groups."""
    known, ask = pl.read_parquet(room / "known.parquet"), pl.read_parquet(room / "ask.parquet")
    table = pl.concat([pl.read_parquet(room / "table.parquet"), known])
    means = table.group_by("group").agg(pl.col("y").head(KNOWN).mean().alias("level"))
    train, test = (_numbers(part.join(means, on="group", how="left")) for part in (table, ask))
    start = time.perf_counter()
    model = {"boosting": _boosting, "LightGBM": _lightgbm, "mixed model": _mixed, "GPBoost": _gpboost}[name]
    answer = model(train, table["group"].to_numpy(), table["y"].to_numpy())
    fitted = time.perf_counter()
    error = np.sqrt(np.mean((answer(test, ask["group"].to_numpy()) - ask["truth"].to_numpy()) ** 2))
    return {"fit": fitted - start, "ask": time.perf_counter() - fitted, "error": float(error)}


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
