"""Whole tables: rows are trained, scored, skipped when done, and refused when they do not belong."""

import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stmaml import cli, reproduction
from stmaml.baselines import BoostingConfig
from stmaml.benchmarks import completion, regression2d, weather
from stmaml.benchmarks.base import Benchmark, Budget, Budgets
from stmaml.border import writing
from stmaml.cli import reproduce
from stmaml.errors import RunError, SettingError
from stmaml.experiments import create_runs
from stmaml.progress import listening
from stmaml.recipes import Experiment, recipe
from stmaml.reproduction import Cell, Row, cells
from tests.idx_files import write_digits
from tests.noaa_files import write_year

QUICK = BoostingConfig((0.1,), (7,), (5,), max_iter=5, first_look=5, max_rows=500, tuning_rows=200)
TINY = Budget(steps=20, seeds=1, tasks=20, tasks_per_batch=4, samples=1, quick=True)


@pytest.fixture(scope="module")
def stations(tmp_path_factory) -> Path:
    """A year of 60 stations."""
    folder = tmp_path_factory.mktemp("stations")
    write_year(folder, 60, num_days=130)
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def _little_boosting(monkeypatch):
    monkeypatch.setattr(reproduction, "QUICK", QUICK)


def smoke(monkeypatch, config: type, budget: Budget) -> None:
    """Has the smallest budget of a benchmark be this one."""
    monkeypatch.setattr(config, "budgets", Budgets(smoke=budget))


def of_curves(budget: Budget, **more) -> list[Row]:
    return cells("regression2d", regression2d.Config().open(), budget, **more)


def of_weather(data: Path, budget: Budget, **more) -> list[Row]:
    return cells("weather", weather.Config(data=str(data)).open(), budget, data=str(data), **more)


def experiments(rows: list[Row]) -> dict[str, Experiment]:
    """What the methods among the rows train."""
    return {row.name: row.experiment for row in rows if isinstance(row, Cell)}


def one_row(budget: Budget) -> tuple[Cell, Benchmark]:
    """The row of CNP, and the benchmark it is scored on."""
    (cell,) = of_curves(budget, only=("cnp",))
    assert isinstance(cell, Cell)
    return cell, cell.settings.open()


def run(monkeypatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["stmaml", "reproduce", *(str(word) for word in words)])
    cli.main()


def weights(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("learner.npz"))}


def test_a_table_has_every_method_the_ablations_and_the_best_preset():
    names = {row.name for row in of_curves(regression2d.Config.budgets.paper)}
    assert {"maml", "meta-sgd", "bmaml", "platipus", "mmaml", "hsml", "arml", "cnp", "np", "anp", "st-maml"} < names
    ablations = {"st-maml-without-augmentation", "st-maml-without-tailoring", "st-maml-deterministic"}
    assert ablations | {"st-maml-best", "tnp", "tnp-best", "maml-attention"} < names


def test_the_weather_table_also_has_what_a_practitioner_would_use(stations):
    names = {row.name for row in of_weather(stations, weather.Config.budgets.paper)}
    boosting = {"gradient-boosting", "gradient-boosting-offset", "gradient-boosting-summaries"}
    assert {"support-mean", "ridge", "gaussian-process", "ridge-seasonal", *boosting} < names


def test_the_weather_table_compares_tuned_methods_on_the_same_inputs_and_base_learner(stations):
    rows = experiments(of_weather(stations, weather.Config.budgets.paper))
    ours, theirs, plain = (dataclasses.asdict(rows[name]) for name in ("st-maml-tuned", "maml-tuned", "maml"))
    assert ours["benchmark_settings"] == theirs["benchmark_settings"] == plain["benchmark_settings"]
    assert ours["method_settings"]["hidden"] == theirs["method_settings"]["hidden"] == (100, 100)
    assert ours["modelling"]["standardise"]
    assert theirs["modelling"]["standardise"]
    seen = {name: rows[name].training.steps * rows[name].training.tasks_per_batch for name in rows}
    assert seen["maml-tuned"] >= seen["st-maml-tuned"]
    assert "maml-tuned" not in {row.name for row in of_weather(stations, weather.Config.budgets.cpu)}


