"""`stmaml serve` from the outside: what it refuses before it begins."""

import importlib.util
import socket

import pytest

from stmaml.cli.serve import Serve, listen, page_address


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines in, which needs a --token that they must know."),
        (["--host", "0.0.0.0", "--token", "short"], "--token must have at least 8 characters"),
        (["--port", "99999"], "--port must lie between 0 and 65535; got 99999."),
        (["nowhere"], "nowhere does not exist. 'stmaml train' and 'stmaml fit' make run folders"),
        (["pyproject.toml"], "pyproject.toml is a file, not the folder of a run"),
        (["src"], "src has no config.json"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(stmaml, words, said):
    code, out, err = stmaml("serve", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"stmaml: {said}")
    assert err.count("\n") == 1


def test_a_missing_package_is_named(stmaml, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "starlette" else found(name))
    code, _, err = stmaml("serve")
    install = "pip install '.[serve]' in the folder of the package"
    assert (code, err) == (2, f"stmaml: 'stmaml serve' needs the package starlette: {install}\n")


@pytest.mark.sockets
def test_a_port_that_is_taken_is_said(stmaml):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, _, err = stmaml("serve", "--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in err


@pytest.mark.sockets
def test_answers_do_not_wait_for_receipts():
    """Else each answer on a connection that is kept took 41 ms longer than its computing."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        answering, _ = listening.accept()
        with answering:
            assert answering.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_address_holds_the_token_where_it_is_not_sent():
    assert page_address(Serve(), 8000) == "http://127.0.0.1:8000/"
    assert page_address(Serve(host="::1", token="open-sesame"), 80) == "http://[::1]:80/#token=open-sesame"
