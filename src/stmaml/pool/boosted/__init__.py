"""Boosted trees for grouped rows: pooled, with effects of groups, with summaries of labelled rows; and a ridge."""

from stmaml.pool.base import Member
from stmaml.pool.boosted.pooled import EffectsMember, PooledNumbers
from stmaml.pool.boosted.ridge import RidgeMember
from stmaml.pool.boosted.roots import Roots
from stmaml.pool.boosted.summaries import SummariesMember

_ROOTS = Roots()
MEMBERS: tuple[Member, ...] = (PooledNumbers(), EffectsMember(_ROOTS), SummariesMember(_ROOTS), RidgeMember())
