"""The members that a pool may have."""

from stmaml.errors import SettingError
from stmaml.methods import METHODS
from stmaml.pool import boosted, mixed, panels
from stmaml.pool.base import GroupedRows, Member
from stmaml.pool.meta import Meta
from stmaml.pool.prior import Prior

USUAL_METHOD = "st-maml"
FEW_GROUPS = 60  # up to here the prior over tables is among the usual members: more groups speak for themselves


def usual_members(rows: GroupedRows, *, minutes: float | None = None) -> list[Member]:
    """All that suit the rows: mixed models, panels, boosted trees, ST-MAML; for few groups the prior over tables."""
    known: list[Member] = [*mixed.MEMBERS, *panels.MEMBERS, *boosted.MEMBERS]
    known += [Meta(USUAL_METHOD, minutes=minutes)]
    known += [Prior()] if rows.num_groups <= FEW_GROUPS else []
    return [member for member in known if member.suits(rows)]


def members_named(
    names: tuple[str, ...], rows: GroupedRows, *, minutes: float | None = None, steps: int = 0
) -> list[Member]:
    """The members of these names, which may be any meta-learning method's; the usual ones if there is none. The prior
    over tables, if named, is trained further for so many steps."""
    if not names:
        return usual_members(rows, minutes=minutes)
    known = all_members(minutes=minutes, steps=steps)
    for name in names:
        if name not in known:
            raise SettingError(f"there is no member '{name}'; choose from: {', '.join(known)}.")
    chosen = [known[name] for name in dict.fromkeys(names)]
    unfit = [member.name for member in chosen if not member.suits(rows)]
    if unfit:
        fit = [name for name, member in known.items() if member.suits(rows)]
        raise SettingError(f"'{unfit[0]}' cannot learn from this table. Those that can are: {', '.join(fit)}.")
    return chosen


def all_members(*, minutes: float | None = None, steps: int = 0) -> dict[str, Member]:
    """Every member there is, by name; for classes some have the names of those for numbers, and the first that suits
    is meant."""
    methods: list[Member] = [Meta(method, minutes=minutes) for method in METHODS]
    known = [*mixed.MEMBERS, *mixed.OTHERS, *panels.MEMBERS, *boosted.MEMBERS, Prior(steps=steps), *methods]
    return {member.name: member for member in known}
