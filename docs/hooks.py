"""Makes a site of pages that are written to be read in the repository: their links lead to its other files too."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = "docs"
# Pages that stand at the top of the repository, and their names in the site.
TOP = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
ADDRESSES = {path: address for address, path in TOP.items()}
CARDS = "pretrained.md"  # below it, the site has the cards that it links to
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """The site's files, with the pages at the top of the repository."""
    for path, address in TOP.items():
        files.append(File.generated(config, address, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A page whose links to pages lead to them in the site, and whose links to other files are names in plain text."""
    address = page.file.src_uri
    place = ADDRESSES.get(address, f"{DOCS}/{address}")
    markdown += cards() if address == CARDS else ""
    return LINK.sub(lambda link: _relinked(link, place, address), markdown)


def cards() -> str:
    """All model cards, their headings a level lower."""
    found = sorted((ROOT / "src/stmaml/pretrained").glob("*/card.md"))
    return "\n" + "\n".join(re.sub(r"^#", "##", card.read_text(), flags=re.MULTILINE) for card in found)


def _relinked(link: re.Match[str], place: str, address: str) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    if ":" in target:
        return link[0]
    path = normpath(str(PurePosixPath(place).parent / target))
    goal = TOP.get(path) or (path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else None)
    if goal is not None:
        return f"[{text}]({relpath(goal, str(PurePosixPath(address).parent))}{anchor})"
    return text if (ROOT / path).exists() else link[0]  # a broken one is left for the strict build to refuse
