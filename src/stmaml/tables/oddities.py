"""Values that may not mean what they say: codes for missing ones, slips of the pen, days written as numbers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from shlex import quote

import numpy as np
import polars as pl
from jaxtyping import Float

from stmaml.errors import SourceError

USUAL_CODE = r"-?([79]|(7{2,}|8{2,}|9{2,}|9+[678])(\.[79]+)?|8{2,}\.8+)|-[18]|-32768|32767|65535|2147483647|-2147483648"
MOST_CODES = 3  # at one end of a column
ENOUGH_VALUES = 20  # different ones, before a value that is no usual code is taken for one
MAX_SPREADS = 1e6  # beyond the others: single precision tells those apart no more
MAX_STEP = 1e3  # times as far as the next value: a heavy tail has its values closer together
MAX_SQUARED = 1e18  # single precision holds the square of no larger number
LARGE = 1e100  # numbers from which sums of squares may be infinite


@dataclass(frozen=True)
class Code:
    """A value that stands apart from all others, in more than one row."""

    value: float
    rows: int
    of: int
    low: float
    high: float

    @property
    def word(self) -> str:
        """The value as one would write it."""
        return f"{self.value:.15g}"

    def where(self) -> str:
        """Where it stands, in words."""
        return (
            f"holds {self.word} in {self.rows:,} of {self.of:,} rows, far from all others ({self.low:.6g} to "
            f"{self.high:.6g})"
        )


@dataclass(frozen=True)
class _Counted:
    """The values of a column from the lowest to the highest, and how often each is there."""

    values: Float[np.ndarray, " u"]
    rows: Float[np.ndarray, " u"]

    def ends(self, low: int, high: int) -> Iterator[tuple[Float[np.ndarray, " k"], float]]:
        """The values cut off at either end, with the width of the gap between them and the rest."""
        place = len(self.values) - high
        if low:
            yield self.values[:low], float(self.values[low] - self.values[low - 1])
        if high:
            yield self.values[place:], float(self.values[place] - self.values[place - 1])


def far_codes(numbers: pl.Series) -> list[Code]:
    """The values at the ends of a column that look like codes for missing ones, most frequent first."""
    known = numbers.drop_nulls().to_numpy()
    counted = _Counted(*(part.astype(np.float64) for part in np.unique(known, return_counts=True)))
    cuts = sorted(product(range(MOST_CODES + 1), repeat=2), key=lambda cut: (-sum(cut), cut))
    for low, high in cuts:
        if low + high and _stand_apart(counted, low, high):
            return _codes(counted, low, high)
    return []


def _codes(counted: _Counted, low: int, high: int) -> list[Code]:
    last = len(counted.values) - high
    rest = counted.values[low:last]
    ends = [*range(low), *range(last, len(counted.values))]
    total = int(counted.rows.sum())
    found = [Code(float(counted.values[i]), int(counted.rows[i]), total, float(rest[0]), float(rest[-1])) for i in ends]
    return sorted(found, key=lambda code: -code.rows)


def _stand_apart(counted: _Counted, low: int, high: int) -> bool:
    """Whether all that is cut off is repeated, and far from a rest that is worth the name."""
    last = len(counted.values) - high
    rest, rows = counted.values[low:last], counted.rows[low:last]
    ends = np.concatenate([counted.rows[:low], counted.rows[last:]])
    if len(rest) < 2 or rows.sum() < 5 or ends.min() < 2:
        return False
    return all(_far(cut, gap, rest) for cut, gap in counted.ends(low, high))


def _far(cut: Float[np.ndarray, " k"], gap: float, rest: Float[np.ndarray, " r"]) -> bool:
    """Whether a gap is wide against the spread of the rest: the more so, the less the values look like codes."""
    width = float(rest[-1] - rest[0])
    if not all(re.fullmatch(USUAL_CODE, f"{value:.15g}") for value in cut):
        return len(cut) == 1 and len(rest) >= ENOUGH_VALUES and gap > 10 * width
    if len(rest) == 2:  # 9 beside yes and no; but -1, 0 and 1 are a scale
        return gap > 5 * width
    if cut[-1] < 0 <= rest[0]:
        return _below_zero(cut, gap, rest, width)
    return gap > (1.5 if np.abs(cut).max() < 10 else 1.0) * width


def _below_zero(cut: Float[np.ndarray, " k"], gap: float, rest: Float[np.ndarray, " r"], width: float) -> bool:
    """The only numbers below zero need less of a gap, but more of one than there are between the lowest others."""
    near = np.diff(rest[: max(3, len(rest) // 4)]).max()
    return bool(gap > 0.1 * width and gap >= 2 * near and (rest[0] > 0 or cut[-1] < -1))


def code_notes(name: str, codes: Sequence[Code]) -> Iterator[str]:
    """What to say about such values of an input."""
    for code in codes:
        yield f"column '{name}' {code.where()}; if it stands for a missing value, add --missing {code.word}"


def refuse_codes(name: str, codes: Sequence[Code]) -> None:
    """Raises SourceError for such values of a target: they would be learnt."""
    if codes:
        words = " ".join(code.word for code in codes)
        raise SourceError(
            f"the target '{name}' {codes[0].where()}. Add --missing {words} if that stands for a missing value, or "
            "--keep-codes if it is real."
        )


def fences(known: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Where the bulk of the values ends: five times the middle 90 % beyond its ends."""
    low, high = (float(end) for end in np.quantile(known, [0.05, 0.95]))  # Python's overflow to infinity in silence
    width = high - low
    return (low - 5 * width, high + 5 * width) if width > 0 else (float(known.min()), float(known.max()))


