"""How wide the commands print."""

from typing import Any

import pytest

from stmaml.cli.pools import show_pool
from stmaml.cli.showing import FILE_WIDTH, plain_console

LONG = "word " * 40 + "end"


@pytest.fixture(autouse=True)
def no_width_told(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("columns", [None, "", "many"])
@pytest.mark.parametrize("stderr", [False, True])
def test_a_line_for_a_file_is_not_folded(capsys, monkeypatch, stderr, columns):
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert 80 < len(LONG) < FILE_WIDTH
    plain_console(stderr=stderr).print(LONG)
    printed = capsys.readouterr()
    assert (printed.err if stderr else printed.out) == f"{LONG}\n"


def test_a_width_that_is_told_is_heeded(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    plain_console().print(LONG)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60


def test_text_is_no_style(capsys):
    plain_console().print("speed [bold] in km/h :smile:")
    assert capsys.readouterr().out == "speed [bold] in km/h :smile:\n"


def result_of(members: list[str], counts: list[str]) -> dict[str, Any]:
    """What `stmaml fit` keeps of a pool, as far as its tables show it."""
    error, worth = {"mse": {"mean": 11_100.0, "ci95": 120.0}}, {"mean": 0.02}
    about = {"kind": "number", "test_groups": 9, "calibration": {}, "verdict": "", "notes": []}
    return {
        **about,
        "scores": {shots: dict.fromkeys(["pool", *members], error) for shots in counts},
        "weights": {shots: dict.fromkeys(members, 0.5) for shots in counts},
        "worth": {shots: dict.fromkeys(members, worth) for shots in counts},
    }


@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_members_of_a_pool_keep_their_names_in_a_narrow_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    members = ["boosting-summaries", "boosting-effects", "mixed-log"]
    show_pool(result_of(members, ["0", "1", "2", "5", "10", "20", "30"]))
    out = capsys.readouterr().out.partition("  in brackets")[0]
    assert "…" not in out
    assert max(map(len, out.splitlines()[:8])) <= int(columns)
    assert [out.count(f"  {name} ") for name in members] == [2, 2, 2]
    assert out.count("11,100") == (4 if columns == "60" else 6) * 4
    assert all(row in " ".join(out.split()) for row in ("0 rows", "1 row"))
