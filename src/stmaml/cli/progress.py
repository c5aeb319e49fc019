"""Progress in the terminal: a live bar where there is one, a line now and then where there is not."""

import time
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stmaml.training import State, TrainConfig

SECONDS_BETWEEN_LINES = 15.0


class TrainingBar:
    """Shows loss, validation score, speed and time left."""

    def __init__(self, console: Console, config: TrainConfig, title: str):
        """`title` says what is trained and where it goes."""
        self._console, self._config = console, config
        console.print(title)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("compiling", total=config.steps)
        self._last: tuple[float, int] | None = None
        self._said = 0.0
        self._rate = 0.0
        self._val = ""

    def __enter__(self) -> "TrainingBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """Moves the bar."""
        now = time.monotonic()
        if self._last is not None:
            seconds = max(now - self._last[0], 1e-9)
            rate = (step - self._last[1]) * self._config.tasks_per_batch * len(logs["loss"]) / seconds
            self._rate = rate if self._rate == 0 else 0.8 * self._rate + 0.2 * rate
        self._last = (now, step)
        text = f"loss {logs['loss'].mean():.3f}{self._val}  {self._rate:,.0f} tasks/s"
        self._bar.update(self._task, completed=step, description=text)
        if (
            self._rate
            and not self._console.is_terminal
            and (now - self._said > SECONDS_BETWEEN_LINES or step == self._config.steps)
        ):
            self._said = now
            left = (
                (self._config.steps - step) * self._config.tasks_per_batch * len(logs["loss"]) / max(self._rate, 1e-9)
            )
            self._console.print(f"step {step:,}/{self._config.steps:,}  {text}  {left:,.0f} s left")

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """Remembers the score for the next line."""
        metric = self._config.val_metric
        self._val = f"  val {metric} {np.mean([score[metric] for score in scores]):.3f}"

    def checkpoint(self, step: int, state: State) -> None:
        """Saving takes no line of its own."""

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """Says so."""
        self._console.print(
            f"loss not finite at step {step}: back to step {to_step}, step size now {rate:g} of its schedule"
        )
