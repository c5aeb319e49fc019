"""Files from their sources: in pieces that outlive a broken line, bounded, and checked before they are believed."""

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from stmaml.border.files import read_file
from stmaml.data.catalogue import Origin
from stmaml.errors import SourceError
from stmaml.progress import remark, tell

PIECE = 1 << 18
ATTEMPTS = 4
TIMEOUT = 60.0  # seconds without a byte
BROKEN = (OSError, http.client.HTTPException)  # what a line that breaks raises; HTTPError is among the former
NOT_SATISFIABLE = 416


class _Careful(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web addresses alone, and never from a safe line to an open one."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        check_scheme(newurl, safe=req.full_url.startswith("https:"))
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_scheme(url: str, *, safe: bool = False) -> None:
    """Refuses addresses that are not of the web; `safe` those without encryption too."""
    allowed = ("https",) if safe else ("https", "http")
    if urllib.parse.urlsplit(url).scheme not in allowed:
        raise Refused(
            f"the source sends on to {url[:100]}; expected an address of {' or '.join(allowed)}. Fetch by hand."
        )


class Refused(SourceError):
    """What no second attempt would mend."""


def opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """What asks web addresses, and no others: files and FTP are left out."""
    made = urllib.request.OpenerDirector()
    known = (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler)
    rest = (urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor, _Careful)
    for handler in (*handlers, *(kind() for kind in (*known, *rest))):
        made.add_handler(handler)
    return made


def fetch(origin: Origin, root: Path, web: urllib.request.OpenerDirector | None = None) -> str:
    """Brings a file to its place below `root` and gives its SHA-256, which is kept beside it.

    What an earlier attempt brought is gone on with. A wrong checksum leaves nothing behind."""
    check_scheme(origin.url)
    path = root / origin.path
    part = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    web = web or opener()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _go_on(origin, part, web)
            break
        except Refused:
            raise
        except BROKEN as fault:
            if attempt == ATTEMPTS or _final(fault):
                kept = f" {part.stat().st_size:,} bytes are kept: the same command goes on." if part.exists() else ""
                raise SourceError(f"{origin.url} could not be fetched ({fault}).{kept}") from None
            remark(f"the transfer broke off ({fault}); going on")
    _check(origin, part)
    os.replace(part, path)
    return record(path)


def _final(fault: BaseException) -> bool:
    """Whether a source has answered, and said no."""
    return isinstance(fault, urllib.error.HTTPError) and 400 <= fault.code < 500


def _go_on(origin: Origin, part: Path, web: urllib.request.OpenerDirector) -> None:
    """Adds what is missing to the part; http.client.HTTPException or OSError where the line breaks."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(origin.url, headers={"User-Agent": "stmaml", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = web.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == NOT_SATISFIABLE and have:
            error.close()
            return  # nothing is missing, or it is another file: the checksum tells
        raise
    with answer:
        have, total = _where(answer, have)
        if total > origin.most:
            raise Refused(f"{origin.url} has {total:,} bytes; expected at most {origin.most:,}. It is another file.")
        with part.open("ab" if have else "wb") as file:
            _copy(answer, file, origin, have, total)


def _where(answer: Any, have: int) -> tuple[int, int]:
    """From which byte on the answer goes, and how many bytes the whole has; 0 where that is not said."""
    length = int(answer.headers.get("Content-Length") or 0)
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0, length  # the source sends all of it again
    begin = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
    if begin != str(have):
        raise Refused(f"asked for bytes from {have:,} on, the source sent others. Remove the .part file and try again.")
    return have, have + length


def _copy(answer: Any, file: Any, origin: Origin, have: int, total: int) -> None:
    while piece := answer.read(PIECE):
        have += len(piece)
        if have > origin.most:
            raise Refused(f"{origin.url} is longer than {origin.most:,} bytes. It is another file.")
        file.write(piece)
        tell(f"fetching {Path(origin.path).name}", have, total or origin.most)
    if total and have < total:
        raise http.client.IncompleteRead(b"", total - have)


def _check(origin: Origin, part: Path) -> None:
    """Removes the part and raises SourceError where it is not what it should be."""
    if not origin.digest:
        remark(f"{origin.path}: no checksum is published; its SHA-256 is recorded beside it")
        return
    kind, _, wanted = origin.digest.partition(":")
    found = digest_of(part, kind)
    if found != wanted:
        part.unlink()
        words = f"its {kind} checksum is {found}; expected {wanted}. It was removed: try again"
        raise SourceError(f"{origin.url} did not arrive whole, or is another file ({words}, later or by hand).")


def digest_of(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file, `sha256` or `md5`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def record(path: Path) -> str:
    """Writes the SHA-256 of a file beside it, as sha256sum does, and gives it."""
    found = digest_of(path)
    path.with_name(f"{path.name}.sha256").write_text(f"{found}  {path.name}\n")
    return found


DIGEST_BYTES = 1 << 16  # more than a digest and a name take


def recorded(path: Path) -> str:
    """The SHA-256 that stands beside a file; empty if none does."""
    beside = path.with_name(f"{path.name}.sha256")
    return read_file(beside, DIGEST_BYTES).decode(errors="replace").split(" ")[0].strip() if beside.is_file() else ""
