"""The connections of `lab serve`, bounded: heads, bodies, time, their number, and who takes nothing of an answer.

tornado's server bounds what is read of each request. Places and the time for answers are bounded here.
"""

import asyncio
import contextlib
import http
import signal
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pipeline.core import errors as core_errors

try:
    from tornado import httputil
    from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
    from tornado.httpserver import HTTPServer
    from tornado.iostream import IOStream, StreamClosedError
except ImportError as error:
    raise core_errors.missing_extra("serve", "tornado", "lab serve", error) from error

REQUEST_BYTES, REQUEST_SECONDS, MOST_FIELDS = 16 << 10, 10.0, 100
"""The longest head of a request, and the longest body; how long each is waited for, however it trickles in; and how
many header fields it may have."""

ANSWER_SECONDS, ANSWER_RATE = 30.0, 16 << 10
"""How long a client may take to take an answer, and for each so many bytes of it a second more."""

OF_ADDRESS, CONNECTIONS = 64, 128
"""How many connections there may be, of a client's address and in all."""

GRACE_SECONDS = 3
"""For answers that are being sent when the server is stopped."""

STRICT = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every answer; its policy comes with the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request is answered: content, or a stream that may be cut off, and is then closed."""

    status: int = 200
    media: str
    content: bytes | AsyncGenerator[bytes, None]
    policy: str = "default-src 'none'"
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self) -> httputil.HTTPHeaders:
        """Its headers."""
        charset = "; charset=utf-8" if self.media.startswith("text/") else ""
        length = {"content-length": str(len(self.content))} if isinstance(self.content, bytes) else {}
        return httputil.HTTPHeaders(
            {
                **STRICT,
                "date": httputil.format_timestamp(time.time()),
                "content-type": self.media + charset,
                "content-security-policy": f"{self.policy}; frame-ancestors 'none'",
                **length,
                **self.headers,
            }
        )


Respond = Callable[[str, str, Mapping[str, str]], Awaitable[Answer]]
"""What gives the answer to a request, whatever goes wrong: of its method, its path and query, and its headers."""


async def serve_until_stopped(listener: socket.socket, respond: Respond, started: Callable[[], None]) -> None:
    """Answer until SIGINT or SIGTERM; then streams are cut off, and other answers end."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    connections = Connections(respond)
    server = HTTPServer(
        connections,
        max_header_size=REQUEST_BYTES,
        max_body_size=REQUEST_BYTES,
        max_buffer_size=4 * REQUEST_BYTES,
        chunk_size=REQUEST_BYTES,
        idle_connection_timeout=REQUEST_SECONDS,
        body_timeout=REQUEST_SECONDS,
    )
    listener.setblocking(False)
    server.add_sockets([listener])
    started()
    await stopped.wait()
    server.stop()
    await connections.end_answers()
    await server.close_all_connections()


class Connections(httputil.HTTPServerConnectionDelegate):
    """The connections that there are, and the answers of those that have a request.

    Who comes when all places are taken gets that of the connection that has waited longest for its client: silence and
    trickling requests keep nobody out. Where all others have requests, who comes is sent away.
    """

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.clients: dict[IOStream, str] = {}
        self.answering: dict[IOStream, Exchange] = {}

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> "Exchange":
        """Wait for a request: the first of a connection, which needs a place, or the one after an answer."""
        stream = cast("HTTP1ServerConnection", server_conn).stream
        self.answering.pop(stream, None)
        self.clients = {peer: client for peer, client in self.clients.items() if not peer.closed()}
        self.answering = {peer: exchange for peer, exchange in self.answering.items() if peer in self.clients}
        if stream in self.clients:
            self.clients[stream] = self.clients.pop(stream)  # behind those that have waited longer
        elif not stream.closed():
            self._place(stream)
        return Exchange(self, stream, cast("HTTP1Connection", request_conn))

    def _place(self, stream: IOStream) -> None:
        client = ""
        with contextlib.suppress(OSError):  # it is gone: the server finds that when it reads
            client = str(stream.socket.getpeername()[0])
        peers = [peer for peer, other in self.clients.items() if other == client]
        if len(peers) < OF_ADDRESS:
            peers = list(self.clients) if len(self.clients) >= CONNECTIONS else []
        self.clients[stream] = client
        if peers:
            longest = next((peer for peer in peers if peer not in self.answering), stream)
            del self.clients[longest]
            longest.close()

    async def end_answers(self) -> None:
        """Cut streams off, and let other answers end within `GRACE_SECONDS`."""
        for exchange in self.answering.values():
            if exchange.lasts:
                exchange.task.cancel()
        if tasks := [exchange.task for exchange in self.answering.values()]:
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)


class Exchange(httputil.HTTPMessageDelegate):
    """A request, whose body no page needs, and its answer in a task that ends with the connection.

    `lasts` says that the answer is a stream.
    """

    task: asyncio.Task[None]
    lasts = False

    def __init__(self, connections: Connections, stream: IOStream, connection: HTTP1Connection) -> None:
        self.connections, self.stream, self.connection = connections, stream, connection

    def headers_received(self, start_line: Any, headers: httputil.HTTPHeaders) -> None:
        """Keep the head. Raises what tornado answers with 400 for too many fields."""
        if sum(1 for _ in headers.get_all()) > MOST_FIELDS:
            raise httputil.HTTPInputError(f"more than {MOST_FIELDS} header fields")
        self.method, self.target, self.headers = start_line.method, start_line.path, headers

    def finish(self) -> None:
        """Answer, if the client is still there: what it sent before it left is read in any case."""
        if not self.stream.closed():
            self.connections.answering[self.stream] = self
            self.task = asyncio.create_task(self._answer())
            self.connection.set_close_callback(cast("Callable[[], None]", self.task.cancel))

    async def _answer(self) -> None:
        try:
            await self._send(await self.connections.respond(self.method, self.target, self.headers))
        except (StreamClosedError, TimeoutError, asyncio.CancelledError):
            self.stream.close()

    async def _send(self, answer: Answer) -> None:
        start_line = httputil.ResponseStartLine("", answer.status, http.HTTPStatus(answer.status).phrase)
        content = b"" if self.method == "HEAD" else answer.content
        if isinstance(content, bytes):
            written = self.connection.write_headers(start_line, answer.head(), content)
            await asyncio.wait_for(written, ANSWER_SECONDS + len(content) / ANSWER_RATE)
        else:
            self.lasts = True
            self.connection.write_headers(start_line, answer.head())
            async with contextlib.aclosing(content):
                async for piece in content:
                    await asyncio.wait_for(self.connection.write(piece), ANSWER_SECONDS)
        self.connection.finish()
