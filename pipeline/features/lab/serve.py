"""`lab serve`: campaigns and the lab of a database over HTTP. It reads, and nothing that is asked of it can write.

The database is opened for reading only, there is no method but GET and HEAD, and what a browser may do with a page is
what its policy names. Without a token it listens on the loopback address alone, to requests that name it.
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from device_runner.errors import RunnerError
from device_runner.files import read_regular
from pipeline.campaign.store import Store, open_reading
from pipeline.core.errors import ConfigError, MissingError, missing_extra
from pipeline.features.lab.pages import (
    EVENTS,
    JSON,
    MOST_CAMPAIGNS,
    PAGES,
    NotServedError,
    ServedError,
    ServedPage,
    Shelf,
    error_media,
    error_page,
    known_campaign,
    progress_of,
    unknown_campaign,
)

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise missing_extra("serve", "starlette or uvicorn", "lab serve", error) from error

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "ORT_MOBILE_LAB_TOKEN"  # noqa: S105 # the variable's name
LEAST_TOKEN, MOST_TOKEN = 16, 1024
"""Characters of a token."""

MOST_STREAMS = 32
"""Event streams at once: each asks the database every `POLL_SECONDS`."""
WORKERS = 4
"""Threads that read the database."""
POLL_SECONDS, STEP_SECONDS, ALIVE_SECONDS, STREAM_SECONDS = 2.0, 0.25, 15.0, 3600.0
"""Between two looks at a campaign, at the client, between two signs of life; and the longest stream."""
HEADER_BYTES = 16 << 10
GRACE_SECONDS = 3
"""For answers that are being sent when the server is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many connections there may be, of a client's address and in all, and how long the server waits for them.

    `request_seconds` is for the whole head and for what is left of a body, however it trickles in; `taking_seconds`
    for a client that takes nothing of its answer.
    """

    of_address: int = 64
    connections: int = 128
    request_seconds: float = 10.0
    taking_seconds: float = 30.0


HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(:[0-9]{1,5})?")
"""A Host header: a name or an address, and a port."""

STRICT = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every answer; its policy comes with the page."""
NO_PAGE = "default-src 'none'; frame-ancestors 'none'"
CHALLENGE = {"www-authenticate": 'Basic realm="ort-mobile lab", charset="UTF-8"'}

_LOG_IN = "log in with it as the password; programs send `Authorization: Bearer TOKEN`"

PLAIN = {404: "There is no such page", 405: "Only GET and HEAD are served"}
"""HTTP status to what is said where nothing else was."""

STATUS = ((NotServedError, 404), (MissingError, 503))
"""Kind of error to HTTP status; others are 500."""