def test_a_budget_and_changed_tasks_reach_every_row():
    rows = of_curves(regression2d.Config.budgets.cpu, input_range=(-5.0, 5.0))
    for experiment in experiments(rows).values():
        assert experiment.training.steps == 4_000
        assert dataclasses.asdict(experiment)["benchmark_settings"]["input_range"] == (-5.0, 5.0)
    assert {dataclasses.asdict(row)["experiment"]["training"]["steps"] for row in map(_of_seven_steps, rows)} == {7}


def _of_seven_steps(row: Row) -> Cell:
    cell = row.trained_by(steps=7)
    assert isinstance(cell, Cell)
    return cell


def test_in_the_full_budget_the_best_preset_keeps_its_own_pace():
    budget = regression2d.Config.budgets.paper
    steps = {name: experiment.training.steps for name, experiment in experiments(of_curves(budget)).items()}
    assert steps["maml"] == budget.steps
    assert steps["st-maml-best"] == recipe("regression2d", "st-maml", "best").training.steps


def test_smaller_budgets_leave_best_presets_out_unless_named():
    budget = regression2d.Config.budgets.cpu
    assert "st-maml-best" not in {row.name for row in of_curves(budget)}
    (named,) = experiments(of_curves(budget, only=("st-maml-best",))).values()
    assert named.training.steps == budget.steps


def test_an_unknown_row_is_named_with_those_there_are():
    with pytest.raises(SettingError, match="no row 'mamml'; choose among: anp"):
        of_curves(TINY, only=("mamml",))


def test_a_table_is_filled_once_and_written_beside_the_papers(tmp_path, monkeypatch, capsys):
    smoke(monkeypatch, regression2d.Config, TINY)
    command = ("regression2d", "--rows", "cnp", "--samples", "1", "--steps", "12", "--out", tmp_path)
    run(monkeypatch, *command)
    assert json.loads((tmp_path / "cnp" / "config.json").read_text())["training"]["steps"] == 12
    report = (tmp_path / "report" / "report.md").read_text()
    for words in ("| cnp", "Bayes limit", "parameters", "training"):
        assert words in report
    trained = (tmp_path / "cnp" / "learner.npz").stat().st_mtime_ns
    run(monkeypatch, *command)
    assert trained == (tmp_path / "cnp" / "learner.npz").stat().st_mtime_ns
    assert "wrote" in capsys.readouterr().out


