"""Spoilt files of every kind: loaded, or refused in a sentence; never a traceback, never without an end."""

import signal
import time
from collections import Counter

import pytest

from stmaml.border.run_content import _shares
from stmaml.errors import RunError
from tests.fuzz import harness
from tests.fuzz.harness import GOOD, again, attack, fuzz, table
from tests.fuzz.hostile import ATTACKS
from tests.fuzz.specimens import KINDS


def check(cases: int, *, cheap: bool = False) -> None:
    found = fuzz(cases, seed=0, cheap=cheap)
    assert sum(sum(one.ends.values()) for one in found.values()) == cases
    assert not [bad for one in found.values() for bad in one.bad], table(found)
    refused = sum(one.ends["refused"] for one in found.values())
    assert refused > cases / 4  # a harness that spoils nothing would find nothing


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_three_hundred_spoilt_files_are_loaded_or_refused():
    check(300, cheap=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_ten_thousand_spoilt_files_are_loaded_or_refused():
    check(10_000)


BOMBS = ("ratio bombs of 200 to 600 MiB", "text bombs in a PNG", "overlapping files in a zip")  # take long to make


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_hostile_archives_and_pictures_do_no_harm():
    found = attack(38, only=tuple(one.name for one in ATTACKS if one.name not in BOMBS))
    assert not [bad for one in found.values() for bad in one.bad], table(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_five_hundred_hostile_archives_and_pictures_do_no_harm():
    found = attack(500)
    assert not [bad for one in found.values() for bad in one.bad], table(found)


@pytest.mark.parametrize(("kind", "name"), [("Excel", "0-7597"), ("result.json", "0-8758")])
def test_files_that_once_ended_in_a_traceback_are_refused(kind, name):
    assert again(kind, name).end == "refused"


@pytest.mark.parametrize("share", [-348630.0, 1.1, float("nan")])
def test_a_weight_of_a_pool_that_is_no_share_is_refused(share):
    """A report of such a one once ended in a traceback of the library that draws it."""
    with pytest.raises(RunError, match=r"'weights\.0\.mean' must lie between 0 and 1"):
        _shares({"mean": share}, "weights.0")
    _shares({"mean": 0.0, "mixed": 1.0}, "weights.0")


def test_the_same_seed_spoils_the_same_files():
    first, second = (fuzz(12, seed=3, only=("CSV", "IDX", "lock")) for _ in range(2))
    assert {name: one.ends for name, one in first.items()} == {name: one.ends for name, one in second.items()}
    assert all(set(one.ends) <= set(GOOD) for one in first.values())


def test_shares_add_up_to_the_whole():
    parts = [fuzz(12, seed=3, only=("CSV", "IDX", "lock"), share=(i, 2)) for i in range(2)]
    whole = fuzz(12, seed=3, only=("CSV", "IDX", "lock"))
    assert {name: sum((part[name].ends for part in parts), Counter()) for name in whole} == {
        name: one.ends for name, one in whole.items()
    }


def test_a_reader_is_too_slow_by_the_processors_it_takes_or_if_it_waits_for_ever(tmp_path, monkeypatch):
    """Whether others keep the processors busy must not matter, as it once did."""
    monkeypatch.setattr(harness, "SECONDS", 0.2)
    waits = harness._watched(lambda path: time.sleep(0.5), tmp_path, tmp_path)
    assert (waits.end, waits.processor < 0.2, waits.seconds >= 0.5) == ("loaded", True, True)
    busy = harness._watched(_compute_for_ever, tmp_path, tmp_path)
    assert (busy.end, 0.2 <= busy.processor < 2) == ("too slow", True)
    monkeypatch.setattr(harness, "PATIENCE", 0.3)
    assert harness._watched(lambda path: time.sleep(60), tmp_path, tmp_path).end == "too slow"
    assert signal.getitimer(signal.ITIMER_PROF) == signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def _compute_for_ever(path):
    while True:
        pass


def test_every_kind_has_a_name_of_its_own():
    assert len({kind.name for kind in KINDS}) == len(KINDS)
