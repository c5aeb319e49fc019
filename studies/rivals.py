"""What a statistician would pick, on the tasks of `studies/tables.py`: lme4 (R) and GPBoost.

    pip install gpboost; R with the packages lme4 and splines
    python studies/rivals.py --run FOLDER --out FILE.jsonl [--ordered] [--tables ...]

Both are fitted anew for each number of labelled rows, with the labelled rows of new groups among the others: neither
takes rows of a group it was not fitted to. lme4 has all columns as fixed effects and a random level for each group
(lme4), or natural splines of the column that varies most within groups and random slopes of it besides (lme4-slopes).
GPBoost has trees (rate 0.05, 15 leaves, the number of them chosen on a fifth of the groups) and a random level
(gpboost), or a random slope of that column besides (gpboost-slopes).
"""

import argparse
import csv
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.pool.mixture import Mixture
from tables import SPLITS, Split, opened, read

HERE = Path(__file__).parent
SMALLEST = 1e-3


def main_column(split: Split) -> int:
    """The column of numbers that varies most within groups."""
    rows = split.train
    means = np.stack([np.bincount(rows.group, column) / rows.counts for column in rows.x.T], axis=1)
    within = (rows.x - means[rows.group]).var(0) / np.maximum(rows.x.var(0), 1e-12)
    numbers = [i for i, column in enumerate(rows.columns) if column.kind == "number"]
    return max(numbers or range(rows.x.shape[1]), key=lambda i: within[i])


def with_lme4(split: Split) -> list[dict[str, Any]]:
    """Predictions of lme4, by way of R."""
    with tempfile.TemporaryDirectory() as folder:
        table, answers = Path(folder) / "rows.csv", Path(folder) / "answers.csv"
        _write_rows(split, table)
        words = [str(table), f"x{main_column(split)}", str(int(split.train.num_classes > 0)), str(answers)]
        done = subprocess.run(["Rscript", str(HERE / "rivals.R"), *words], check=False, capture_output=True, text=True)
        if not answers.exists():
            print(split.table.name, split.number, done.stderr.strip()[-300:])
            return []
        with answers.open() as file:
            return list(csv.DictReader(file))


def _write_rows(split: Split, path: Path) -> None:
    train = split.train
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["part", "shots", "place", "g", "y", *(f"x{i}" for i in range(train.x.shape[1]))])
        for i in range(len(train.y)):
            writer.writerow(["train", -1, -1, f"t{train.group[i]}", train.y[i], *train.x[i]])
        for shots, tasks in split.tests.items():
            rows = tasks.rows
            for part, chosen in (("support", tasks.support), ("query", tasks.query)):
                for place, row in enumerate(np.concatenate(chosen).astype(int)):
                    writer.writerow([part, shots, place, f"n{rows.group[row]}", rows.y[row], *rows.x[row]])


def with_gpboost(split: Split) -> list[dict[str, Any]]:
    """Predictions of GPBoost."""
    import gpboost as gpb

    train, main, answers = split.train, main_column(split), []
    for slopes in (False, True):
        for shots, tasks in split.tests.items():
            begun = time.process_time()
            given = np.concatenate(tasks.support).astype(int)
            rows = tasks.rows
            x = np.concatenate([train.x, rows.x[given]])
            y = np.concatenate([train.y, rows.y[given]])
            group = np.concatenate([train.group, train.num_groups + rows.group[given]])
            likelihood = "bernoulli_logit" if train.num_classes else "gaussian"

            def effects(group: np.ndarray, x: np.ndarray, likelihood: str = likelihood, slopes: bool = slopes) -> Any:
                extra = {"group_rand_coef_data": x[:, main], "ind_effect_group_rand_coef": [1]} if slopes else {}
                return gpb.GPModel(group_data=group, likelihood=likelihood, num_parallel_threads=1, **extra)

            try:
                trees = _trees(gpb, x, y, group, effects)
                model = effects(group, x)
                booster = gpb.train(_settings(y), gpb.Dataset(x, y), trees, gp_model=model)
                asked = tasks.asked
                extra = {"group_rand_coef_data_pred": rows.x[asked][:, main]} if slopes else {}
                said = booster.predict(
                    data=rows.x[asked],
                    group_data_pred=train.num_groups + rows.group[asked],
                    predict_var=True,
                    pred_latent=False,
                    **extra,
                )
            except Exception as error:  # one fit that fails must not stop a study of hours
                print(split.table.name, split.number, shots, "gpboost", type(error).__name__, str(error)[:100])
                continue
            seconds = time.process_time() - begun
            std = np.sqrt(np.maximum(said["response_var"], 0))
            name = "gpboost-slopes" if slopes else "gpboost"
            answers += [
                {"row": name, "shots": shots, "place": i, "mean": m, "std": s, "seconds": seconds}
                for i, (m, s) in enumerate(zip(said["response_mean"], std, strict=True))
            ]
    return answers


