"""The commands on a pool of models, from the outside: words in, exit code, text and files out."""

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stmaml import cli
from tests.pool.classics import FOLDER

SLEEP = FOLDER / "sleepstudy.csv"
MEMBERS = ("--members", "mean", "mixed-slopes", "ridge")


def fit(folder: Path, table: Path, *words: str) -> tuple[str, str]:
    """What `stmaml fit` printed and said."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["stmaml", "fit", str(table), "--run", str(folder), *words])
        cli.main()
    return out.getvalue(), err.getvalue()


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


def test_effects_in_words_and_in_a_file(stmaml, sleep, tmp_path):
    code, out, _ = stmaml("effects", sleep[0], "--out", tmp_path / "groups.csv")
    flat = " ".join(out.split())
    assert code == 0
    assert "of the variance of 'Reaction' that columns do not explain lies between groups" in flat
    assert "between groups: slope of Days 5.922 +0.07 with level" in flat
    assert "308 2.3 ± 23.7 9.20 ± 4.52" in flat
    assert pl.read_csv(tmp_path / "groups.csv")["group"].to_list() == sorted({*pl.read_csv(SLEEP)["Subject"]})


def test_effects_of_classes_are_refused(stmaml, chosen):
    code, _, err = stmaml("effects", chosen[0])
    assert code == 2
    assert one_line(err)
    assert "effects are for numbers" in err
