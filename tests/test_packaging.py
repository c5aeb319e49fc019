"""What is sent out: the files that README, CONTRIBUTING and SECURITY speak of are in the source package."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_source_package_has_all_that_the_documents_name():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"CONTRIBUTING.md", "SECURITY.md", "studies", "tests", "docs", "Makefile"} <= set(included)
    assert [name for name in included if not (ROOT / name).exists()] == []
