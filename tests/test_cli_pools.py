"""The commands on a pool of models, from the outside: words in, exit code, text and files out."""

import json
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from stmaml import cli
from stmaml.cli.effects import NO_SLOPES
from stmaml.cli.predictions import show_predictions
from stmaml.cli.showing import without_nan
from stmaml.numbers import plain, to_place, with_interval
from stmaml.pool.reopening import reopen
from stmaml.pool.store import PoolRun
from stmaml.runs import Run
from stmaml.tables.adapted import DEFAULT_LEVELS
from tests.pool.classics import FOLDER

SLEEP = FOLDER / "sleepstudy.csv"
MEMBERS = ("--members", "mean", "mixed")


def fit(folder: Path, table: Path, *words: str) -> tuple[str, str]:
    """What `stmaml fit` printed and said."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["stmaml", "fit", str(table), "--run", str(folder), *words])
        cli.main()
    return out.getvalue(), err.getvalue()


def unfolded(text: str) -> str:
    """The words of an output, whatever the width it was folded to."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def sleep(tmp_path_factory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("runs") / "sleep"
    return folder, *fit(folder, SLEEP, "--task", "Subject", "--target", "Reaction", *MEMBERS)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory) -> tuple[Path, str]:
    """A pool of classes: whether reactions are slow."""
    folder = tmp_path_factory.mktemp("runs")
    frame = pl.read_csv(SLEEP).with_columns(
        slow=pl.when(pl.col("Reaction") > 300).then(pl.lit("y")).otherwise(pl.lit("n"))
    )
    frame.drop("Reaction").write_csv(folder / "slow.csv")
    words = ("--task", "Subject", "--target", "slow", "--members", "shares", "mixed-logistic")
    return folder / "slow", fit(folder / "slow", folder / "slow.csv", *words)[0]


def one_line(text: str) -> bool:
    return text.count("\n") == 1


