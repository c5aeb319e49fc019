"""Linear mixed models: groups differ in level, slopes and curves, which are normal about common ones."""

from stmaml.pool.base import Member
from stmaml.pool.mixed.numbers import MEAN, MIXED, MIXED_CURVES, MIXED_SLOPES

MEMBERS: tuple[Member, ...] = (MEAN, MIXED, MIXED_SLOPES, MIXED_CURVES)
