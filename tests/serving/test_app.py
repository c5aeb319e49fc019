"""The service from outside: what it answers, what it refuses, and that it never shows its inside."""

import json
import re

import pytest
from starlette.testclient import TestClient

from stmaml.serving.app import MOST_BYTES, MOST_WAITING, make_app
from stmaml.serving.guard import hosts_of, is_loopback
from stmaml.serving.kept import Kept
from stmaml.serving.schema import Refused
from stmaml.serving.service import Service
from tests.serving.sample import MeanServed, service_of

HOME = "http://127.0.0.1:8000"
SUPPORT = {"x": [[1, 2], [3, 4]], "y": [1.0, 3.0]}
QUERY = {"x": [[0, 0]]}


def client(service=None, *, host="127.0.0.1", token=None, home=HOME, **settings) -> TestClient:
    app = make_app(service or service_of(), hosts=hosts_of(host, 8000), token=token)
    return TestClient(app, base_url=home, **settings)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def asked() -> TestClient:
    return client()


def test_it_adapts_and_predicts_in_one_call(asked):
    answer = asked.post("/learners/mean/predict", json={"support": SUPPORT, "query": QUERY, "times": 2})
    assert answer.status_code == 200
    assert answer.json() == {"mean": [2.0, 2.0], "shots": 2}
    assert asked.post("/learners/mean/predict", json={"query": QUERY}).json() == {"mean": [0.0], "shots": 0}


def test_it_adapts_once_and_predicts_many_times(asked):
    made = asked.post("/learners/mean/adaptations", json={"support": SUPPORT})
    assert made.status_code == 201
    assert made.json()["shots"] == 2
    home = f"/learners/mean/adaptations/{made.json()['id']}"
    for _ in range(3):
        assert asked.post(f"{home}/predict", json={"query": QUERY}).json()["mean"] == [2.0]
    assert asked.delete(home).json() == {"forgotten": made.json()["id"]}
    assert asked.post(f"{home}/predict", json={"query": QUERY}).status_code == 404
    assert asked.delete(home).status_code == 404


def test_groups_are_predicted_together(asked):
    groups = [{"support": SUPPORT, "query": QUERY}, {"query": QUERY}]
    answer = asked.post("/learners/mean/batch", json={"groups": groups, "times": 2})
    assert answer.json() == {"groups": [{"mean": [2.0, 2.0], "shots": 2}, {"mean": [0.0, 0.0], "shots": 0}]}


def test_an_extra_question_is_answered_where_there_is_one(asked):
    assert asked.post("/learners/mean/shift", json={"by": 3}).json() == {"by": 3.0}
    assert asked.post("/learners/mean/turn", json={"by": 3}).status_code == 404


def test_what_can_be_read(asked):
    health = asked.get("/health").json()
    assert (health["status"], health["learners"], health["kept"]) == ("ok", 1, 0)
    assert asked.get("/version").json()["version"] == health["version"]
    listed = {"name": "mean", "title": "Means", "page": "curves", "method": "mean"}
    assert asked.get("/learners").json() == {"learners": [listed]}
    assert asked.get("/learners/mean").json()["card"].startswith("# A card")
    paths = asked.get("/openapi.json").json()["paths"]
    for path in ("predict", "batch", "adaptations", "adaptations/{id}/predict", "shift"):
        assert "post" in paths[f"/learners/mean/{path}"]
    assert "requestBody" in paths["/learners/mean/predict"]["post"]