App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Desk:
    """What requests share: the open store, threads to read it, places for streams, and whether the server ends."""

    shelf: Shelf
    ending: Callable[[], bool]
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(WORKERS, "lab-serve"))
    streams: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_STREAMS))


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The token of a file, else of the environment, "" for none. Raises ConfigError for one that is too short."""
    where = TOKEN_VARIABLE if file is None else str(file)
    try:
        text = environment.get(TOKEN_VARIABLE, "") if file is None else read_regular(file, 64 << 10).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the token cannot be read", where=where, why=str(error), remedy=_NEW_TOKEN) from error
    token = text.strip()
    if not token and file is None:
        return ""
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "this is no good token", where=where,
            why=f"a token has {LEAST_TOKEN} to {MOST_TOKEN} printable ASCII characters and no space", remedy=_NEW_TOKEN,
        )  # fmt: skip
    return token


_NEW_TOKEN = "make one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE"  # noqa: S105 # a command


def serve(
    database: str, host: str, port: int, token: str, started: Callable[[str], None], limits: Limits | None = None
) -> None:
    """Serve until SIGINT or SIGTERM; `started` is called with the address when connections are accepted.

    Raises ConfigError for an address beyond this computer without a token, or one that cannot be used.
    """
    if not token and not _is_loopback(host):
        raise ConfigError(
            f"no token is given, and {host} is not an address of this computer alone", where="lab serve",
            why="anybody in the network could read all results",
            remedy=f"pass --token-file FILE or set {TOKEN_VARIABLE}, or leave out --host",
        )  # fmt: skip
    limits = limits or Limits()
    protocol = type("Bounded", (Bounded,), {"limits": limits})
    with open_reading(database) as store, _listening(host, port) as listener:
        app = make_app(store, token, lambda: bool(server.should_exit))
        config = uvicorn.Config(
            app, http=protocol, ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, limit_concurrency=limits.connections + 1,
            timeout_keep_alive=5, timeout_graceful_shutdown=GRACE_SECONDS, h11_max_incomplete_event_size=HEADER_BYTES,
        )  # fmt: skip
        server = uvicorn.Server(config)
        address = listener.getsockname()
        started(f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}/")
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            log.info("stopped")  # uvicorn has ended all connections, and raises the signal again


class Bounded(H11Protocol):  # type: ignore[misc] # the library has no types here
    """uvicorn's protocol with limits: it waits for ever for a request, and for who does not take its answer.

    Who comes when all places are taken gets that of the connection that has waited longest without a request: silence
    and trickling heads keep nobody out. Where all have requests, uvicorn says 503 to more.
    """

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Give it the place of another where all are taken."""
        super().connection_made(transport)
        self.silent_since = time.monotonic()
        peers = [peer for peer in self.connections if isinstance(peer, Bounded) and not peer.transport.is_closing()]
        neighbours = [peer for peer in peers if (peer.client or ("",))[0] == (self.client or ("",))[0]]
        if len(neighbours) > self.limits.of_address:
            self._longest_silent(neighbours).transport.abort()
        elif len(peers) > self.limits.connections:
            self._longest_silent(peers).transport.abort()
        self._wait()

    def _longest_silent(self, peers: list["Bounded"]) -> "Bounded":
        """`self` where all others have requests."""
        silent = [peer for peer in peers if peer is not self and peer._silent()]
        return min(silent, key=lambda peer: peer.silent_since, default=self)

    def _silent(self) -> bool:
        """Whether a request is waited for: its head, or what is left of the body of an answered one."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._end_after(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle what came, and wait for the rest."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        self.silent_since = time.monotonic()
        super().on_response_complete()  # begins with the next request where it was sent already
        self._wait()

    def pause_writing(self) -> None:
        """Wait until the client takes more of its answer."""
        super().pause_writing()
        self._end_after(self.limits.taking_seconds)

    def resume_writing(self) -> None:
        """Go on as before."""
        super().resume_writing()
        self._end_after(None)
        self._wait()

    def _wait(self) -> None:
        """Begin to wait for a request, or go on: what was sent of it does not lengthen the time."""
        if self.flow.write_paused:
            return
        if not self._silent():
            self._end_after(None)
        elif self._timer is None:
            self._end_after(self.limits.request_seconds)

    def _end_after(self, seconds: float | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(addresses[0][4][:2], family=addresses[0][0])
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}", where="lab serve", why=str(error),
            remedy="name an address of this computer and a free port with --host and --port; 0 finds one",
        ) from error  # fmt: skip


def make_app(store: Store, token: str, ending: Callable[[], bool]) -> App:
    """The ASGI application; it accepts the token alone where there is one, else requests that name the loopback."""
    desk = Desk(Shelf(store, has_token=bool(token)), ending)
    routes = [Route(page.path, partial(_answer, desk, page), methods=["GET"]) for page in PAGES]
    return _guarded(Starlette(routes=routes, exception_handlers={HTTPException: _refused}), token)


def _guarded(app: App, token: str) -> App:
    """`app` behind the token and the check of the host, with strict headers on every answer."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        async def strictly(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(STRICT)
                headers.setdefault("content-security-policy", NO_PAGE)
            await send(message)

        headers, path = Headers(scope=scope), scope["raw_path"].decode("ascii")
        scope = {**scope, "path": path}  # as it was sent: %2F is a part of an id, and no end of it
        named = HOST.fullmatch(headers.get("host", ""))
        if token and not hmac.compare_digest(_given(headers.get("authorization", "")).encode(), token.encode()):
            refusal = ServedError(error="The token is missing or wrong", remedy=_LOG_IN)
            await _error(path, 401, refusal, CHALLENGE)(scope, receive, strictly)
        elif not token and not (named and _is_loopback(named[1])):
            refusal = ServedError(error="This request is for another host", remedy="ask for 127.0.0.1 or localhost")
            await _error(path, 421, refusal)(scope, receive, strictly)
        else:
            await app(scope, receive, strictly)

    return guarded


