"""What there is, and what all tables take: lists and plans, in which nothing is trained."""

import io
import json

import pytest

from stmaml.benchmarks import BENCHMARKS
from stmaml.cli import reproduce, reproduce_all
from stmaml.cli.list import PHRASES, TASKS
from stmaml.methods import METHODS
from stmaml.recipes import presets
from stmaml.reproduction import ABLATIONS


@pytest.fixture(autouse=True)
def _no_data(monkeypatch, tmp_path):
    monkeypatch.delenv("STMAML_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_list_is_one_matrix_that_fits_a_terminal(stmaml):
    code, out, _ = stmaml("list")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    rows = {line.split()[0]: line.split()[1:6] for line in out.splitlines() if line.split()[:1]}
    for method in METHODS:
        counts = [len(presets(benchmark, method)) for benchmark in BENCHMARKS]
        assert rows[method] == [str(count) if count else "-" for count in counts]
        assert PHRASES[method] in out
    assert set(PHRASES) == set(METHODS)
    assert set(TASKS) == set(BENCHMARKS)
    assert "years, same-year" in out


def test_the_list_as_json_says_which_data(stmaml):
    found = json.loads(stmaml("list", "--json")[1])
    assert found["data"]["weather"] == ["gsod-2019", "gsod-2022"]
    assert found["about"]["maml"] == PHRASES["maml"]


def test_a_plan_counts_tasks_and_says_what_is_missing(stmaml):
    code, out, _ = stmaml("reproduce", "all", "--plan", "--budget", "cpu")
    assert code == 0
    assert "lacks mnist: stmaml data fetch mnist" in out
    assert "for the 1 of 5 whose data are there" in out
    table = reproduce_all.plan_table("regression2d", "cpu", reproduce_all.Path("runs"))
    rows = sum(bool(presets("regression2d", method)) for method in METHODS) + len(ABLATIONS)
    assert (table.rows, table.tasks) == (rows, 4_000 * 3 * 25 * rows)
    assert (table.here, table.blocked) == (False, False)


@pytest.mark.parametrize("words", [("regression2d", "--plan"), ("--plan", "regression2d")])
def test_a_plan_of_one_table_is_said_to_go_with_all(stmaml, words):
    code, out, err = stmaml("reproduce", *words)
    assert (code, out) == (2, "")
    assert "--plan goes with 'all'. 'stmaml reproduce all --plan' says what each table takes" in err


def test_runs_of_this_machine_tell_its_speed(tmp_path):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    config = {"benchmark": {"name": "weather"}, "training": {"tasks_per_batch": 8}, "format": 2}
    (run / "config.json").write_text(json.dumps(config))
    lines = [{"step": 50, "seconds": 100.0}, {"step": 60, "validation": {}}, {"step": 100, "seconds": 104.0}]
    (run / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    table = reproduce_all.plan_table("weather", "cpu", tmp_path / "runs")
    assert (table.speed, table.here) == (100.0, True)
    assert "measured in runs here" in table.words()


def test_all_goes_through_the_tables_whose_data_are_there(monkeypatch, tmp_path, capsys):
    begun = []
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody is there to be asked
    reproduce_all.reproduce_all(["all", "--budget", "smoke"], begun.append)
    assert [words[0] for words in begun] == ["regression2d"]
    (tmp_path / "data" / "gsod").mkdir(parents=True)
    (tmp_path / "data" / "gsod" / "2019.tar.xz").write_bytes(b"x")
    monkeypatch.setenv("STMAML_DATA", str(tmp_path / "data"))
    reproduce_all.reproduce_all(["all", "--yes"], begun.append)
    assert [words[0] for words in begun[1:]] == ["regression2d", "weather"]
    assert "lacks gsod-2022" in capsys.readouterr().out
    assert reproduce.ALL == "all"
