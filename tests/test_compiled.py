"""Where compiled programs are kept, and that a second start needs no compiler."""

import os
import subprocess
import sys
import warnings

import jax
import pytest

from stmaml.compiled import _mend_damage, keep_below, quick_compilation, remember_programs

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def unset():
    """JAX as if no folder had been named; afterwards as before."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_below_the_cache_folder(unset, tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    remember_programs()
    assert jax.config.values["jax_compilation_cache_dir"] == str(
        tmp_path / "cache" / "programs" / f"jax-{jax.__version__}"
    )
    remember_programs(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_where_nothing_can_be_written_nothing_is_kept(unset, tmp_path):
    (tmp_path / "file").write_text("no folder")
    remember_programs(tmp_path / "file")
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_the_oldest_programs_go_first(tmp_path):
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(b"x" * 40)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    keep_below(tmp_path, 120)
    assert len(list(tmp_path.iterdir())) == 3
    keep_below(tmp_path, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_program_in_use_outlives_a_younger_one(tmp_path):
    for name, read, written, size in (("used", 900, 100, 30), ("unused", 200, 300, 70)):
        (tmp_path / name).write_bytes(b"x" * size)
        os.utime(tmp_path / name, (read, written))
    keep_below(tmp_path, 90)
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_files_that_another_process_removes_meanwhile_are_passed_over(tmp_path):
    (tmp_path / "there").write_bytes(b"x" * 40)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    keep_below(tmp_path, 30)
    assert not (tmp_path / "there").exists()


def test_a_damaged_program_is_removed_and_other_warnings_are_shown(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: shown.append(str(message)))
    for name in ("jit_f-12-cache", "jit_g-34-cache"):
        (tmp_path / name).write_bytes(b"half")
    _mend_damage(tmp_path)
    warnings.showwarning("Error reading persistent compilation cache entry for 'jit_f': EOF", UserWarning, "file", 1)
    warnings.showwarning("something else", UserWarning, "file", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["jit_g-34-cache"]
    assert shown == ["something else"]


COUNTED = """
import sys, warnings
import jax
warnings.simplefilter("error")
compiled = []
jax.monitoring.register_event_listener(lambda event, **rest: compiled.append(event))
from stmaml import cli
cli.main()
names = ("compile_requests_use_cache", "cache_hits", "cache_misses")
print(*(compiled.count(f"/jax/compilation_cache/{name}") for name in names))
"""


def start(cache, run) -> subprocess.Popen:
    """A process that trains, and prints how many programs it needed, found and compiled."""
    words = ["train", "regression2d", "--method", "maml", "--hidden", "8", "--inner-steps", "1", "--steps", "2"]
    words += ["--tasks-per-batch", "2", "--val-tasks", "2", "--run", str(run)]
    unset = [name for name in os.environ if name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))]
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"STMAML_CACHE": str(cache), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", COUNTED, *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def counts(process: subprocess.Popen) -> list[int]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return [int(word) for word in out.split()[-3:]]


def test_a_second_start_compiles_nothing(tmp_path):
    needed, found, compiled = counts(start(tmp_path / "cache", tmp_path / "a"))
    assert compiled > 20
    assert needed == found + compiled
    again, found, compiled = counts(start(tmp_path / "cache", tmp_path / "b"))
    assert (again, found, compiled) == (needed, needed, 0)


@pytest.mark.slow
def test_processes_that_begin_at_once_share_a_folder(tmp_path):
    for process in [start(tmp_path / "cache", tmp_path / name) for name in "abc"]:
        needed, found, compiled = counts(process)
        assert needed == found + compiled
    needed, found, compiled = counts(start(tmp_path / "cache", tmp_path / "d"))
    assert (found, compiled) == (needed, 0)


def test_xla_gets_no_flag_that_it_would_end_the_process_for():
    """In tests it has these flags, so this version knows them; what came after 0.10 has forgotten one."""
    assert "fusion_emitters" in quick_compilation((0, 10, 2))
    assert [quick_compilation(version) for version in ((0, 11), (0, 12, 0, 1), (1, 0))] == [
        "--xla_backend_optimization_level=0"
    ] * 3
    code = "import jax.numpy as jnp; print(jnp.ones(2).sum())"
    flags = {**os.environ, "XLA_FLAGS": quick_compilation(), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=flags, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
