"""Mixed models: groups differ in level, slopes and curves, which are normal about common ones."""

from stmaml.pool.base import Member
from stmaml.pool.mixed.classes import MixedLogistic
from stmaml.pool.mixed.effects import Effects, effects_of
from stmaml.pool.mixed.logs import MixedLog
from stmaml.pool.mixed.numbers import MEAN, MIXED, MIXED_CURVES, MIXED_SLOPES
from stmaml.pool.mixed.shares import Shares

__all__ = ["MEMBERS", "OTHERS", "Effects", "effects_of"]

MEMBERS: tuple[Member, ...] = (MEAN, MIXED, MIXED_SLOPES, MIXED_CURVES, MixedLog(), Shares(), MixedLogistic())
OTHERS: tuple[Member, ...] = (MixedLogistic("mixed-levels", plain=True),)
"""For those who name them: no usual part of a pool."""
