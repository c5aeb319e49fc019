"""Panels: groups whose rows can be compared by their place in time or dose."""

from stmaml.pool.base import Member
from stmaml.pool.panels.panel import Panel

MEMBERS: tuple[Member, ...] = (Panel(), Panel("panel-log", logarithm=True))
