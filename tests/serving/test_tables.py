"""A served table says what the pool says; whatever is wrong with a row is a sentence."""

import sys
from io import StringIO

import numpy as np
import polars as pl
import pytest

from stmaml import cli
from stmaml.pool.store import PoolRun
from stmaml.runs import Run
from stmaml.serving.base import Card
from stmaml.serving.opening import Source, open_all
from stmaml.serving.schema import Refused
from stmaml.serving.service import Service
from stmaml.serving.tables import SHOWN_LABELS, TableServed, by_group, open_run
from stmaml.tables.adapted import Answer
from stmaml.tables.columns import Boolean, Categorical, Date, Numeric, Ordinal
from tests.pool.classics import FOLDER

SLEEP = FOLDER / "sleepstudy.csv"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "sleep"
    words = ["--task", "Subject", "--target", "Reaction", "--members", "mean", "mixed"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stmaml", "fit", str(SLEEP), "--run", str(folder), *words])
        patch.setattr(sys, "stdout", StringIO())
        patch.setattr(sys, "stderr", StringIO())
        cli.main()
    return Run(folder)


@pytest.fixture(scope="module")
def service(run) -> Service:
    service = Service.of(open_all([Source(run.folder)]))
    for _ in service.warm_up():
        pass
    return service


LABELLED = [{"Days": 0, "Reaction": 250.0}, {"Days": 4, "Reaction": "290"}]
ASKED = [{"Days": 2}, {"Days": "9"}, {"Days": None}]


def test_it_says_what_the_pool_says(run, service):
    said = service.predict("sleep", {"support": {"rows": LABELLED}, "query": {"rows": ASKED}, "suggest": 1})
    support = pl.DataFrame({"Days": ["0", "4"], "Reaction": ["250", "290"]})
    want = PoolRun(run).load().predict(pl.DataFrame({"Days": ["2", "9", None]}), support, suggest=1)
    for name in ("prediction", "std", "q05", "q95"):
        np.testing.assert_allclose([row[name] for row in said["rows"]], want.frame[name], rtol=1e-5)
    assert [row["suggested"] for row in said["rows"]] == want.frame["suggested"].to_list()
    assert [row["shots"] for row in said["rows"]] == [2, 2, 2]
    assert said["notes"] == want.notes
    service.find("sleep").forms.answer.check(said, "answer")


def test_labelled_rows_are_kept_for_later(service):
    made = service.adapt("sleep", {"support": {"rows": LABELLED}})
    later = service.predict_kept("sleep", made["id"], {"query": {"rows": ASKED}})
    assert later == service.predict("sleep", {"support": {"rows": LABELLED}, "query": {"rows": ASKED}})


def test_groups_of_one_request_are_their_own(service):
    groups = [{"support": {"rows": LABELLED}, "query": {"rows": ASKED}}, {"query": {"rows": ASKED}}]
    first, second = service.batch("sleep", {"groups": groups})["groups"]
    assert (first["rows"][0]["shots"], second["rows"][0]["shots"]) == (2, 0)
    assert first["rows"][0]["q95"] - first["rows"][0]["q05"] < second["rows"][0]["q95"] - second["rows"][0]["q05"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"query": {"rows": [{"Dyas": 1}]}}, "a column 'Dyas', which the learner does not know. Did you mean 'Days'"),
        ({"query": {"rows": []}}, "at least one row"),
        ({"query": {"rows": [{"Days": 1}] * 2001}}, "at most 2,000 rows"),
        ({"query": {"rows": [{"Days": 1, "Subject": "a"}, {"Days": 1}]}}, r"rows\[1\].Subject' is empty"),
        (
            {"query": {"rows": [{"Days": 1}]}, "support": {"rows": [{"Days": 1}]}},
            "no column 'Reaction' with the labels",
        ),
        ({"query": {"rows": [{"Days": {"$gt": 1}}]}}, "a number, a text, true, false or null"),
        ({"query": {"rows": [{"Days": 1}]}, "suggest": 99}, "from 0 to 5"),
    ],
)
def test_what_is_wrong_with_rows_is_said(service, body, words):
    with pytest.raises(Refused, match=words):
        service.predict("sleep", body)


def test_sizes_that_are_not_compiled_are_not_waited_for(run):
    served = open_run(run, Card("sleep", "Sleep", "table", "pool"), None)
    with pytest.raises(Refused, match="still being compiled"):
        Service.of([served]).predict("sleep", {"query": {"rows": ASKED}})


def test_the_page_begins_with_rows_of_a_known_group(service):
    about = service.about("sleep")["material"]
    assert (about["task"], about["target"]["name"]) == ("Subject", "Reaction")
    assert [column["name"] for column in about["columns"]] == ["Days"]
    labels = [row["Reaction"] for row in about["rows"]]
    assert len(labels) > SHOWN_LABELS
    assert [label is not None for label in labels[: SHOWN_LABELS + 1]] == [True] * SHOWN_LABELS + [False]


def test_without_known_rows_the_page_begins_with_likely_ones(run):
    served = open_run(run, Card("sleep", "Sleep", "table", "pool"), None)
    alone = TableServed(served.card, served.schema, served.ask, None, (), served.shots, served.rows)
    rows = alone.material()["rows"]
    assert float(rows[0]["Days"]) < float(rows[-1]["Days"])


def counting(query: pl.DataFrame, support: pl.DataFrame | None, suggest: int) -> Answer:
    """Names the one group it is asked about, and counts its labelled rows."""
    assert query["Subject"].n_unique() == 1
    count = 0 if support is None else support.height
    return Answer(query.with_columns(prediction=pl.col("Subject"), shots=pl.lit(count)), ["a note"])


def test_groups_of_a_single_method_come_back_in_their_order(run):
    query = pl.DataFrame({"Subject": ["b", "a", "b"], "Days": ["1", "2", "3"]})
    support = pl.DataFrame({"Subject": ["a", "b", "a"], "Days": ["1", "2", "3"], "Reaction": ["1", "2", "3"]})
    said = by_group(counting, PoolRun(run).load().schema, query, support, 0)
    assert said.frame["prediction"].to_list() == ["b", "a", "b"]
    assert said.frame["shots"].to_list() == [1, 2, 1]
    assert said.notes == ["a note"]


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (Numeric("n", 1.0, 1.0, 1.0, 0.0, 4.0, False), ["0", "2", "4"]),
        (Boolean("b", 0.5, False), ["yes", "no", "yes"]),
        (Categorical("c", ("x", "y"), 2, False), ["x", "y", "x"]),
        (Ordinal("o", ("low", "high"), "", 0.0, 0.0, 1.0, False), ["low", "high", "low"]),
        (Date("d", None, 1.0, 1.0, 0.0, 2.0, (), False), ["1970-01-01", "1970-01-02", "1970-01-03"]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_likely_cells_can_be_read_again(column, cells):
    assert column.likely(3) == cells
    notes: list[str] = []
    column.encode(pl.Series(column.name, cells), (), notes)
    assert notes == []