def _settings(y: np.ndarray) -> dict[str, Any]:
    leaf = int(np.clip(len(y) // 20, 2, 20))
    return {"learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": leaf, "verbose": -1, "num_threads": 1}


def _trees(gpb: Any, x: np.ndarray, y: np.ndarray, group: np.ndarray, effects: Any) -> int:
    """How many trees serve a fifth of the groups best."""
    held = np.isin(group, np.unique(group)[::5])
    model = effects(group[~held], x[~held])
    extra = {"group_rand_coef_data_pred": x[held][:, 0] * 0} if model.num_group_rand_coef else {}
    best = {}
    booster = gpb.train(_settings(y), gpb.Dataset(x[~held], y[~held]), 200, gp_model=model)
    for trees in (10, 20, 40, 80, 120, 200):
        said = booster.predict(
            data=x[held], group_data_pred=group[held], num_iteration=trees, pred_latent=False, **extra
        )["response_mean"]
        best[trees] = float(np.mean((said - y[held]) ** 2))
    return min(best, key=lambda trees: best[trees])


def scored(split: Split, answers: list[dict[str, Any]], ordered: bool) -> list[dict[str, Any]]:
    """A record for each rival and number of labelled rows, as `studies/tables.py` writes them."""
    records = []
    for row in dict.fromkeys(answer["row"] for answer in answers):
        for shots, tasks in split.tests.items():
            mine = [one for one in answers if one["row"] == row and int(float(one["shots"])) == shots]
            if len(mine) != len(tasks.asked):
                continue
            mine.sort(key=lambda one: int(float(one["place"])))
            mean, std = (np.array([float(one[name]) for one in mine]) for name in ("mean", "std"))
            groups, place = np.unique(tasks.group, return_inverse=True)
            of_row = place[tasks.task]
            count = np.bincount(of_row)
            each = _scores(mean, std, tasks.rows.y[tasks.asked], split)
            records.append(
                {
                    "table": split.table.name,
                    "split": split.number,
                    "ordered": ordered,
                    "shots": shots,
                    "row": row,
                    "groups": groups.tolist(),
                    "scores": {n: np.round(np.bincount(of_row, v) / count, 7).tolist() for n, v in each.items()},
                    "seconds": round(float(mine[0]["seconds"]), 2),
                }
            )
    return records


def _scores(mean: np.ndarray, std: np.ndarray, y: np.ndarray, split: Split) -> dict[str, np.ndarray]:
    if split.train.num_classes:
        of_truth = np.clip(np.where(y == 1, mean, 1 - mean), 1e-6, 1)
        return {"accuracy": ((mean > 0.5) == (y == 1)).astype(float), "nll": -np.log(of_truth)}
    scale = split.table.scale
    one = Mixture(np.ones((1, len(y))), mean[None], np.maximum(std, SMALLEST)[None])
    inside = (np.abs(one.cdf(y) - 0.5) <= 0.45).astype(float)
    nll = np.log(scale) - one.log_prob(y)
    return {"mse": (mean - y) ** 2 * scale**2, "nll": nll, "crps": one.crps(y) * scale, "coverage90": inside}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--ordered", action="store_true")
    flags = parser.parse_args()
    done = {(r["table"], r["split"], r["ordered"]) for r in read([flags.out])} if flags.out.exists() else set()
    with flags.out.open("a") as file:
        for path in sorted(flags.run.glob("*.npz")):
            table = opened(path)
            if (flags.tables and table.name not in flags.tables) or (flags.ordered and not table.has_order):
                continue
            for number in range(SPLITS):
                if (table.name, number, flags.ordered) in done:
                    continue
                split = Split.of(table, number, ordered=flags.ordered)
                records = scored(split, [*with_lme4(split), *with_gpboost(split)], flags.ordered)
                file.write("".join(json.dumps(record) + "\n" for record in records))
                file.flush()
                print(table.name, number, *sorted({f"{r['row']} {r['seconds']}" for r in records}), flush=True)


if __name__ == "__main__":
    main()
