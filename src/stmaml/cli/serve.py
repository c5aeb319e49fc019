"""`stmaml serve`."""

import importlib.util
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from stmaml.cli.folders import check_run_folder
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.errors import SettingError
from stmaml.serving.guard import hosts_of, is_loopback
from stmaml.serving.opening import Source, open_all, shipped_sources
from stmaml.serving.service import Service

LEAST_TOKEN = 8  # characters
NEEDED = ("starlette", "uvicorn")


@dataclass(frozen=True)
class Serve:
    """Serve learners on this machine: a page to play with, and a JSON interface for programs.

    Without a run, the learners that come with the package."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs of 'stmaml train' or 'stmaml fit'; two of one kind stand side by side."""
    port: int = 8000
    """Port to listen on; 0 for any that is free."""
    host: str = "127.0.0.1"
    """Address to listen on; another one than this machine's own needs --token."""
    token: str | None = None
    """A word that requests must know."""
    data: str | None = None
    """Where the benchmark's files lie, if not where they lay in training."""
    open: bool = False
    """Open the page in a browser."""


def main(arguments: list[str]) -> None:
    """Opens the learners, compiles what they need first, and serves until it is stopped."""
    flags = parse(Serve, arguments, "stmaml serve")
    check(flags)
    listening = listen(flags.host, flags.port)
    console = plain_console()
    sources = [Source(folder) for folder in flags.runs] or shipped_sources()
    service = Service.of(open_all(sources, flags.data))
    console.print(f"getting ready: {', '.join(one.card.title for one in service.learners.values())}")
    programs = service.warm_up()
    next(programs)
    threading.Thread(target=_compile_rest, args=(programs,), daemon=True, name="programs").start()
    address = page_address(flags, listening.getsockname()[1])
    console.print(f"serving at {address} (Ctrl-C ends it)", soft_wrap=True)
    sys.stdout.flush()
    if flags.open:
        import webbrowser

        webbrowser.open(address)
    _serve(service, flags, listening)


def check(flags: Serve) -> None:
    """Refuses what cannot be served, or not safely."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        install = "pip install '.[serve]' in the folder of the package"
        raise SettingError(f"'stmaml serve' needs the package {missing[0]}: {install}")
    if not 0 <= flags.port < 2**16:
        raise SettingError(f"--port must lie between 0 and {2**16 - 1}; got {flags.port}.")
    if not is_loopback(flags.host) and flags.token is None:
        raise SettingError(f"--host {flags.host} lets other machines in, which needs a --token that they must know.")
    if flags.token is not None and (len(flags.token) < LEAST_TOKEN or not flags.token.isascii()):
        raise SettingError(f"--token must have at least {LEAST_TOKEN} characters, all of them ASCII.")
    for folder in flags.runs:
        check_run_folder(folder)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or a sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        why = error.strerror or str(error)
        raise SettingError(f"cannot listen on {host}, port {port} ({why}). Choose another with --port.") from None
    # Connections inherit it. Without, the body of an answer waits 40 ms for the receipt of its headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def page_address(flags: Serve, port: int) -> str:
    """Where the page is; a token stands behind #, which browsers keep to themselves."""
    host = f"[{flags.host}]" if ":" in flags.host else flags.host
    return f"http://{host}:{port}/" + ("" if flags.token is None else f"#token={flags.token}")


def _compile_rest(programs: Iterator[None]) -> None:
    for _ in programs:
        pass


def _serve(service: Service, flags: Serve, listening: socket.socket) -> None:
    import uvicorn

    from stmaml.serving.app import make_app

    app: Any = make_app(service, hosts=hosts_of(flags.host, listening.getsockname()[1]), token=flags.token)
    settings: Any = {"log_level": "error", "access_log": False, "server_header": False, "lifespan": "off"}
    settings |= {"ws": "none", "http": "h11", "loop": "asyncio", "limit_concurrency": 512, "timeout_keep_alive": 5}
    uvicorn.Server(uvicorn.Config(app, **settings)).run(sockets=[listening])
