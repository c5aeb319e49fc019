"""Boosted trees for grouped rows: pooled, with effects of groups, with summaries of labelled rows; and a ridge."""

from stmaml.pool.base import Member
from stmaml.pool.boosted.class_summaries import ClassSummariesMember
from stmaml.pool.boosted.classes import PooledClasses, take_class_root
from stmaml.pool.boosted.either import Either
from stmaml.pool.boosted.pooled import EffectsMember, PooledNumbers
from stmaml.pool.boosted.remembered import Remembered
from stmaml.pool.boosted.ridge import RidgeMember
from stmaml.pool.boosted.roots import take_root
from stmaml.pool.boosted.summaries import SummariesMember

_ROOTS, _CLASS_ROOTS = Remembered(take_root), Remembered(take_class_root)
MEMBERS: tuple[Member, ...] = (
    Either("boosting", PooledNumbers(), PooledClasses(_CLASS_ROOTS)),
    EffectsMember(_ROOTS),
    Either("boosting-summaries", SummariesMember(_ROOTS), ClassSummariesMember(_CLASS_ROOTS)),
    RidgeMember(),
)
