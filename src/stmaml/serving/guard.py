"""Who may ask: only pages that this service sent itself, under a name of this machine, with the token if there is one.

A page of another site can send requests to 127.0.0.1 from the browser it is open in, and can make its own name point
there (DNS rebinding). The first has a foreign `Origin`, the second a foreign `Host`: both are refused."""

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
OPEN_PATHS = ("/", "/health", "/icon.svg")  # and what begins with /page/: nothing in them is anybody's


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_of(host: str, port: int) -> frozenset[str] | None:
    """The names under which the service may be asked; any where other machines may reach it, as the token decides."""
    if not is_loopback(host):
        return None
    shown = f"[{host}]" if ":" in host else host
    names = {"127.0.0.1", "localhost", "[::1]", shown}
    return frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())


@dataclass(frozen=True)
class Guard:
    """An ASGI application around another one."""

    app: App
    hosts: frozenset[str] | None
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what may be asked, and adds headers to all answers."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", [])}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in given]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        refusal = self.refusal(scope["method"], scope["path"], headers)
        if refusal is None:
            await self.app(scope, receive, sending)
            return
        status, words = refusal
        body = json.dumps({"error": words}).encode()
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 401:
            kind.append((b"www-authenticate", b"Bearer"))
        await sending({"type": "http.response.start", "status": status, "headers": kind})
        await sending({"type": "http.response.body", "body": body})

    def refusal(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and sentence for a request that may not be asked."""
        host = headers.get("host", "")
        if self.hosts is not None and host.lower() not in self.hosts:
            return 421, "This service answers under names of this machine only, such as localhost."
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return 403, "Requests from pages of other sites are refused."
        if _is_open(path):
            return None if method in ("GET", "HEAD") else (405, "This can only be read.")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "Requests from pages of other sites are refused."
        if self.token is not None and not _is_token(headers.get("authorization", ""), self.token):
            return 401, "This service needs its token: send the header 'Authorization: Bearer TOKEN'."
        return None


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/page/")


def _is_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {token}".encode())
