"""The command line, from the outside: words in, exit code and text out."""

import dataclasses
import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stmaml import cli, locks
from stmaml.border import writing
from stmaml.cli import evaluate as evaluate_command
from stmaml.runs import Run, read_npz

TINY_TASK = ["--shots", "5", "--query-size", "5"]
TINY_TRAINING = [
    "--steps",
    "4",
    "--steps-per-call",
    "2",
    "--val-every",
    "2",
    "--val-tasks",
    "4",
    "--tasks-per-batch",
    "4",
]
TINY_MAML = ["regression2d", "--method", "maml", "--hidden", "4", "--inner-steps", "1", *TINY_TASK, *TINY_TRAINING]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A tiny run of two seeds; each of them is a run as well."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    words = ["stmaml", "train", *TINY_MAML, "--seeds", "2", "--run", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        cli.main()
    return folder


def one_line(text: str) -> bool:
    return text.count("\n") == 1


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_help_names_every_command(stmaml):
    code, out, _ = stmaml("--help")
    assert code == 0
    assert all(f"\n  {name} " in out for name in cli.COMMANDS)
    assert stmaml()[1] == out


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['stmaml', '--help']; import stmaml.cli; stmaml.cli.main(); "
        "assert not {'jax', 'numpy', 'equinox', 'tyro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_version_is_the_package_version(stmaml):
    from importlib.metadata import version

    assert stmaml("--version") == (0, version("stmaml") + "\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evalute"], "there is no command 'evalute'. Did you mean evaluate"),
        (["train", "regresion2d"], "there is no benchmark 'regresion2d'. Did you mean regression2d?"),
        (["train", "regression2d", "--method", "stmaml"], "there is no method 'stmaml'. Did you mean st-maml"),
        (["train", "regression2d", "--preset", "papr"], "there is no preset 'papr'. Did you mean paper?"),
        (["train", "regression2d", "--preset=papr"], "there is no preset 'papr'. Did you mean paper?"),
        (["train", "regression2d", "--method", "#"], "there is no method '#'. Choose one of: "),
        (["train"], "train needs a benchmark: regression2d"),
        (["train", "--run", "regression2d"], "train needs a benchmark: regression2d"),
        (["train", "--method", "mml", "regression2d"], "there is no method 'mml'. Did you mean maml"),
        (["train", "--steps", "0", "--method", "maml", "regression2d"], "--steps must be at least 1; got 0"),
        (["reproduce", "--seeds", "0", "regression2d"], "--seeds must be at least 1; got 0"),
        (["train", "--resume", "/nowhere"], "there is no run folder /nowhere"),
        (["evaluate", "/nowhere"], "there is no run folder /nowhere"),
        (["fit", "t.csv", "--group", "g", "--target", "y"], "there is no flag --group. Did you mean --task?"),
        (["fit", "t.csv", "--task", "g", "--y", "y"], "there is no flag --y. Did you mean --target?"),
        (["fit", "t.csv", "--task", "g", "--label=y"], "there is no flag --label. Did you mean --target?"),
        (
            ["fit", "t.csv", "--task", "g", "--target", "y", "--stpes", "3"],
            "there is no flag --stpes. Did you mean --st",
        ),
        (["fit", "t.csv"], "--task and --target must be given. See --help."),
        (["fit", "t.csv", "--target", "y", "--task"], "--task needs a value."),
        (["fit", "t.csv", "--task", "g", "--target", "y", "--shots", "x"], "--shots must be a whole number; got 'x'."),
        (
            ["fit", "t.csv", "--task", "g", "--target", "y", "--kind", "x"],
            "--kind must be one of auto, regression, clas",
        ),
        (["predict", "r", "-o", "p.csv"], "there is no flag -o. Did you mean --out?"),
        (["predict", "r", "and", "--query", "q"], "'and' belongs to no flag. See --help."),
        (["predict", "r", "--query", "q", "--out", "p.xls"], "--out must end in one of .csv, .csv.gz, .tsv"),
        (["list", "--jsn"], "there is no flag --jsn. Did you mean --json?"),
    ],
)
def test_wrong_words_are_answered_in_one_line(words, message, stmaml):
    code, out, err = stmaml(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"stmaml: {message}")
    assert one_line(err)


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--jsn"],
        ["train", "regression2d", "--stepz", "5"],
        ["train", "regression2d", "--steps", "many"],
        ["train", "--resume", "/nowhere", "--steps", "5"],
        ["train", "--resume"],
        ["evaluate"],
        ["evaluate", "/nowhere", "--task", "x"],
    ],
)
def test_wrong_flags_exit_with_code_2(words, stmaml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = stmaml(*words)
    assert code == 2
    assert err != ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "0"], "--steps must be at least 1; got 0"),
        (["--noise", "-1"], "--noise must be above 0; got -1.0"),
        (["--input-range", "5", "0"], "--input-range needs a lower and a higher number; got 5.0 and 0.0"),
        (["--min-shots", "11"], "--min-shots must lie between 0 and --shots (10); got 11"),
        (["--seeds", "0"], "--seeds must be at least 1; got 0"),
        (["--outer-lr", "inf"], "--outer-lr must be a finite number; got inf"),
        (["--method", "hsml", "--sigma", "0"], "--sigma must be above 0; got 0.0"),
        (["--method", "mmaml", "--encoder"], "--encoder needs one width or more, each at least 1; got none"),
    ],
)
def test_settings_that_make_no_sense_are_refused(flags, message, stmaml, tmp_path):
    code, _, err = stmaml("train", "regression2d", *flags, "--run", tmp_path / "run")
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
    assert not (tmp_path / "run").exists()


