"""What is sent out and how it is checked: files of the source package, pinned versions, CI, citation."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints"


def test_the_source_package_has_all_that_the_documents_name():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"CONTRIBUTING.md", "SECURITY.md", "studies", "tests", "docs", "Makefile"} <= set(included)
    assert [name for name in included if not (ROOT / name).exists()] == []


def pinned(path: Path) -> dict[str, str]:
    """The version of each package in a file of constraints or of digests."""
    lines = [line.split()[0] for line in path.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return {
        name.lower().replace("_", "-").split("[")[0]: version for name, version in (one.split("==") for one in lines)
    }


@pytest.mark.parametrize("name", ["py311.txt", "py312.txt", "py313.txt"])
def test_digests_are_of_the_versions_that_tests_are_known_to_pass_with(name):
    versions, hashed = pinned(CONSTRAINTS / name), pinned(CONSTRAINTS / f"hashed-{name}")
    assert {one: hashed[one] for one in versions if one in hashed} == {
        one: version for one, version in versions.items() if one in hashed
    }
    assert {"jax", "jaxlib", "equinox", "optax", "hatchling", "pytest", "ruff"} <= hashed.keys()
    text = (CONSTRAINTS / f"hashed-{name}").read_text()
    requirements = re.split(r"\n(?=[A-Za-z])", text.partition("make pins\n")[2])
    assert len(requirements) == len(hashed)
    assert [one for one in requirements if not re.search(r"--hash=sha256:[0-9a-f]{64}", one)] == []


@pytest.mark.skipif(not (ROOT / ".github").exists(), reason="a source package has no workflow")
def test_continuous_integration_and_commits_have_the_checks_of_a_developer():
    workflow, hooks = (ROOT / ".github/workflows/test.yml").read_text(), (ROOT / ".pre-commit-config.yaml").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    called = re.findall(r"run: make ([a-z-]+)", workflow)
    assert set(called) == {"test", "lowest", "dist"} <= targets
    assert "make test HASHED=1" in workflow
    assert re.search(r'python: \["3.11", "3.12", "3.13"\]', workflow)
    lint = re.search(r"\nlint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text())
    assert lint is not None
    checks = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in lint[1].splitlines()]
    assert re.findall(r"entry: \.venv/bin/(.*)", hooks) == checks


def test_what_is_cited_is_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
