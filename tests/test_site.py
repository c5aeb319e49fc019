"""The documentation as a site: its code runs, its commands are understood, and every page is reached."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sklearn

import stmaml as package
from stmaml import cli
from stmaml.cli.parsing import parse
from stmaml.exporting.files import write_export
from stmaml.exporting.programs import Wanted, of_table
from stmaml.tables.model import fit_frame
from tests.face_files import faces
from tests.table_data import lines, quick

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
FOR_READERS = [ROOT / "README.md", DOCS / "index.md", DOCS / "choosing.md", *TUTORIALS, *REFERENCE]
SLOW = ("export", "own-images", "own-method", "own-table", "own-tasks", "predictions", "tables")  # they compile much
README_LINES = 120
COLUMNS = 100

PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    (?:[A-Z_]+=\S+ )?stmaml ((?:.*\\\n)*.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.stem


def write_faces() -> None:
    faces((6, 6, 6)).write(Path("faces"))


def write_sales() -> None:
    """Tables of shops with dates and campaigns, as the page on tables has them."""
    days = pl.date_range(pl.date(2024, 3, 4), pl.date(2024, 3, 17), eager=True).cast(str).to_list()
    for name, shops in {"sales": 24, "known": 1, "ask": 1}.items():
        frame = lines(shops, len(days), prefix=name).rename({"y": "sold"})
        campaign = pl.when(pl.col("x") > 0).then(pl.lit("yes")).otherwise(pl.lit("no"))
        dated = frame.with_columns(pl.Series("date", days * shops), campaign.alias("campaign"))
        dated.drop("x").write_csv(f"{name}.csv")


def write_shops() -> None:
    """An exported learner, and rows for it."""
    write_export(of_table(fit_frame(lines(24, 16), quick(20)), Wanted()), Path("shops.onnx"), "cnp")
    rows = lines(1, 12, seed=9)
    rows.head(5).write_csv("new.csv")
    rows.tail(7).write_csv("ask.csv")


FILES: dict[str, Callable[[], None]] = {
    "celeba": write_faces,
    "export": write_shops,
    "predictions": lambda: None,
    "tables": write_sales,
}
"""Pages beside the tutorials that have blocks of Python, and what makes the files that these read."""


def run_blocks(page: Path) -> dict[str, Any]:
    """What a page's blocks of Python leave behind, run one after the other as a reader would."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    for number, block in enumerate(PYTHON.findall(page.read_text())):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    return names


def marked(page: Path) -> Any:
    return pytest.param(page, marks=pytest.mark.slow if page.stem in SLOW else ())


@pytest.mark.parametrize("page", [marked(page) for page in TUTORIALS], ids=name_of)
def test_the_code_of_a_tutorial_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    run_blocks(page)


@pytest.mark.parametrize("page", [marked(DOCS / f"{name}.md") for name in FILES], ids=name_of)
def test_the_code_of_a_page_runs_on_files_like_its_own(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    FILES[page.stem]()
    with sklearn.config_context():  # a block may change it
        run_blocks(page)


def test_no_page_has_code_that_is_not_run():
    with_code = {page for page in DOCS.rglob("*.md") if PYTHON.search(page.read_text())}
    assert with_code <= {*TUTORIALS, *(DOCS / f"{name}.md" for name in FILES)}


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prediction = run_blocks(ROOT / "README.md")["prediction"]
    assert (prediction.std > 0).all()


class Understood(Exception):
    """Ends a command once its words are settings."""


def commands(pages: Iterable[Path]) -> set[str]:
    """What pages have one type; words in brackets are taken as given, and dots as nothing."""
    found = (COMMAND.findall(FENCED.sub("", page.read_text())) for page in pages)
    return {re.sub(r"[\[\]]|\\\n|\.\.\.", "", words) for some in found for words in some}


OFTEN_READ = sorted(commands(FOR_READERS))
SELDOM_READ = sorted(commands(DOCS.rglob("*.md")) - set(OFTEN_READ))


@pytest.mark.parametrize(
    "words", [*OFTEN_READ, *(pytest.param(words, marks=pytest.mark.slow) for words in SELDOM_READ)]
)
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
    listed = re.findall(r"^::: ([\w.]+)$", "\n".join(page.read_text() for page in REFERENCE), re.MULTILINE)
    homes = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in listed}
    assert set(homes) == set(package.__all__)
    for name, home in homes.items():
        assert getattr(importlib.import_module(home), name) is getattr(package, name)


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r": ([\w/-]+\.md)$", settings, re.MULTILINE))
    at_the_top = {"contributing.md", "changelog.md", "security.md"}
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | at_the_top == named


def test_every_shipped_learner_is_on_the_page_of_trained_learners():
    page = (DOCS / "pretrained.md").read_text()
    assert all(f"../src/stmaml/pretrained/{name}/card.md" in page for name in package.pretrained_names())


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
        pytest.skip("mkdocs is not installed; pip install '.[docs]'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    shown = (tmp_path / "pretrained.html").read_text()
    assert all(f'id="{name}"' in shown for name in package.pretrained_names())
    pages = "".join(page.read_text() for page in tmp_path.rglob("*.html"))
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?:', pages) == []
