"""What each column that is named is to serve for: one purpose."""

from collections.abc import Sequence

from stmaml.errors import SettingError


def check_roles(
    task: str,
    target: str,
    features: Sequence[str],
    drop: Sequence[str],
    categorical: Sequence[str] = (),
    ordinal: Sequence[str] = (),
) -> None:
    """Raises SettingError if one column is to serve two purposes."""
    if task == target:
        raise SettingError(f"--task and --target must name different columns; both name '{task}'.")
    others = {"--task": [task], "--target": [target], "--drop": drop}
    kinds = {"--categorical": [*categorical], "--ordinal": [*ordinal]}
    for flag, names in {"--features": [*features], **kinds}.items():
        refuse_twice(flag, names)
        for other, taken in others.items():
            refuse_both(flag, names, other, taken)
        if flag != "--features" and features and (unused := [name for name in names if name not in features]):
            raise SettingError(f"{flag} names '{unused[0]}', which is not among --features. Add it there.")
    refuse_both("--categorical", categorical, "--ordinal", ordinal)


def refuse_twice(flag: str, names: Sequence[str]) -> None:
    """Raises SettingError if a flag names a column twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingError(f"{flag} names '{twice[0]}' twice. Name it once.")


def refuse_both(flag: str, names: Sequence[str], other: str, taken: Sequence[str]) -> None:
    """Raises SettingError if two flags name one column."""
    if both := [name for name in names if name in taken]:
        raise SettingError(f"{flag} and {other} must name different columns; both name '{both[0]}'.")