def test_an_interrupted_table_goes_on_to_the_same_end(tmp_path, monkeypatch):
    """Ctrl-C in the second row: the state is saved, and the same command ends as if it had never stopped."""
    smoke(monkeypatch, regression2d.Config, dataclasses.replace(TINY, steps_per_call=5))
    command = ("regression2d", "--rows", "np", "cnp", "--samples", "1", "--out")
    run(monkeypatch, *command, tmp_path / "whole")

    def impatient(console, row):
        def stop(told):
            if (row, told.what, told.done) == ("np", "training", 10):
                signal.raise_signal(signal.SIGINT)

        return listening(stop)

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "showing", impatient)
        with pytest.raises(SystemExit) as stopped:
            run(patch, *command, tmp_path / "cut")
    assert stopped.value.code == 128 + signal.SIGINT
    assert not (tmp_path / "cut" / "report").exists()
    run(monkeypatch, *command, tmp_path / "cut")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package catches it."""


@contextlib.contextmanager
def killed_at(number: int, monkeypatch) -> Iterator[list[str]]:
    """Inside the block, the write of this number does not happen; gives the names of all that came before."""
    names, write = [], writing.write_new

    def write_or_die(path: Path, content: bytes) -> None:
        if len(names) == number:
            raise Killed
        names.append(path.name.split(".")[1])  # that of a partial file begins with a dot
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_new", write_or_die)
        yield names


def kept(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.npz"))}


def test_a_row_that_is_killed_at_any_of_its_writes_ends_whole(tmp_path, monkeypatch):
    """One that died between its scores and its curves was once taken for done, and stayed without curves."""
    budget = dataclasses.replace(TINY, steps_per_call=10)
    cell, benchmark = one_row(budget)
    drawn = benchmark.showcases()[:2]
    benchmark = dataclasses.replace(benchmark, showcases=lambda: drawn)
    with killed_at(-1, monkeypatch) as names:
        cell.fill(tmp_path / "whole", budget, benchmark)
    whole = kept(tmp_path / "whole")
    assert {name.split("/")[0] for name in whole} == {"checkpoints", "curves", "learner.npz", "scores"}
    for number in range(len(names)):
        folder = tmp_path / str(number)
        with pytest.raises(Killed), killed_at(number, monkeypatch):
            cell.fill(folder, budget, benchmark)
        cell.fill(folder, budget, benchmark)
        assert kept(folder) == whole, names[number]


def test_a_folder_with_other_settings_is_not_overwritten(tmp_path):
    cell, benchmark = one_row(TINY)
    other, _ = one_row(dataclasses.replace(TINY, steps=21))
    create_runs(other.experiment, benchmark, tmp_path / "cnp", [0])
    with pytest.raises(RunError, match="other settings"):
        cell.fill(tmp_path / "cnp", TINY, benchmark)


def test_another_number_of_seeds_overwrites_nothing(tmp_path):
    cell, benchmark = one_row(TINY)
    create_runs(cell.experiment, benchmark, tmp_path, [0])
    with pytest.raises(RunError, match="Choose another --out"):
        cell.fill(tmp_path, dataclasses.replace(TINY, seeds=2), benchmark)


@pytest.mark.usefixtures("_little_boosting")
def test_weather_from_station_files_to_a_table(tmp_path, monkeypatch, capsys):
    for year in (2019, 2022):
        write_year(tmp_path / "data", 60, year=year, num_days=130)
    (tmp_path / "data" / "2019" / "99999999999.csv").write_text("a page that says: not found\n")
    smoke(monkeypatch, weather.Config, dataclasses.replace(TINY, tasks=4))
    rows = ("np", "ridge-seasonal", "gradient-boosting-summaries")
    years = ("--years", "2019", "--test-years", "2022")
    command = ("weather", "--data", tmp_path / "data", *years, "--rows", *rows, "--samples", "2")
    command = (*command, "--out", tmp_path / "out")
    run(monkeypatch, *command)
    assert "left out" in (said := capsys.readouterr().err)
    assert "99999999999.csv" in said, "one bad file is named, and ends nothing"
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    table = report.split("## ")[1]
    assert all(f"| {row}" in table for row in rows), "one table for methods and baselines"
    assert list((tmp_path / "out" / "report").glob("years*.png"))
    scores = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("scores/*.json")]
    assert {"mse", "mae", "nll", "crps", "coverage90"} <= set(scores[0]["metrics"])
    told = {(score["method"], score["conditions"]["tasks"]["years"]) for score in scores}
    assert told == {(row, year) for row in rows for year in ("2019", "2022")}, "the year trained on, and the other"
    assert len({score["task_set"] for score in scores}) == 2
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("scores/*.json")}
    run(monkeypatch, *command)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("scores/*.json")}
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, *command, "--test-query-size", "40")
    assert refused.value.code == 2


def test_baselines_and_methods_are_scored_on_the_same_days(stations):
    """Their inputs differ, but not the targets they are asked for."""
    benchmark = weather.Config(data=str(stations)).open()
    rows = cells("weather", benchmark, TINY, only=("maml", "st-maml-best", "ridge"), data=str(stations))
    sets = [benchmark.vary(row.settings).test_set(4) for row in rows]
    assert len(sets) == 3
    assert len({each.targets_digest for each in sets}) == 1
    assert len({each.digest for each in sets}) > 1
    for each in sets[1:]:
        np.testing.assert_array_equal(each.batch.tasks.query.y, sets[0].batch.tasks.query.y)


def test_completion_from_idx_files_to_a_table(tmp_path, monkeypatch):
    write_digits(tmp_path / "data", height=6, width=6)
    smoke(monkeypatch, completion.Config, dataclasses.replace(TINY, steps=4, tasks=6))
    command = ("completion", "--data", tmp_path / "data", "--shots", "10", "--rows", "np", "cnp", "--samples", "2")
    run(monkeypatch, *command, "--out", tmp_path / "out")
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    for words in ("| cnp", "| np", "entropy of the grey values", "bce_unseen"):
        assert words in report
    assert len(list((tmp_path / "out" / "report").glob("completion-*.png"))) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wether",), "no benchmark 'wether'. Did you mean weather"),
        (("weather", "--data", "/nowhere"), "--data /nowhere does not exist"),
        (("weather", "--data", "."), "station"),
    ],
)
def test_bad_input_is_one_sentence(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, *words, "--out", tmp_path / "out")
    assert refused.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
