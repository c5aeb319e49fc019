"""Where compiled programs are kept."""

import os

import jax
import pytest

from stmaml.compiled import keep_below, remember_programs

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