def deep(levels: int) -> bytes:
    return b'{"query":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[]", 400, "must be an object"),
        (b"null", 400, "must be an object"),
        (b'{"query":{"x":[[NaN,1]]}}', 400, "got nan"),
        (b'{"query":{"x":[[Infinity,1]]}}', 400, "got inf"),
        (b'{"query":{"x":[[1e999,1]]}}', 400, "got inf"),
        (b'{"query":{"x":[["1",1]]}}', 400, "made of numbers"),
        (b'{"query":{"x":[[1]]}}', 400, "a list of 2 numbers"),
        (b'{"query":{"x":[]}}', 400, "nothing is asked"),
        (b'{"query":{"x":[[1,1]]},"times":9}', 400, "from 1 to 3"),
        (b'{"query":{"x":[[1,1]]},"tmies":1}', 400, "Did you mean 'times'"),
        (b'{"query":{"x":[' + b"[1,1]," * 60 + b"[1,1]]}}", 400, "at most 50 rows"),
        (b'{"query":{"x":[[' + b"1" * 500 + b",1]]}}", 400, "400 digits"),
        (b'{"query":{"x":[[99999999999999999999,1]]}}', 400, "beyond 64 bits"),
        (deep(500), 400, "brackets"),
        (deep(200_000), 400, "brackets"),
        (b" " * (MOST_BYTES + 1), 413, "too large"),
        (b'{"support":{"x":[],"y":[]},"query":{"x":[[1,1]]},"__proto__":{}}', 400, "no field '__proto__'"),
    ],
)
def test_a_bad_request_gets_a_sentence(asked, body, status, words):
    answer = asked.post("/learners/mean/predict", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


def test_a_body_without_a_stated_length_is_bounded_too(asked):
    def endless():
        for _ in range(MOST_BYTES // 1024 + 2):
            yield b" " * 1024

    answer = asked.post("/learners/mean/predict", content=endless(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_only_json_is_read(asked):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = asked.post("/learners/mean/predict", content=b"{}", headers={"content-type": kind})
        assert answer.status_code == 415


def test_unknown_addresses_and_verbs_get_a_sentence(asked):
    assert "There are: mean" in asked.post("/learners/men/predict", json={}).json()["error"]
    for answer in (asked.get("/nowhere"), asked.get("/page/../app.py"), asked.get("/page/nothing.js")):
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
    assert asked.put("/learners/mean/predict").status_code == 405
    assert asked.post("/").status_code == 405


def test_a_fault_inside_shows_nothing_of_it(asked, capsys):
    answer = asked.post("/learners/mean/predict", json={"support": {"x": [[0, 0]] * 13, "y": [0] * 13}, "query": QUERY})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    said = capsys.readouterr().err
    assert said == "stmaml: a request failed inside: RuntimeError: a secret of the inside\n"


def test_too_many_requests_at_once_are_told_to_wait():
    app = make_app(service_of(), hosts=hosts_of("127.0.0.1", 8000))
    desk = app.app.routes[3].endpoint.__self__  # type: ignore[attr-defined]
    desk._waiting = MOST_WAITING
    asked = TestClient(app, base_url=HOME)  # pyright: ignore[reportArgumentType]
    answer = asked.post("/learners/mean/predict", json={"query": QUERY})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert asked.get("/health").status_code == 200


# Who may ask.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1:9000", "127.0.0.1", "localhost.evil:8000", ""]
)
def test_another_name_for_this_machine_is_refused(asked, host):
    for path in ("/", "/learners", "/page/app.js"):
        assert asked.get(path, headers={"host": host}).status_code == 421
    assert asked.post("/learners/mean/predict", json={"query": QUERY}, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"])
def test_its_own_names_are_known(asked, host):
    assert asked.get("/learners", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9000", "http://127.0.0.1:8000.evil"]
)
def test_pages_of_others_are_refused(asked, origin):
    answer = asked.post("/learners/mean/predict", json={"query": QUERY}, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert asked.options("/learners/mean/predict", headers={"origin": origin}).status_code == 403


def test_its_own_page_may_ask(asked):
    same = {"origin": HOME, "sec-fetch-site": "same-origin"}
    assert asked.post("/learners/mean/predict", json={"query": QUERY}, headers=same).status_code == 200
    assert asked.get("/learners", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert asked.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link somewhere


def test_a_token_is_asked_for_where_there_is_one():
    asked = client(host="0.0.0.0", token="open-sesame", home="http://lab.example:8000")
    assert asked.get("/").status_code == 200
    assert asked.get("/health").status_code == 200
    for wrong in (
        {},
        {"authorization": "Bearer open"},
        {"authorization": "open-sesame"},
        {"authorization": "Bearer é"},
    ):
        headers = [(name.encode(), value.encode("latin-1")) for name, value in wrong.items()]
        answer = asked.get("/learners", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert asked.post("/learners/mean/predict", json={"query": QUERY}, headers=headers).status_code == 401
    right = {"authorization": "Bearer open-sesame"}
    assert asked.get("/learners", headers=right).status_code == 200
    assert asked.get("/openapi.json", headers=right).json()["security"] == [{"token": []}]


def test_this_machine_is_known_by_its_addresses():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "192.168.0.1", "::", "example.org", "")] == [False] * 5


# The page.


def test_the_page_asks_nobody_else(asked):
    page = asked.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    named = set(re.findall(r'(?:src|href)="([^"]+)"', page.text))
    for path in sorted(named - {"/openapi.json"}):
        assert asked.get(path).status_code == 200, path
    scripts = ["app", "api", "dom", "plot", "curves", "pixels", "years", "table"]
    for name in scripts:
        text = asked.get(f"/page/{name}.js").text
        assert asked.get(f"/page/{name}.js").headers["content-type"].startswith("text/javascript")
        assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", text) == []
        assert "innerHTML" not in text
        assert {found for found in re.findall(r'from "/page/(\w+)\.js"', text)} <= set(scripts)


# What is kept.


def test_adaptations_make_room_for_newer_ones():
    kept = Kept(most=2)
    adapted = MeanServed().adapt({"support": {"y": []}})
    first, second = kept.add("a", adapted), kept.add("a", adapted)
    kept.get("a", first)
    third = kept.add("a", adapted)
    assert (len(kept), kept.held) == (2, 200)
    with pytest.raises(Refused, match="made room for newer ones"):
        kept.get("a", second)
    assert kept.get("a", first) is adapted
    with pytest.raises(Refused):
        kept.get("b", third)


def test_what_is_kept_is_bounded_in_bytes():
    kept = Kept(most_bytes=250)
    small, large = MeanServed(size=100), MeanServed(size=300)
    for _ in range(5):
        kept.add("a", small.adapt({"support": {"y": []}}))
    assert (len(kept), kept.held) == (2, 200)
    with pytest.raises(Refused, match="too large to be kept"):
        kept.add("a", large.adapt({"support": {"y": []}}))


def test_the_document_is_json(asked):
    text = asked.get("/openapi.json").text
    assert json.loads(text)["openapi"] == "3.1.0"


def test_the_first_learner_is_served_before_the_others_are_compiled():
    service = Service.of([MeanServed("one"), MeanServed("two")])
    under_way = service.warm_up()
    next(under_way)
    assert {name for name, _ in service.compiled} == {"one"}
    next(under_way)
    assert {name for name, _ in service.compiled} == {"one", "two"}
    assert not service.ready
    list(under_way)
    assert service.ready
