"""Who keeps what training does: a run folder, event files."""

import time
from typing import Protocol, runtime_checkable

import numpy as np

from stmaml.runs import Run
from stmaml.training.state import State, unbundle


@runtime_checkable
class Observer(Protocol):
    """Who is told how training goes. All arrays have one entry a learner."""

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """After each chunk of steps: mean loss and metrics over the chunk."""

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """After each validation."""

    def checkpoint(self, step: int, state: State) -> None:
        """When the state should be saved."""

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """After a divergence, before going on from `to_step`."""

    def noted(self, step: int, seed_index: int, note: str) -> None:
        """When something about a learner is worth remembering."""


class Recorder:
    """Writes a run folder, one for each learner trained side by side, as training goes on."""

    def __init__(self, runs: list[Run]):
        self._runs = runs
        self._began = time.monotonic()

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """A line in each log."""
        for i, run in enumerate(self._runs):
            values = {name: float(series[i]) for name, series in logs.items()}
            run.append_log({"step": step, "seconds": round(time.monotonic() - self._began, 3), **values})

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """A line in each log, and the weights where they are the best so far."""
        for i, run in enumerate(self._runs):
            run.append_log({"step": step, "validation": scores[i]})
            if improved[i]:
                run.save_learner(unbundle(state, len(self._runs))[i].learner)

    def checkpoint(self, step: int, state: State) -> None:
        """The state of each learner."""
        for run, one in zip(self._runs, unbundle(state, len(self._runs)), strict=True):
            run.save_checkpoint(step, one)

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """A line in the log of the run that diverged."""
        for run in self._runs:
            run.trim_log(to_step)
        self._runs[seed_index].append_log({"step": to_step, "diverged_at": step, "rate": rate})

    def noted(self, step: int, seed_index: int, note: str) -> None:
        """A line in the log of that run."""
        self._runs[seed_index].append_log({"step": step, "note": note})
