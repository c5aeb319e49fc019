"""Learners that ship with the package: names, cards, digests, and the script that makes them."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import stmaml
from stmaml.errors import RunError, StmamlError
from stmaml.runs import Run, read_arrays
from stmaml.shipped import digest_of, load_shipped, narrowed, pretrained_folder, ship, ship_together
from stmaml.tasks import TaskSpec

ROOT = Path(__file__).parents[1]


def test_every_shipped_learner_has_a_card_and_loads():
    assert "regression2d" in stmaml.pretrained_names()
    for name in stmaml.pretrained_names():
        card = stmaml.pretrained_card(name)
        assert card.startswith(f"# {name}\n")
        assert all(f"## {part}\n" in card for part in ("Data", "Scores", "Limits"))
        assert stmaml.load_pretrained(name) is not None


def test_all_of_them_together_are_small():
    assert sum(path.stat().st_size for path in pretrained_folder().rglob("*") if path.is_file()) < 18e6


def test_other_weights_than_those_shipped_are_refused(tmp_path):
    folder = tmp_path / "regression2d"
    shutil.copytree(pretrained_folder() / "regression2d", folder)
    content = bytearray((folder / "learner.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "learner.npz").write_bytes(content)
    with pytest.raises(RunError, match="digest differs"):
        load_shipped(folder)


def test_several_ship_as_one(tmp_path):
    for name, key in (("one", 0), ("other", 1)):
        shutil.copytree(pretrained_folder() / "regression2d", tmp_path / "both" / name)
        moved = tmp_path / "both" / name / "learner.npz"
        arrays = read_arrays(moved)
        first = min(arrays)
        np.savez(moved, allow_pickle=False, **{**arrays, first: arrays[first] + np.float16(key)})
        about = json.loads((moved.parent / "shipped.json").read_text())
        (moved.parent / "shipped.json").write_text(json.dumps({**about, "sha256": digest_of(moved)}))
    ship_together(["one", "other", "regression2d"], tmp_path / "both", card="# both\n")
    found = load_shipped(tmp_path / "both")
    assert isinstance(found, stmaml.Committee)
    assert len(found.learners) == 3
    first = [jax.tree.leaves(one) for one in found.learners]
    assert any(not np.array_equal(a, b) for a, b in zip(first[0], first[1], strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(first[0], first[2], strict=True))


@pytest.mark.parametrize("names", [[], ["../regression2d"], [".."], ["both"], "regression2d", [3], ["none"]])
def test_learners_elsewhere_are_not_opened(tmp_path, names):
    ship_together(["regression2d"], tmp_path / "both", card="")
    (tmp_path / "both" / "shipped.json").write_text(json.dumps({"learners": names}))
    ship_together(["regression2d"], tmp_path / "both" / "both", card="")
    with pytest.raises(StmamlError):
        load_shipped(tmp_path / "both")


def test_halved_weights_round_and_those_too_large_stay():
    small, large = np.array([0.1, 2.0], np.float32), np.array([1e6], np.float32)
    assert narrowed(small).dtype == np.float16
    assert narrowed(large).dtype == np.float32
    np.testing.assert_allclose(narrowed(small), small, rtol=1e-3)


def study():
    spec = importlib.util.spec_from_file_location("ship", ROOT / "studies" / "ship.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_becomes_a_shipped_folder(tmp_path, monkeypatch, capsys):
    source = pretrained_folder() / "regression2d"
    words = ["ship.py", str(source), "again", "--half", "--into", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    study().main()
    assert "of its 95 % interval" in capsys.readouterr().out
    card = (tmp_path / "again" / "card.md").read_text()
    assert "half precision" in card
    assert "| labelled examples in training | " in card
    assert {array.dtype for array in read_arrays(tmp_path / "again" / "learner.npz").values()} == {np.dtype(np.float16)}
    one, other = (jax.tree.leaves(learner) for learner in (load_shipped(source), load_shipped(tmp_path / "again")))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-3)


def test_a_card_has_a_row_for_each_test():
    found = {}
    for shots in (10, 2):
        about = {"task_set": f"regression2d/noise0.3/shots{shots}", "tasks": 1000, "samples": 20}
        scores = {"metrics": {"nll": {"mean": 0.5 / shots, "ci95": 0.01}}, "conditions": {"tasks": {"shots": shots}}}
        found[str(shots)] = {**about, **scores}
    words, table = study().scores_of(SimpleNamespace(scores=lambda: found))
    assert "1,000 test tasks each, 20 samples" in words
    assert table.splitlines()[2:] == ["| 2 labelled | 0.250 ± 0.010 |", "| 10 labelled | 0.0500 ± 0.010 |"]


def test_scores_in_a_log_are_read():
    line = '{"run": "a", "event": "score", "test": "2022-10", "mse": [30.5, 2.0], "nll": [2.6, 0.05]}'
    words, table = study().scores_told(f"words\n{line}\n", "timed.py --tasks 1000")
    assert "1,000 test tasks each" in words
    assert table.splitlines()[0] == "| test tasks | mean squared error | negative log-likelihood |"
    assert table.splitlines()[2] == "| 2022, 10 labelled days | 30.5 ± 2.0 | 2.60 ± 0.050 |"
    with pytest.raises(SystemExit, match="no scores"):
        study().scores_told("words", "")


def test_scores_that_move_are_told():
    made = study()
    before, after = ({"nll": {"mean": mean, "ci95": 0.1}} for mean in (1.0, 1.05))
    assert made.worst_move(before, after) == pytest.approx(0.5)
    assert made.worst_move(before, before) == 0
    assert "1 and 1.05; no score moves by more than 0.5" in made.parity_words(before, after)


def test_no_shipped_folder_says_where_files_lay(tmp_path):
    source = pretrained_folder() / "regression2d"
    text = (source / "config.json").read_text().replace("--val-every 3000", "--data /home/me/x --run runs/a")
    shutil.copytree(source, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(text)
    ship(Run(tmp_path / "run"), TaskSpec((2,), 1), tmp_path / "out", card="", half=False)
    assert "/home" not in (tmp_path / "out" / "config.json").read_text()


def test_the_list_names_them_and_prints_cards(stmaml):
    code, out, _ = stmaml("list")
    assert code == 0
    assert "regression2d" in out.splitlines()[-1]
    code, out, _ = stmaml("list", "--card", "regression2d")
    assert (code, out.startswith("# regression2d")) == (0, True)
    code, _, err = stmaml("list", "--card", "chess")
    assert code == 2
    assert "regression2d" in err