def test_fit_help_tells_of_resume_and_resume_has_a_help_of_its_own(stmaml):
    code, out, _ = stmaml("fit", "--help")
    assert code == 0
    assert "stmaml fit --resume RUN" in " ".join(out.replace("│", " ").split())
    code, out, _ = stmaml("fit", "--resume", "RUN", "--help")
    assert code == 0
    assert "Folder of the run." in out


def test_train_help_lists_the_settings(stmaml):
    assert "stmaml train BENCHMARK --method NAME" in stmaml("train", "--help")[1]
    code, out, _ = stmaml("train", "regression2d", "--method", "st-maml", "--help")
    assert code == 0
    assert all(flag in out for flag in ("--steps", "--kl-weight", "--inner-lr", "--noise", "--standardise"))


def test_list_as_json_has_methods_benchmarks_and_presets(stmaml):
    code, out, _ = stmaml("list", "--json")
    found = json.loads(out)
    assert code == 0
    assert {"maml", "meta-sgd", "st-maml"} <= set(found["methods"])
    assert "regression2d" in found["benchmarks"]
    assert found["presets"]["regression2d"]["st-maml"][:2] == ["paper", "released"]
    assert "st-maml" in stmaml("list")[1]


def test_evaluate_as_json_has_every_score(stmaml, trained):
    code, out, err = stmaml("evaluate", trained / "seed-0", "--tasks", 30, "--samples", 2, "--json")
    result = json.loads(out)
    assert code == 0, err
    assert (result["benchmark"], result["method"], result["tasks"], result["samples"]) == (
        "regression2d",
        "maml",
        30,
        2,
    )
    names = {"mse", "mae", "mse_clean", "nll", "crps", "coverage90", "width90"}
    assert set(result["metrics"]) == names
    assert all(set(value) == {"mean", "ci95"} for value in result["metrics"].values())
    assert set(result["families"]) <= {"sinusoid", "line", "quadratic", "cubic", "surface", "ripple"}
    assert all(set(family) == names for family in result["families"].values())
    start = "regression2d-range0..5-noise0.3-shots5-query40-samples2-tasks30-"
    saved = Run(trained / "seed-0").scores()[start + result["digest"][:8]]
    assert saved | result == saved
    assert len(Run(trained / "seed-0").curves()) > 0


@pytest.fixture
def read_only(monkeypatch, trained) -> Path:
    """The runs in a folder that the system lets nobody write to; root could, whatever its permissions."""
    write = writing.write_new

    def refuse(path: Path, content: bytes) -> None:
        if trained in path.parents:
            raise OSError(errno.EROFS, "Read-only file system")
        write(path, content)

    monkeypatch.setattr(writing, "write_new", refuse)
    return trained / "seed-0"


def test_scores_of_a_run_that_cannot_be_written_to_are_shown_and_not_kept(stmaml, read_only):
    before = files(read_only)
    code, out, err = stmaml("evaluate", read_only, "--tasks", 30, "--samples", 2, "--json")
    assert code == 0
    assert json.loads(out)["tasks"] == 30
    assert "note: these scores are not kept: could not write" in " ".join(err.split())
    assert files(read_only) == before


