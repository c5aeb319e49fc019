"""The service on the network: routes, bodies that are bounded, sentences for all that goes wrong. Needs Starlette."""

import asyncio
import functools
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from importlib import resources
from importlib.metadata import version
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from stmaml.border.json_text import parse_json
from stmaml.errors import StmamlError
from stmaml.serving.guard import Guard
from stmaml.serving.openapi import document
from stmaml.serving.schema import Json, Refused
from stmaml.serving.service import Service

MOST_BYTES = 1 << 20  # of a request
MOST_WAITING = 128  # requests that wait for others
AT_ONCE = 2  # requests that are computed side by side
BODY_SECONDS = 10.0  # for a request to arrive
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_log = logging.getLogger("stmaml.serving")


def make_app(service: Service, *, hosts: frozenset[str] | None, token: str | None = None) -> Guard:
    """The application, behind its guard."""
    return Guard(_Desk(service, token is not None).application(), hosts, token)


def page_files() -> dict[str, bytes]:
    """The files of the page by name, read once."""
    folder = resources.files("stmaml").joinpath("serving", "page")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in KINDS}


class _Desk:
    """Takes requests, has them worked on in threads, a few at a time, and sends answers."""

    def __init__(self, service: Service, has_token: bool):
        self._service, self._has_token = service, has_token
        self._files = page_files()
        self._waiting = 0

    @functools.cached_property
    def _limiter(self) -> CapacityLimiter:
        return CapacityLimiter(AT_ONCE)  # made inside the event loop

    def application(self) -> Starlette:
        """All routes."""
        one = "/learners/{name}"
        routes = [
            Route("/", self._file_named("index.html")),
            Route("/icon.svg", self._file_named("icon.svg")),
            Route("/page/{file}", self._page),
            Route("/health", self._health),
            Route("/version", self._version),
            Route("/openapi.json", self._openapi),
            Route("/learners", self._listing),
            Route(one, self._about),
            Route(f"{one}/adaptations", self._adapt, methods=["POST"]),
            Route(f"{one}/adaptations/{{number}}", self._forget, methods=["DELETE"]),
            Route(f"{one}/adaptations/{{number}}/predict", self._predict_kept, methods=["POST"]),
            Route(f"{one}/{{what}}", self._ask, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _http_problem, Exception: _problem})

    # The page.

    def _file_named(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def give(request: Request) -> Response:
            return Response(self._files[name], media_type=KINDS[name.rpartition(".")[2]])

        return give

    async def _page(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in self._files:
            return _said({"error": "there is no such file."}, 404)
        return Response(self._files[name], media_type=KINDS[name.rpartition(".")[2]])

    # What can be read.

    async def _health(self, request: Request) -> Response:
        status = "ok" if self._service.ready else "warming up"
        counts = {"learners": len(self._service.learners), "kept": len(self._service.kept), "waiting": self._waiting}
        return _said({"status": status, "version": version("stmaml"), **counts})

    async def _version(self, request: Request) -> Response:
        return _said({"version": version("stmaml")})

    async def _openapi(self, request: Request) -> Response:
        return _said(document(self._service, version("stmaml"), token=self._has_token))

    async def _listing(self, request: Request) -> Response:
        return _said(self._service.listing())

    async def _about(self, request: Request) -> Response:
        return await self._answered(lambda: self._service.about(request.path_params["name"]))

    # What is computed.

    async def _adapt(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await self._worked(request, lambda body: self._service.adapt(name, body), 201)

    async def _predict_kept(self, request: Request) -> Response:
        name, number = request.path_params["name"], request.path_params["number"]
        return await self._worked(request, lambda body: self._service.predict_kept(name, number, body))

    async def _ask(self, request: Request) -> Response:
        name, what = request.path_params["name"], request.path_params["what"]
        usual = {"predict": self._service.predict, "batch": self._service.batch}
        act = usual.get(what, lambda name, body: self._service.extra(name, what, body))
        return await self._worked(request, lambda body: act(name, body))

    async def _forget(self, request: Request) -> Response:
        name, number = request.path_params["name"], request.path_params["number"]
        return await self._answered(lambda: self._service.forget(name, number))

    async def _worked(self, request: Request, act: Callable[[Any], Json], status: int = 200) -> Response:
        """The answer to a body, worked out in a thread; a sentence where too many wait."""
        try:
            raw = await _body(request)
        except Refused as refusal:
            return _refusal(refusal)
        return await self._answered(lambda: act(_parsed(raw)), status)

    async def _answered(self, act: Callable[[], Json], status: int = 200) -> Response:
        if self._waiting >= MOST_WAITING:
            return _refusal(Refused("too many requests at once. Ask again soon.", 503, 1))
        self._waiting += 1
        try:
            return await anyio.to_thread.run_sync(lambda: _attempt(act, status), limiter=self._limiter)
        finally:
            self._waiting -= 1


def _attempt(act: Callable[[], Json], status: int) -> Response:
    """The answer, or a sentence: whatever happened inside stays inside."""
    try:
        return _said(act(), status)
    except Refused as refusal:
        return _refusal(refusal)
    except StmamlError as error:
        return _said({"error": str(error)}, 400)
    except Exception as error:
        return _inside(error)


async def _body(request: Request) -> bytes:
    """The whole body, if it is JSON by its header and not too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("send the request as JSON, with the header 'Content-Type: application/json'.", 415)
    try:
        return await asyncio.wait_for(_bounded(request), BODY_SECONDS)
    except TimeoutError:
        raise Refused("the request took too long to arrive.", 408) from None
    except ClientDisconnect:
        raise Refused("the request broke off.", 400) from None


async def _bounded(request: Request) -> bytes:
    too_large = Refused(f"the request is too large; expected at most {MOST_BYTES:,} bytes.", 413)
    stated = request.headers.get("content-length", "0")
    if not (stated.isascii() and stated.isdigit() and len(stated) <= 20 and int(stated) <= MOST_BYTES):
        raise too_large
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MOST_BYTES:
            raise too_large
    return bytes(found)


def _parsed(raw: bytes) -> Any:
    try:
        return parse_json(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request is not JSON: {str(error)[:200]}.") from None


def _said(content: Json, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), status, headers, "application/json")


def _refusal(refusal: Refused) -> Response:
    wait = None if refusal.wait is None else {"retry-after": str(refusal.wait)}
    return _said({"error": str(refusal)}, refusal.status, wait)


def _inside(error: Exception) -> Response:
    """A fault of the program: told to whoever runs it, in a line; nothing of it to whoever asked."""
    print(f"stmaml: a request failed inside: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
    _log.debug("a request failed inside", exc_info=error)
    return _said({"error": "something failed inside the service; what it was stands where it was started."}, 500)


async def _problem(request: Request, error: Exception) -> Response:
    return _inside(error)


async def _http_problem(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: "there is no such address; /openapi.json has all there are.", 405: "this address is not asked so."}
    return _said({"error": words.get(status, "the request cannot be answered.")}, status)