def centre_and_spread(known: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Mean and standard deviation within the fences, so that one slip of the pen sets no scale; also of numbers whose
    squares are beyond all."""
    inside = np.clip(known, *fences(known))
    unit = float(np.abs(inside).max())
    if unit < LARGE:
        return float(inside.mean()), float(inside.std())
    return float((inside / unit).mean()) * unit, float((inside / unit).std()) * unit


def odd_values(name: str, numbers: pl.Series) -> str | None:
    """A sentence about values so far from the others that they may be codes for missing ones or another unit."""
    known = numbers.drop_nulls().to_numpy()
    low, high = fences(known) if known.size else (0.0, 0.0)
    odd = known[(known < low) | (known > high)]
    if odd.size == 0:
        return None
    return (
        f"'{name}' has {odd.size} values such as {odd[0]:.6g}, far from the usual {np.quantile(known, 0.05):.6g} to "
        f"{np.quantile(known, 0.95):.6g}; if they stand for missing, name them with --missing"
    )


def refuse_outliers(name: str, numbers: pl.Series) -> None:
    """Raises SourceError for a target so far from the others that single precision loses them beside it."""
    values = numbers.to_numpy()
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [0.05, 0.95])
    away = np.abs(values - np.median(known))
    largest = np.sort(away[np.isfinite(away)])
    spread = float(high - low) or float(largest[largest > 0].min(initial=np.inf))
    steps = largest[1:] > MAX_STEP * np.maximum(largest[:-1], spread)
    if steps.any() and (first := largest[1:][steps][0]) > MAX_SPREADS * spread:
        row = int(np.flatnonzero(away >= first)[0])
        raise SourceError(
            f"the target '{name}' holds {values[row]:.6g} in row {row + 1}, {away[row] / spread:.1g} spreads from the "
            "others. Correct it, or leave the cell empty."
        )
    if np.abs(known).max() > MAX_SQUARED:
        raise SourceError(
            f"the target '{name}' holds {known[np.abs(known).argmax()]:.6g}, whose square is beyond single precision. "
            "Give it in a larger unit."
        )


def day_numbers(name: str, text: pl.Series) -> str | None:
    """A sentence about numbers of eight digits that are all days, such as 20230129."""
    present = text.drop_nulls()
    eight = present.str.contains(r"^(19|20)\d{6}$").all()
    if not eight or present.str.strptime(pl.Date, "%Y%m%d", strict=False).null_count():
        return None
    day, iso = present[0], f"{present[0][:4]}-{present[0][4:6]}-{present[0][6:]}"
    taken = f"'{name}' is taken as a number, but all its values are days, such as {day}"
    return f"{taken}; write {iso} to have it taken as a date"


def name_notes(what: str, names: pl.Series, missing: pl.Series) -> Iterator[str]:
    """What to say about groups and classes whose names stand for a missing value elsewhere."""
    for name, count in names.filter(missing).value_counts(sort=True).iter_rows():
        yield (
            f"'{names.name}' has a {what} called '{name}' ({count} rows); if that stands for a missing one, add "
            f"--missing {quote(name)}"
        )
