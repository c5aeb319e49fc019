"""Event files, for those who have the extra."""

import builtins

import numpy as np
import pytest

from stmaml.cli.tensorboard import EventFiles
from stmaml.errors import SettingError
from stmaml.runs import Run
from stmaml.tasks import TaskSpec
from stmaml.training import TrainConfig, initial_state
from tests.methods.small import small_learner


def test_losses_and_scores_go_to_event_files_of_each_run(tmp_path, key):
    pytest.importorskip("tensorboardX")
    state = initial_state(small_learner("cnp", TaskSpec((2,), 1), key=key), TrainConfig())
    runs = [Run(tmp_path / "a"), Run(tmp_path / "b")]
    files = EventFiles(runs)
    files.progress(100, {"loss": np.array([1.0, 2.0])})
    files.validated(100, [{"mse": 1.0}, {"mse": 2.0}], [True, True], state)
    files.checkpoint(100, state)
    files.close()
    written = [next(run.folder.glob("events.out.tfevents.*")).read_bytes() for run in runs]
    for content in written:
        assert b"train/loss" in content
        assert b"validation/mse" in content
    assert np.float32(1.0).tobytes() in written[0]
    assert np.float32(2.0).tobytes() in written[1]


def test_without_the_package_the_message_says_what_to_install(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def no_tensorboard(name, *args, **kwargs):
        if name == "tensorboardX":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_tensorboard)
    with pytest.raises(SettingError, match=r"pip install '.\[tensorboard\]'"):
        EventFiles([Run(tmp_path)])
