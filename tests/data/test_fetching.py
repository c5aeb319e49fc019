"""Files from a source that breaks off, lies or sends elsewhere: a web server on a socket inside this machine."""

import hashlib
import http.client
import http.server
import json
import lzma
import socket
import socketserver
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stmaml.data import checking, fetching
from stmaml.data.catalogue import COLLECTIONS, Collection, Origin, collection
from stmaml.data.checking import check
from stmaml.data.fetching import Refused, fetch, opener, recorded
from stmaml.errors import SettingError, SourceError
from stmaml.progress import listening

CONTENT = bytes(range(256)) * 4000
ORIGIN = Origin("digits/one.gz", "http://source/one.gz", 2 << 20, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")


@dataclass
class Source:
    """What the server does, and what it was asked."""

    web: urllib.request.OpenerDirector
    breaks: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers breaks off."""
    ranges: bool = True
    sends_to: str = ""
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def source(tmp_path_factory) -> Iterator[Source]:
    path = str(tmp_path_factory.mktemp("s") / "s")

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(path)

    class Inside(urllib.request.HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(Connection, req)  # pyright: ignore[reportArgumentType]

    found = Source(opener(Inside()))

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            found.asked.append(wanted)
            if found.sends_to:
                self.send_response(302)
                self.send_header("Location", found.sends_to)
                self.end_headers()
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and found.ranges else 0
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            most = found.breaks.pop(0) if found.breaks else len(CONTENT)
            self.wfile.write(CONTENT[start : start + most])

        def log_message(self, format: str, *args: Any) -> None: ...

        def address_string(self) -> str:
            return "inside"

    with socketserver.ThreadingUnixStreamServer(path, Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_a_broken_transfer_is_gone_on_with(source, tmp_path):
    source.breaks = [300_000, 200_000]
    told: list[Any] = []
    with listening(told.append):
        digest = fetch(ORIGIN, tmp_path, source.web)
    assert (tmp_path / ORIGIN.path).read_bytes() == CONTENT
    assert source.asked == [None, "bytes=300000-", "bytes=500000-"]
    assert digest == hashlib.sha256(CONTENT).hexdigest() == recorded(tmp_path / ORIGIN.path)
    assert any("broke off" in one.what for one in told)
    assert max(one.done for one in told) == len(CONTENT)


def test_what_a_given_up_transfer_brought_is_kept_for_the_next(source, tmp_path):
    source.breaks = [1000] * fetching.ATTEMPTS
    with pytest.raises(SourceError, match=r"4,000 bytes are kept: the same command goes on"):
        fetch(ORIGIN, tmp_path, source.web)
    assert not (tmp_path / ORIGIN.path).exists()
    assert check("one", Collection("completion", "digits", "", (ORIGIN,)), tmp_path)[0].state == "missing"
    fetch(ORIGIN, tmp_path, source.web)
    assert source.asked[-1] == "bytes=4000-"
    assert (tmp_path / ORIGIN.path).read_bytes() == CONTENT


def test_a_source_that_cannot_go_on_begins_again(source, tmp_path):
    source.breaks, source.ranges = [300_000], False
    fetch(ORIGIN, tmp_path, source.web)
    assert (tmp_path / ORIGIN.path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(source, tmp_path):
    wrong = replace(ORIGIN, digest="md5:" + "0" * 32)
    with pytest.raises(SourceError, match=r"its md5 checksum is \w{32}; expected 0{32}"):
        fetch(wrong, tmp_path, source.web)
    assert list((tmp_path / "digits").iterdir()) == []


def test_a_file_that_is_too_long_is_refused(source, tmp_path):
    with pytest.raises(Refused, match="has 1,024,000 bytes; expected at most 1,000"):
        fetch(replace(ORIGIN, most=1000), tmp_path, source.web)
    assert len(source.asked) == 1


@pytest.mark.parametrize("elsewhere", ["file:///etc/passwd", "ftp://source/one.gz", "gopher://source"])
def test_the_source_may_not_send_to_other_than_the_web(elsewhere, source, tmp_path):
    source.sends_to = elsewhere
    with pytest.raises((Refused, SourceError)):
        fetch(ORIGIN, tmp_path, source.web)
    assert not (tmp_path / ORIGIN.path).exists()


def test_a_safe_line_is_not_left_for_an_open_one():
    with pytest.raises(Refused, match="expected an address of https"):
        fetching.check_scheme("http://source/one.gz", safe=True)
    fetching.check_scheme("https://source/one.gz", safe=True)


def test_without_a_published_checksum_the_digest_is_recorded_and_then_checked(source, tmp_path):
    unknown = replace(ORIGIN, path="gsod/1999.tar.gz", digest="")
    fetch(unknown, tmp_path, source.web)
    wanted = Collection("weather", "gsod", "", (unknown,))
    assert check("x", wanted, tmp_path)[0].state == "intact"
    (tmp_path / unknown.path).write_bytes(CONTENT[:-1])
    assert check("x", wanted, tmp_path)[0].state == "damaged"


# Checks.


def test_checks_tell_files_apart(tmp_path):
    known = Collection("completion", "digits", "", (ORIGIN,))
    assert check("mnist", known, tmp_path)[0].words == "stmaml data fetch mnist"
    place = tmp_path / ORIGIN.path
    place.parent.mkdir()
    place.write_bytes(CONTENT)
    assert check("x", known, tmp_path)[0].state == "intact"
    place.write_bytes(CONTENT[:10])
    assert check("x", known, tmp_path)[0].state == "other"
    assert check("x", known, tmp_path, deep=False)[0].state == "present"


def test_an_archive_that_is_cut_short_is_damaged(tmp_path):
    folder = tmp_path / "gsod"
    folder.mkdir()
    (tmp_path / "a.csv").write_bytes(CONTENT)
    with tarfile.open(folder / "2019.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "a.csv", arcname="a.csv")
    (found,) = check("gsod-2019", COLLECTIONS["gsod-2019"], tmp_path)
    assert (found.state, found.words.split(",")[0]) == ("present", "1 files")
    whole = (folder / "2019.tar.xz").read_bytes()
    lzma.decompress(whole)
    (folder / "2019.tar.xz").write_bytes(whole[: len(whole) // 2])
    assert check("gsod-2019", COLLECTIONS["gsod-2019"], tmp_path)[0].state == "damaged"


def test_the_table_of_sources_is_sound():
    for name, wanted in COLLECTIONS.items():
        assert wanted.licence
        assert wanted.files or wanted.by_hand
        for origin in wanted.files:
            assert origin.path.startswith(wanted.folder)
            kind, _, digest = origin.digest.partition(":")
            assert not digest or len(digest) == hashlib.new(kind).digest_size * 2, name
            assert digest or origin.url.startswith("https:"), "what has no checksum comes over a safe line"
    assert collection("gsod-1999").files[0].url.endswith("/1999.tar.gz")
    with pytest.raises(SettingError, match="no data set 'mnit'"):
        collection("mnit")


def test_the_commands(stmaml, tmp_path, monkeypatch):
    monkeypatch.delenv("STMAML_DATA", raising=False)
    assert "name one with --data" in stmaml("data", "check")[2]
    code, out, _ = stmaml("data", "check", "--data", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["data"]["mnist"][0]["state"] == "missing"
    code, out, err = stmaml("data", "fetch", "mnist", "--data", tmp_path)
    assert (code, "CC BY-SA" in out, "--yes" in err) == (2, True, True), "first the licence, then consent"
    assert "by way of a browser" in stmaml("data", "fetch", "celeba", "--data", tmp_path, "--yes")[2]
    assert stmaml("data")[0] == 2
    assert checking.missing("weather", tmp_path) == {
        name: f"stmaml data fetch {name}" for name in ("gsod-2019", "gsod-2022")
    }
