"""How wide the commands print."""

import pytest

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