def _given(authorization: str) -> str:
    """The token of an Authorization header: a bearer's, or the password of Basic, which browsers ask for."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2] if scheme.lower() == "basic" else ""
    except (binascii.Error, ValueError):
        return ""


async def _answer(desk: Desk, page: ServedPage, request: Request) -> Response | App:
    """The answer of a page; whatever goes wrong is a small one with the reason, and the log has the rest."""
    path = request.url.path
    try:
        asked = _asked(page, request)
        if page.make is None:
            return await _stream(desk, asked["campaign"], request)
        body = await _read(desk, partial(page.make, desk.shelf, **asked))
    except RunnerError as error:
        log.warning("%s: %s", path, error)
        status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
        return _error(path, status, ServedError(error=error.what, why=error.why, remedy=error.remedy))
    except HTTPException:
        raise
    except Exception as error:  # a page that fails must not end the server, nor show its inside
        log.error("%s: %s: %s", path, type(error).__name__, error)  # noqa: TRY400 # one line, as everywhere
        log.debug("%s", path, exc_info=True)
        return _error(path, 500, ServedError(error="Internal error", remedy="see the log of the server"))
    content = body if isinstance(body, str | bytes) else msgspec.json.encode(body)
    policy = NO_PAGE if page.media == JSON else f"{page.policy()}; frame-ancestors 'none'"
    return Response(content, media_type=page.media, headers={"content-security-policy": policy})


async def _read(desk: Desk, work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(desk.pool, work)


def _asked(page: ServedPage, request: Request) -> dict[str, Any]:
    """What a request names. Raises HTTPException for a parameter that the page does not have, or a wrong one."""
    given = request.query_params.multi_items()
    if unknown := [name for name, _ in given if name not in page.query]:
        raise HTTPException(400, f"there is no parameter {unknown[0]!r} here")
    if len(given) > 1:
        raise HTTPException(400, "a parameter is given twice")
    values: dict[str, Any] = {name: unquote(text) for name, text in request.path_params.items()}
    if "\0" in values.get("campaign", ""):  # PostgreSQL takes no such text, not even to say that it is not there
        raise unknown_campaign(values["campaign"])
    for name, text in given:
        if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_CAMPAIGNS):
            raise HTTPException(400, f"{name} is a number from 1 to {MOST_CAMPAIGNS}")
        values[name] = int(text)
    return values


async def _stream(desk: Desk, campaign: str, request: Request) -> App:
    record = await _read(desk, partial(known_campaign, desk.shelf.store, campaign))
    look = partial(progress_of, desk.shelf.store, record)
    await _read(desk, look)  # what fails now is an answer with its reason
    if desk.streams.locked():
        raise HTTPException(503, f"{MOST_STREAMS} event streams are open, the most at once", {"retry-after": "30"})
    await desk.streams.acquire()

    async def streamed(scope: Any, receive: Any, send: Any) -> None:
        try:
            await StreamingResponse(_events(desk, look, request), media_type=EVENTS)(scope, receive, send)
        finally:
            desk.streams.release()

    return streamed


async def _events(desk: Desk, look: Callable[[], Any], request: Request) -> AsyncIterator[bytes]:
    """Progress whenever it changes, until the client goes, the server ends or the stream is old: browsers come back."""
    sent, begun, spoken = None, time.monotonic(), time.monotonic()
    yield b"retry: 5000\n\n"
    while time.monotonic() - begun < STREAM_SECONDS:
        try:
            news = await _read(desk, look)
        except RunnerError as error:
            log.warning("%s: %s", request.url.path, error)
            return
        if news != sent:
            sent, spoken = news, time.monotonic()
            yield b"event: progress\ndata: %s\n\n" % msgspec.json.encode(news)
        elif time.monotonic() - spoken > ALIVE_SECONDS:
            spoken = time.monotonic()
            yield b": alive\n\n"
        for _ in range(round(POLL_SECONDS / STEP_SECONDS)):
            await asyncio.sleep(STEP_SECONDS)
            if desk.ending() or await request.is_disconnected():
                return


async def _refused(request: Request, error: Exception) -> Response:
    """The answer to what has no page, another method or a wrong parameter."""
    status, headers = getattr(error, "status_code", 500), getattr(error, "headers", None) or {}
    text = PLAIN.get(status) or str(getattr(error, "detail", error))
    return _error(request.url.path, status, ServedError(error=text), headers)


def _error(path: str, status: int, error: ServedError, headers: Mapping[str, str] | None = None) -> Response:
    media = error_media(path)
    content = msgspec.json.encode(error) if media == JSON else error_page(error)
    policy = {} if media == JSON else {"content-security-policy": f"{PAGES[0].policy()}; frame-ancestors 'none'"}
    return Response(content, status, {**policy, **(headers or {})}, media)
