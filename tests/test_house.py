"""What the tests themselves may do, and what is said about the package in several places."""

import ast
import re
import socket
import tomllib
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
IMPORTS = ast.Import | ast.ImportFrom


def test_no_test_reaches_for_another_machine():
    with socket.socket() as one, pytest.raises(AssertionError, match="tests need no network"):
        one.connect(("127.0.0.1", 9))
    with pytest.raises(AssertionError, match="tried to look up"):
        socket.create_connection(("localhost", 9))


def test_sockets_inside_this_machine_are_left_alone(tmp_path):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))


def settings() -> dict:
    return tomllib.loads((HOME / "pyproject.toml").read_text())


def test_the_citation_has_the_version_of_the_package():
    text = (HOME / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", text, re.MULTILINE) == [settings()["project"]["version"]]


def test_the_lowest_versions_are_those_that_are_promised():
    lines = (HOME / "constraints" / "lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    promised = dict(one.split(">=") for one in settings()["project"]["dependencies"])
    assert [name for name, version in promised.items() if not f"{pinned[name]}.".startswith(f"{version}.")] == []


def test_no_variable_of_a_comprehension_is_named_like_a_function_that_is_called_beside_it():
    # Python 3.12 takes the one for the other where both stand in comprehensions of one function.
    found = []
    for path in sorted((HOME / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name for one in ast.walk(tree) if isinstance(one, IMPORTS) for alias in one.names
        }
        known = imported | {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
        for one in ast.walk(tree):
            if isinstance(one, ast.FunctionDef):
                parts = list(ast.walk(one))
                loops = [
                    name for part in parts if isinstance(part, ast.comprehension) for name in ast.walk(part.target)
                ]
                bound = {name.id for name in loops if isinstance(name, ast.Name)}
                calls = {
                    part.func.id for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
                }
                found += [f"{path.name}:{one.lineno} {name}" for name in bound & calls & known]
    assert found == []
