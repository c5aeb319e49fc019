"""The documentation as a site: its code runs, its commands are understood, and every page is reached."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stmaml as package
from stmaml import cli
from stmaml.cli.parsing import parse

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
FOR_READERS = [ROOT / "README.md", DOCS / "index.md", DOCS / "choosing.md", *TUTORIALS, *(DOCS / "reference").glob("*.md")]
SLOW = ("own-images", "own-tasks")  # they train for longer than a quick test may take
README_LINES = 110
COLUMNS = 100

PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    (?:[A-Z_]+=\S+ )?stmaml (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.stem


def run_blocks(page: Path) -> dict[str, Any]:
    """What a page's blocks of Python leave behind, run one after the other as a reader would."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    for number, block in enumerate(PYTHON.findall(page.read_text())):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    return names


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow if p.stem in SLOW else ()) for p in TUTORIALS], ids=name_of
)
def test_the_code_of_a_tutorial_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    run_blocks(page)


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prediction = run_blocks(ROOT / "README.md")["prediction"]
    assert (prediction.std > 0).all()


class Understood(Exception):
    """Ends a command once its words are settings."""


def commands() -> Iterator[str]:
    """The lines of pages for readers that call the command; words in brackets are taken as given."""
    for page in FOR_READERS:
        for words in COMMAND.findall(FENCED.sub("", page.read_text())):
            yield re.sub(r"[\[\]]", "", words)


@pytest.mark.parametrize("words", sorted(set(commands())))
def test_a_command_on_a_page_is_understood(words, monkeypatch):
    command, *arguments = [word for word in shlex.split(words, comments=True) if word != "--help"]
    assert command in cli.COMMANDS
    module = importlib.import_module(f"stmaml.cli.{command}")

    def understand(*given: Any, **named: Any) -> None:
        parse(*given, **named)
        raise Understood

    monkeypatch.setattr(module, "parse", understand)
    with pytest.raises(Understood):
        module.main(arguments)


def test_the_reference_has_every_public_name():
    listed = re.findall(r"^::: ([\w.]+)$", "\n".join(p.read_text() for p in (DOCS / "reference").glob("*.md")), re.M)
    homes = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in listed}
    assert set(homes) == set(package.__all__)
    for name, home in homes.items():
        assert getattr(importlib.import_module(home), name) is getattr(package, name)


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r": ([\w/-]+\.md)$", settings, re.MULTILINE))
    at_the_top = {"contributing.md", "changelog.md", "security.md"}
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | at_the_top == named


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize("page", FOR_READERS, ids=name_of)
def test_prose_for_readers_is_wrapped(page):
    prose = FENCED.sub("", page.read_text()).splitlines()
    free = ("|", "    ", "!", "#")  # tables, commands, pictures and headings are as long as they are
    assert [line for line in prose if len(line) > COLUMNS and not line.startswith(free)] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link(tmp_path):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed; pip install 'stmaml[docs]'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    pages = "".join(page.read_text() for page in tmp_path.rglob("*.html"))
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?:', pages) == []