def test_effects_are_those_of_lme4(stmaml, sleep):
    code, out, _ = stmaml("effects", sleep[0], "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == 0
    np.testing.assert_allclose(list(found["spread"].values()), (24.74, 5.92), rtol=1e-3)
    np.testing.assert_allclose(found["correlation"][0][1], 0.07, atol=0.005)
    np.testing.assert_allclose(found["within"], 25.59, rtol=1e-3)
    fixed = [found["fixed"][name]["estimate"] for name in ("level", "Days")]
    np.testing.assert_allclose(fixed, (251.405, 10.467), rtol=1e-4)
    np.testing.assert_allclose([each["error"] for each in found["fixed"].values()], (6.825, 1.546), rtol=1e-3)
    first = found["groups"][0]
    assert first["group"] == "308"
    np.testing.assert_allclose([first["level"], first["Days"]], (2.26, 9.20), rtol=2e-3)
    np.testing.assert_allclose([first["level error"], first["Days error"]], (12.07, 2.305), rtol=2e-3)


@pytest.mark.parametrize("minutes", ["-1", "0"])
def test_a_pool_without_time_is_refused_before_anything_is_read(stmaml, tmp_path, minutes):
    words = ("--task", "Subject", "--target", "Reaction", *MEMBERS, "--run", tmp_path / "run", "--minutes", minutes)
    code, _, err = stmaml("fit", tmp_path / "absent.csv", *words)
    assert code == 2
    assert err == f"stmaml: --minutes must be above 0; got {float(minutes)}.\n"
    assert not (tmp_path / "run").exists()


def test_effects_in_words_and_in_a_file(stmaml, sleep, tmp_path):
    code, out, _ = stmaml("effects", sleep[0], "--out", tmp_path / "groups.csv")
    flat = " ".join(out.split())
    assert code == 0
    assert "of the variance of 'Reaction' that columns do not explain lies between groups" in flat
    assert "between groups: slope of Days 5.922 +0.07 with level" in flat
    assert "308 2.3 ± 23.7 9.20 ± 4.52" in flat
    assert pl.read_csv(tmp_path / "groups.csv")["group"].to_list() == sorted({*pl.read_csv(SLEEP)["Subject"]})


def test_slopes_may_be_named(stmaml, sleep):
    """Without one, the figures are those of lme4's `Reaction ~ Days + (1 | Subject)`."""
    code, out, _ = stmaml("effects", sleep[0], "--json", "--slopes", "Days")
    assert code == 0
    assert json.loads(out) == json.loads(stmaml("effects", sleep[0], "--json")[1])
    code, out, _ = stmaml("effects", sleep[0], "--json", "--slopes")
    found = json.loads(out)
    assert code == 0
    np.testing.assert_allclose(list(found["spread"].values()), [37.12], rtol=1e-3)
    np.testing.assert_allclose(found["within"], 30.99, rtol=1e-3)
    np.testing.assert_allclose([each["error"] for each in found["fixed"].values()], (9.7467, 0.8042), rtol=1e-3)
    assert NO_SLOPES.strip() not in unfolded(stmaml("effects", sleep[0], "--slopes")[1])


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_slopes_of_a_column_that_is_not_there_are_refused(stmaml, sleep, words):
    code, out, err = stmaml("effects", sleep[0], *words, "--slopes", "Dyas")
    assert (code, out) == (2, "")
    assert err == "stmaml: the table has no column 'Dyas'; did you mean 'Days'? It has: Subject, Reaction, Days.\n"


def test_slopes_that_do_not_differ_are_not_shown(stmaml, tmp_path):
    """Every group has the same slope: the level alone differs, unless the column is named."""
    random = np.random.default_rng(0)
    shop, x = np.repeat(np.arange(12), 10), random.normal(size=120)
    sold = random.normal(size=12)[shop] + x + random.normal(0.0, 0.5, 120)
    pl.DataFrame({"shop": shop, "x": x, "sold": sold}).write_csv(tmp_path / "shops.csv")
    fit(tmp_path / "run", tmp_path / "shops.csv", "--task", "shop", "--target", "sold", "--members", "mean")
    _, out, _ = stmaml("effects", tmp_path / "run")
    assert NO_SLOPES.strip() in unfolded(out)
    assert "slope of x" not in out
    assert "between groups: slope of x" in stmaml("effects", tmp_path / "run", "--slopes", "x")[1]


@pytest.mark.parametrize("words", [(), ("--slopes", "Days")])
def test_effects_of_classes_are_refused(stmaml, chosen, words):
    code, _, err = stmaml("effects", chosen[0], *words)
    assert code == 2
    assert one_line(err)
    assert "effects are for numbers" in err


@pytest.mark.parametrize("members", [("mixed", "bosting"), ("shares",)])
def test_members_that_are_refused_leave_no_run_behind(stmaml, tmp_path, members):
    words = ("--task", "Subject", "--target", "Reaction", "--run", tmp_path / "run", "--members", *members)
    code, _, err = stmaml("fit", SLEEP, *words)
    assert code == 2
    assert f"'{members[-1]}'" in err
    assert not (tmp_path / "run").exists()


def test_fit_is_printed_for_people(sleep):
    _, out, err = sleep
    assert max(map(len, out.splitlines())) <= 100
    flat = " ".join(out.split())
    assert "squared error with 0 rows 1 row 2 rows 5 rows 8 rows" in flat
    assert "e+0" not in out
    assert "With 8 labelled rows the pool is" in flat
    for command in ("predict", "report", "effects"):
        assert f"stmaml {command} {sleep[0]}" in flat
    assert all(f"{name}: " in err for name in MEMBERS[1:])  # seconds of each member


def test_evaluate_shows_what_was_kept(stmaml, sleep):
    code, out, _ = stmaml("evaluate", sleep[0], "--json")
    assert code == 0
    assert json.loads(out) == without_nan(PoolRun(Run(sleep[0])).result())
    code, _, err = stmaml("evaluate", sleep[0], "--shots", "3")
    assert code == 2
    assert one_line(err)
    assert "--shots is for a single method" in err


def test_evaluate_on_another_table(stmaml, sleep, tmp_path):
    """Errors against the truth that predictions of the command have, without labelled rows."""
    frame = pl.read_csv(SLEEP).with_columns(pl.col("Subject") + 1000, pl.col("Reaction") * 1.1)
    frame.write_csv(tmp_path / "others.csv")
    code, out, _ = stmaml("evaluate", sleep[0], "--data", tmp_path / "others.csv", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["test_groups"] == 18
    frame.drop("Reaction").write_csv(tmp_path / "ask.csv")
    said = pl.read_csv(StringIO(stmaml("predict", sleep[0], "--query", tmp_path / "ask.csv")[1]))
    truth = frame["Reaction"].to_numpy()
    expected = np.mean((said["prediction"].to_numpy() - truth) ** 2)
    np.testing.assert_allclose(found["scores"]["0"]["pool"]["mse"]["mean"], expected, rtol=1e-4)
    inside = np.mean((said["q05"].to_numpy() <= truth) & (truth <= said["q95"].to_numpy()))
    np.testing.assert_allclose(found["scores"]["0"]["pool"]["coverage90"]["mean"], inside, atol=1e-6)


def test_other_commands_say_what_to_do(stmaml, sleep):
    code, _, err = stmaml("train", "--resume", sleep[0])
    assert code == 2
    assert one_line(err)
    assert "stmaml fit --resume" in err
    code, _, err = stmaml("report", sleep[0], sleep[0])
    assert code == 2
    assert "one run" in err


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_report(stmaml, sleep, chosen, kind, tmp_path):
    folder = sleep[0] if kind == "numbers" else chosen[0]
    code, out, _ = stmaml("report", folder, "--out", tmp_path)
    assert code == 0
    assert "4 figures" in out
    text = (tmp_path / "report.md").read_text()
    for figure in ("errors.png", "weights.png", "reliability.png", "groups.png"):
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")
        assert f"({figure})" in text
    assert "| Days" in text
    assert "stmaml fit" in text
    page = (tmp_path / "report.html").read_text()
    for title in ("What a new group costs in labels", "Which columns matter", "Predicted worst", "Rows of "):
        assert title in page
    assert f"labelled rows take the {'share' if kind == 'classes' else 'typical error'}" in page


def test_days_matter_on_the_table_of_sleep(sleep):
    found = PoolRun(Run(sleep[0])).result()["importance"]
    assert list(found) == ["0", str(PoolRun(Run(sleep[0])).scored()[-1].shots)]
    assert all(each["columns"]["Days"]["mean"] > each["columns"]["Days"]["ci95"] / 2 > 0 for each in found.values())


def test_held_out_tasks_are_made_again_unless_rows_were_added(sleep, tmp_path):
    store = PoolRun(Run(sleep[0]))
    last = store.scored()[-1]
    reopened = reopen(store, last)
    assert reopened is not None
    told = reopened.told(int(last.groups[0]))
    assert set(told.frame["Subject"].cast(pl.String)) == {told.name}
    np.testing.assert_allclose(told.frame["Reaction"].cast(pl.Float64).to_numpy()[told.asked], told.truth, rtol=1e-5)
    assert (told.low < told.expected).all()
    assert not set(told.labelled) & set(told.asked)
    copy = PoolRun(Run(shutil.copytree(sleep[0], tmp_path / "copy")))
    copy.save_known(copy.known().vstack(copy.known()[:3]))
    assert reopen(copy, last) is None


def test_scores_of_groups_come_back(sleep):
    store = PoolRun(Run(sleep[0]))
    for one in store.scored():
        shown = store.result()["scores"][str(one.shots)]
        for row, each in one.rows.items():
            np.testing.assert_allclose(each["mse"].mean(), shown[row]["mse"]["mean"])


def test_nothing_of_a_replaced_run_is_left(sleep, tmp_path):
    """Members that are kept are not fitted again, so those of another table must go."""
    shutil.copytree(sleep[0], tmp_path / "run")
    store = PoolRun(Run(tmp_path / "run"))
    assert store.said("mean", 5) is not None
    store.clear()
    assert store.said("mean", 5) is None
    assert [path.name for path in store.folder.rglob("*") if path.is_file()] == ["config.json"]


def test_predictions_in_a_terminal(sleep):
    store = PoolRun(Run(sleep[0]))
    model = store.load()
    ask = pl.DataFrame({"Subject": [900, 900], "Days": [3, 4], "place": ["here", "here"]})
    known = pl.DataFrame({"Subject": [900], "Days": [0], "Reaction": [310.0]})
    answer = model.predict(ask, known)
    text = StringIO()
    show_predictions(answer.frame, model.schema, DEFAULT_LEVELS, Console(file=text, width=80, markup=False))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["Subject", "Days", "prediction", "90", "%", "interval", "labelled", "rows", "group"]
    row = re.fullmatch(r"\s*900\s+3\s+(\d+)\s+(\d+) to (\d+)\s+1\s+(usual|unusual)\s*", lines[3])
    assert row is not None
    expected = answer.frame.select("prediction", "q05", "q95").row(0)
    np.testing.assert_allclose([float(cell) for cell in row.groups()[:3]], expected, atol=0.51)


def test_a_guarantee_for_single_groups_is_wider_than_the_usual_interval(stmaml, sleep, chosen, tmp_path):
    frame = pl.read_csv(SLEEP).filter(pl.col("Subject") == 308).with_columns(Subject=pl.lit("new"))
    frame.head(3).write_csv(tmp_path / "support.csv")
    frame.tail(7).write_csv(tmp_path / "query.csv")
    asked = ("--support", tmp_path / "support.csv", "--query", tmp_path / "query.csv")
    code, _, err = stmaml("predict", sleep[0], *asked, "--guarantee", "--out", tmp_path / "out.csv")
    assert code == 0, err
    assert "hold 90% of a group's rows in 90% of new groups like those of the table" in " ".join(err.split())
    found = pl.read_csv(tmp_path / "out.csv")
    assert (found["guaranteed_low"] < found["q05"]).all()
    assert (found["guaranteed_high"] > found["q95"]).all()
    shown = StringIO()
    show_predictions(found, PoolRun(Run(sleep[0])).load().schema, DEFAULT_LEVELS, Console(file=shown, width=200))
    assert "in 9 of 10 groups" in shown.getvalue()
    code, _, err = stmaml("predict", chosen[0], "--query", tmp_path / "query.csv", "--guarantee")
    assert (code, one_line(err)) == (2, True)
    assert "--guarantee is for numbers, and this pool predicts classes" in err


def test_classes_in_a_terminal(chosen):
    model = PoolRun(Run(chosen[0])).load()
    ask = pl.DataFrame({"Subject": [900, 900], "Days": [1, 9]})
    text = StringIO()
    answer = model.predict(ask)
    show_predictions(answer.frame, model.schema, DEFAULT_LEVELS, Console(file=text, width=80, markup=False))
    lines = text.getvalue().splitlines()
    assert lines[1].split() == [
        "Subject",
        "Days",
        "prediction",
        "probability",
        "90",
        "%",
        "set",
        "labelled",
        "rows",
        "group",
    ]
    assert [line.split()[2] for line in lines[3:5]] == ["n", "y"]
    assert lines[4].split()[3:] == [
        f"{100 * answer.frame['p_y'][1]:.0f}",
        "%",
        *answer.frame["set90"][1].split("|"),
        "0",
    ]


@pytest.mark.parametrize("shots", [10, 400])
def test_too_many_shots_are_refused_with_a_value_that_works(stmaml, tmp_path, shots):
    words = ("--task", "Subject", "--target", "Reaction", "--shots", shots, "--run", tmp_path / "run")
    code, _, err = stmaml("fit", SLEEP, *words)
    assert code == 2
    assert "Use --shots 9" in err


def test_numbers_as_people_write_them():
    assert [plain(value) for value in (1270.3, 18.96, 0.01234, 0.0, 2.5e-7)] == [
        "1,270",
        "19.0",
        "0.0123",
        "0",
        "2.50e-07",
    ]
    assert to_place(251.405, 6.82, 3) == "251.41"
    assert to_place(-0.04, 23.0) == "0"
    assert with_interval({"mean": 5092.0, "ci95": 1012.0}) == "5,090 ± 1,000"
