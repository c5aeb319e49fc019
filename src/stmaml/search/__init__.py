"""One search for every row of a table: the same grid, the same budget, validation tasks alone."""

from stmaml.search.grid import Trial, draw_trials, space_of
from stmaml.search.halving import Search, Searching, collect

__all__ = ["Search", "Searching", "Trial", "collect", "draw_trials", "space_of"]