def test_a_report_that_cannot_be_written_is_refused_before_any_work(stmaml, read_only, monkeypatch):
    monkeypatch.setattr("stmaml.cli.report.write_report", lambda *words: pytest.fail("it was worked on"))
    code, _, err = stmaml("report", read_only)
    assert code == 2
    assert "Read-only file system" in err
    assert one_line(err)


def test_a_second_training_in_one_folder_is_told_of_the_first(stmaml, trained):
    folder, pid = trained / "seed-1", os.getppid()
    first = dataclasses.replace(locks.me(), pid=pid, started=locks._started(pid))
    (folder / locks.NAME).write_text(json.dumps(dataclasses.asdict(first)))
    code, _, err = stmaml("train", "--resume", folder)
    (folder / locks.NAME).unlink()
    assert code == 2
    assert f"stmaml: process {pid} on " in err
    assert "is writing to" in err


def test_evaluate_of_several_seeds_says_which(stmaml, trained):
    code, out, _ = stmaml("evaluate", trained, "--tasks", 6, "--samples", 1, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["seeds"] == [0, 1]
    each = [
        json.loads(stmaml("evaluate", trained / f"seed-{i}", "--tasks", 6, "--samples", 1, "--json")[1]) for i in (0, 1)
    ]
    means = [one["metrics"]["mse"]["mean"] for one in each]
    assert result["metrics"]["mse"]["mean"] == pytest.approx(sum(means) / 2)


def test_runs_answer_together(stmaml, trained):
    """Two seeds as one: their mixture is nearer than they are on average, and nothing is saved."""
    before = files(trained)
    words = ("evaluate", trained / "seed-0", "--with", trained / "seed-1", "--tasks", 6, "--samples", 1)
    code, out, err = stmaml(*words, "--json")
    told = json.loads(out)
    assert code == 0, err
    assert told["method"] == "maml + maml"
    assert told["runs"] == [str(trained / f"seed-{i}") for i in (0, 1)]
    assert "seed" not in told
    assert files(trained) == before
    alone = [
        json.loads(stmaml("evaluate", trained / f"seed-{i}", "--tasks", 6, "--samples", 1, "--json")[1]) for i in (0, 1)
    ]
    each = [one["metrics"]["mse"]["mean"] for one in alone]
    assert told["digest"] == alone[0]["digest"]
    assert told["metrics"]["mse"]["mean"] < sum(each) / 2
    assert told["metrics"]["mse"]["mean"] not in each
    seeds = json.loads(stmaml("evaluate", trained / "seed-0", "--with", trained, *words[4:], "--json")[1])
    assert seeds["method"] == "maml + maml + maml"
    code, out, _ = stmaml(*words)
    assert (code, "maml + maml on" in out, "over tasks" in out) == (0, True, True)


def test_runs_of_other_tasks_cannot_answer_together(stmaml, trained, tmp_path):
    stmaml("train", *TINY_MAML, "--shots", 6, "--run", tmp_path / "six")
    for words in (["--with", tmp_path / "six"], ["--with", "/nowhere"], ["--with", trained / "seed-1", "--sweep"]):
        code, out, err = stmaml("evaluate", trained / "seed-0", *words, "--tasks", 6)
        assert (code, out) == (2, "")
        assert one_line(err)
    assert "leave it out" in err
    code, out, err = stmaml("evaluate", trained / "seed-0", "--with", tmp_path / "six", "--tasks", 6)
    assert "not tested on the same tasks" in err


def test_evaluate_as_text_has_a_table(stmaml, trained):
    code, out, _ = stmaml("evaluate", trained / "seed-0", "--tasks", 6, "--samples", 1)
    assert code == 0
    assert "maml on regression2d/range0..5/noise0.3/shots5/query40, 6 tasks, 1 samples a task" in " ".join(out.split())
    assert "half-width of the 95 % interval over tasks" in out


def test_validation_tasks_are_other_tasks_and_leave_no_scores(stmaml, trained):
    folder = trained / "seed-1"
    stmaml("evaluate", folder, "--tasks", 7, "--samples", 1)
    (tested,) = [scores for name, scores in Run(folder).scores().items() if "-tasks7-" in name]
    before = Run(folder).scores()
    code, out, _ = stmaml("evaluate", folder, "--tasks", 7, "--samples", 1, "--json", "--validation")
    result = json.loads(out)
    assert code == 0
    assert result["task_set"].startswith("regression2d/validation/range0..5")
    assert result["digest"] != tested["digest"]
    assert Run(folder).scores() == before


def test_tasks_can_be_harder_at_test_time(stmaml, trained):
    folder = trained / "seed-1"
    flags = ["--shots", 2, "--noise", 0.8, "--inner-steps", 3]
    code, out, _ = stmaml("evaluate", folder, "--tasks", 6, "--samples", 1, "--json", *flags)
    result = json.loads(out)
    assert code == 0
    assert (result["settings"]["shots"], result["settings"]["noise"], result["inner_steps"]) == (2, 0.8, 3)
    assert result["task_set"].startswith("regression2d/range0..5/noise0.8/shots2")
    name = f"regression2d-range0..5-noise0.8-shots2-query40-samples1-inner3-tasks6-{result['digest'][:8]}"
    assert name in Run(folder).scores()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tasks", "0"], "--tasks must be at least 1; got 0"),
        (["--shots", "0"], "--shots must be at least 1; got 0"),
        (["--inner-steps", "-1"], "--inner-steps must be at least 0; got -1"),
    ],
)
def test_test_tasks_that_make_no_sense_are_refused(flags, message, stmaml, trained):
    code, _, err = stmaml("evaluate", trained / "seed-0", *flags)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize("seeds", [[], ["--seeds", "2"]], ids=["one", "several"])
