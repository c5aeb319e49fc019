"""TensorBoard event files, for those who watch their runs there. Needs the extra `tensorboard`."""

import numpy as np

from stmaml.errors import SettingError
from stmaml.runs import Run
from stmaml.training import State


class EventFiles:
    """Writes losses and validation scores as TensorBoard scalars into each run folder."""

    def __init__(self, runs: list[Run]):
        """One writer for each run."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            missing = "a package that is not installed: pip install '.[tensorboard]' in the folder of the package."
            raise SettingError(f"--tensorboard needs {missing}") from error
        self._writers = [SummaryWriter(logdir=str(run.folder)) for run in runs]

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """A scalar for each loss."""
        for i, writer in enumerate(self._writers):
            for name, values in logs.items():
                writer.add_scalar(f"train/{name}", float(values[i]), step)

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """A scalar for each score."""
        for writer, one in zip(self._writers, scores, strict=True):
            for name, value in one.items():
                writer.add_scalar(f"validation/{name}", value, step)

    def checkpoint(self, step: int, state: State) -> None:
        """Flushes what was written so far."""
        for writer in self._writers:
            writer.flush()

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """The new factor on the step size."""
        self._writers[seed_index].add_scalar("train/rate", rate, to_step)

    def noted(self, step: int, seed_index: int, note: str) -> None:
        """A text."""
        self._writers[seed_index].add_text("train/note", note, step)

    def close(self) -> None:
        """Ends the files; the writers' threads may lag behind until then."""
        for writer in self._writers:
            writer.close()
