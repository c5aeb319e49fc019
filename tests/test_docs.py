"""The documentation names only what exists, and the code on its pages works."""

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stmaml.benchmarks import BENCHMARKS, plain_multi
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, maml
from stmaml.nets.conv import Conv
from stmaml.recipes import RECIPES, Experiment
from stmaml.runs import Run
from stmaml.training import TrainConfig
from tests.picture_files import write_dataset

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "stmaml"
PAPER_MAP = ROOT / "docs" / "paper-map.md"
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUM_EQUATIONS = 34
NUM_ALGORITHM_LINES = 13

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"(?P<path>[\w.-]+(?:/[\w.-]+)*\.(?:py|json|md|toml)|(?:[\w.-]+/)+)(?::(?P<name>[\w.]+))?")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def find_file(path: str) -> Path | None:
    """A file as the map names it: below the package, or from the top of the repository."""
    return next((base / path for base in (PACKAGE, ROOT) if (base / path).exists()), None)


@cache
def names_in(file: Path) -> frozenset[str]:
    """Every class, function, field and variable of a file, with the names of what it stands in."""
    return frozenset(_names(ast.parse(file.read_text()), ""))


def _names(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield prefix + child.name
            yield from _names(child, f"{prefix}{child.name}.")
        else:
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield prefix + child.id
            yield from _names(child, prefix)


def is_broken(reference: str) -> bool:
    """Whether `path` or `path:name` does not exist."""
    match = REFERENCE.fullmatch(reference)
    assert match is not None
    file = find_file(match["path"])
    return file is None or (match["name"] is not None and match["name"] not in names_in(file))


def references() -> list[str]:
    """What the paper map says in code type that looks like a file, or like a name in one."""
    return [span for span in SPAN.findall(prose(PAPER_MAP)) if REFERENCE.fullmatch(span)]


def first_cells(heading: str) -> list[str]:
    """The first column of the table under a heading of the paper map."""
    section = prose(PAPER_MAP).split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_paper_map_names_only_what_exists():
    assert len(references()) > 100
    assert [reference for reference in references() if is_broken(reference)] == []


@pytest.mark.parametrize(
    "reference", ["inner.py:ascend", "nowhere.py", "methods/st_maml.py:STMAML.gamma", "methods/st_maml.py:q_z", "gone/"]
)
def test_a_wrong_name_in_the_paper_map_would_be_found(reference):
    assert is_broken(reference)


def test_paper_map_has_every_equation_and_line():
    assert first_cells("Equations") == [str(number) for number in range(1, NUM_EQUATIONS + 1)]
    assert first_cells("Algorithm 1") == [str(number) for number in range(1, NUM_ALGORITHM_LINES + 1)]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_page(name):
    """A page of its own, or one that names it in code type."""
    assert any(page.stem == name or f"`{name}`" in prose(page) for page in METHOD_PAGES)


@every_page
def test_relative_links_lead_somewhere(page):
    targets = [target.split("#")[0] for target in LINK.findall(prose(page)) if not re.match(r"\w+:|#", target)]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@every_page
def test_code_on_a_page_imports_only_what_exists(page):
    for language, block in FENCE.findall(page.read_text()):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stmaml"):
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@every_page
def test_a_page_adapts_single_groups_with_a_run_of_one_method(page):
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        if found := re.match(r" +stmaml predict (\S+) .*--save-adapted", line):
            fits = [fit for fit in lines[:number] if re.match(r" +stmaml fit .*--method \S+", fit)]
            assert any(fit.endswith(f"--run {found[1]}") for fit in fits), line


@pytest.fixture
def module(tmp_path, monkeypatch) -> Callable[[str, str], ModuleType]:
    """A module of the block of CONTRIBUTING.md that begins with these words, as the page has it put into a file."""

    def load(name: str, docstring: str) -> ModuleType:
        blocks = [block for _, block in FENCE.findall((ROOT / "CONTRIBUTING.md").read_text())]
        (code,) = [block for block in blocks if block.startswith(f'"""{docstring}')]
        path = tmp_path / f"{name}.py"
        path.write_text(code)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made

    return load


def register(monkeypatch, benchmark: str, method: str, tasks: Any, learner: Any, val_metric: str) -> None:
    """A recipe, trained for two steps."""
    training = TrainConfig(steps=2, tasks_per_batch=2, val_tasks=2, val_metric=val_metric)
    monkeypatch.setitem(
        RECIPES, (benchmark, method, "paper"), Experiment(benchmark, method, "paper", tasks, learner, training=training)
    )


def test_a_benchmark_added_as_contributing_says_makes_a_table(module, stmaml, monkeypatch, tmp_path):
    sines = module("sines", "Sines of unknown phase.")
    monkeypatch.setitem(BENCHMARKS, "sines", sines.Config)
    learner = maml.Config(hidden=(4,), inner=InnerLoop(inner_steps=1))
    register(monkeypatch, "sines", "maml", sines.Config(), learner, "mse")
    words = ("reproduce", "sines", "--budget", "smoke", "--steps", "2", "--out", tmp_path / "out")
    code, out, err = stmaml(*words)
    assert code == 0, err
    assert "report.md" in out
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    assert "## sines: noise 0.1, shots 5, query 20, 20 samples a task\n" in report
    assert "| maml " in report
    (summary,) = Run(tmp_path / "out" / "maml").scores().values()
    assert (summary["tasks"], summary["benchmark"]) == (50, "sines")
    assert {"mse", "mse_clean", "nll"} <= set(summary["metrics"])


def test_a_method_added_as_contributing_says_is_trained_and_evaluated_on_images(module, stmaml, monkeypatch, tmp_path):
    anil = module("anil", "ANIL:")
    write_dataset(tmp_path / "data" / "CUB_Bird", classes=(4, 3, 3), images=4)
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(METHODS, "anil", anil.Config)
    learner = anil.Config(conv=Conv(channels=4, conv_blocks=1), inner=InnerLoop(inner_steps=1))
    tasks = plain_multi.Config(data=str(tmp_path / "data"), image_size=8, ways=3, shots=1, query_per_class=2)
    register(monkeypatch, "plain-multi", "anil", tasks, learner, "accuracy")
    code, _, err = stmaml("train", "plain-multi", "--method", "anil", "--run", tmp_path / "run")
    assert code == 0, err
    code, out, err = stmaml("evaluate", tmp_path / "run", "--tasks", "4", "--samples", "1")
    assert code == 0, err
    assert "anil on plain-multi/datasets" in " ".join(out.split())
    (summary,) = Run(tmp_path / "run").scores().values()
    assert list(summary["metrics"]) == ["accuracy", "nll", "ece"]
    assert summary["norm"] == "batch"