def test_an_existing_run_is_refused_and_untouched(seeds, stmaml, trained):
    folder = trained if seeds else trained / "seed-0"
    before = files(folder)
    code, _, err = stmaml("train", *TINY_MAML, *seeds, "--run", folder)
    assert code == 2
    assert "already holds a run" in err
    assert one_line(err)
    assert files(folder) == before


def test_force_trains_again(stmaml, tmp_path):
    folder = tmp_path / "run"
    assert stmaml("train", *TINY_MAML, "--run", folder)[0] == 0
    first = read_npz(Run(folder).learner_path)["theta.head.weight"]
    code, _, err = stmaml("train", *TINY_MAML, "--run", folder, "--force", "--seed", 5)
    assert code == 0
    assert "trained. Next: stmaml evaluate" in " ".join(err.split())
    assert Run(folder).config()["seed"] == 5
    assert (read_npz(Run(folder).learner_path)["theta.head.weight"] != first).any()


def test_a_warm_up_cut_short_is_told(stmaml, tmp_path):
    code, _, err = stmaml("train", *TINY_MAML, "--steps", "20", "--warmup", "1000", "--run", tmp_path / "run")
    assert code == 0
    assert "the step size rises over 5 steps, a quarter of 20, instead of --warmup 1,000" in " ".join(err.split())


def test_a_run_that_diverges_exits_with_code_3(stmaml, tmp_path):
    wild = ["--outer-lr", "1e30", "--inner-lr", "1e30", "--run", tmp_path / "wild"]
    code, _, err = stmaml("train", *TINY_MAML, *wild)
    assert code == 3
    assert "the loss is not finite from step" in err
    assert "--on-divergence rollback" in err


def start(*words: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "stmaml", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_stopped_run_exits_with_143_and_goes_on_to_its_end(tmp_path, stmaml):
    folder = tmp_path / "run"
    length = ["--steps", "4000", "--val-every", "4000", "--checkpoint-every", "50", "--steps-per-call", "50"]
    process = start("train", *TINY_MAML, *length, "--run", folder)
    with process:
        deadline = time.monotonic() + 60
        while not Run(folder).checkpoint_steps() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "state saved. Go on with: stmaml train --resume" in " ".join(err.split())
    step = Run(folder).checkpoint_steps()[-1]
    assert 0 < step < 4000
    assert not list(folder.rglob("*.partial"))
    assert stmaml("train", "--resume", folder)[0] == 0
    assert Run(folder).checkpoint_steps()[-1] == 4000
    steps = [entry["step"] for entry in Run(folder).log() if "loss" in entry]
    assert steps == list(range(50, 4001, 50))


def test_numbers_json_cannot_hold_are_null():
    assert evaluate_command.without_nan({"a": {"mean": 1.0, "ci95": float("nan")}}) == {
        "a": {"mean": 1.0, "ci95": None}
    }


def test_garbage_is_looked_for_again_once_all_is_imported(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)  # of this process nothing stays for good
    usual = gc.get_threshold()
    gc.disable()
    try:
        cli._collect_garbage()
        assert gc.isenabled()
        assert gc.get_threshold()[0] > usual[0]
    finally:
        gc.enable()
        gc.set_threshold(*usual)
