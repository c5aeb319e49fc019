"""Tests open no socket, unless they are marked for it, and then within this machine alone."""

import socket

import pytest


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_a_socket_is_refused(host):
    with socket.socket() as plug:
        for use in (plug.connect, plug.connect_ex, plug.bind):
            with pytest.raises(AssertionError, match="tests need no network"):
                use((host, 9))
    with pytest.raises(AssertionError, match="look up"):
        socket.create_connection((host, 9))


@pytest.mark.sockets
def test_a_marked_test_reaches_this_machine_and_no_other():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as plug:
        plug.sendall(b"here")
        with server.accept()[0] as other:
            assert other.recv(4) == b"here"
    with socket.socket() as plug, pytest.raises(AssertionError, match=r"192\.0\.2\.1"):
        plug.connect(("192.0.2.1", 9))
