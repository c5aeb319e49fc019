"""How a run folder says that a pool is in it. This file imports no member, so that every command can ask."""

from stmaml.errors import RunError
from stmaml.runs import Run

POOL = "pool"


def is_pool(run: Run) -> bool:
    """Whether a run folder holds a pool."""
    return run.config().get("method", {}).get("name") == POOL


def refuse_pool(run: Run, instead: str) -> None:
    """Raises RunError for a pool, with what to do instead."""
    if is_pool(run):
        raise RunError(f"{run.folder} holds a pool of models of a table. {instead}")
