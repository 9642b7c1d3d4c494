"""`lab serve`: campaigns, their progress and reports, and the lab of a database over HTTP, with its OpenAPI.

It reads, and nothing that is asked of it can write: the database is opened for reading only, there is no method but GET
and HEAD, and what a browser may do with a page is what its policy names. Without a token it listens on the loopback
address alone, to requests that name it.
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
import ipaddress
import logging
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import sqlalchemy as sa

from device_runner.errors import RunnerError
from device_runner.files import read_regular
from device_runner.result import Status
from pipeline import __version__
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store, open_reading
from pipeline.campaign.store.tables import campaigns, runs
from pipeline.core.errors import ConfigError, MissingError, missing_extra
from pipeline.features.lab.campaigns import state_of, status_lines
from pipeline.features.lab.queue import jobs_of
from pipeline.job.assemble import Assembled, assemble, with_earlier
from pipeline.report import html, model
from pipeline.report.wording import DASH, Listing

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


JSON, HTML, EVENTS = "application/json", "text/html", "text/event-stream"

USUAL_CAMPAIGNS, MOST_CAMPAIGNS = 100, 1000
"""How many campaigns a list has where nothing is said, and at most."""

KEPT_REPORTS = 4
"""Reports that are kept in memory until their campaign has more runs: one of 10,000 runs takes seconds."""

LINKS = (("Campaigns", "/"), ("Lab", "/lab"))


class NotServedError(ConfigError):
    """There is no such campaign, or no such page."""


class ServedCampaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign of the list."""

    id: str
    name: str
    created_at: str


class ServedCampaigns(msgspec.Struct, frozen=True, kw_only=True):
    """Campaigns, the newest first; `total` counts those that are not listed, too."""

    version: int = 1
    total: int
    campaigns: tuple[ServedCampaign, ...]


class DeviceProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a device that are stored, and of these failed; its state in the queue of a lab, "" elsewhere."""

    device: str
    stored: int
    failed: int
    state: str = ""


class CampaignProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a campaign is; `at_most` counts the timed rounds that were planned: a campaign may end earlier."""

    version: int = 1
    campaign: str
    name: str
    at_most: int
    stored: int
    failed: int
    line: str
    devices: tuple[DeviceProgress, ...]


class ServedError(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, why, and what to do."""

    error: str
    why: str = ""
    remedy: str = ""


MOST_STREAMS = 32
"""Event streams at once: each asks the database every `POLL_SECONDS`."""

WORKERS = 4
"""Threads that read the database."""


class Shelf:
    """What requests share: the open store with threads to read it, reports, places for streams, and whether it ends.

    One report is made at a time; the last few are kept while nothing was added to their campaign.
    """

    def __init__(self, store: Store, *, has_token: bool, ending: Callable[[], bool]) -> None:
        self.store = store
        self.has_token = has_token
        self.ending = ending
        self.pool = ThreadPoolExecutor(WORKERS, "lab-serve")
        self.streams = asyncio.Semaphore(MOST_STREAMS)
        self._making = threading.Lock()
        self._kept = lru_cache(KEPT_REPORTS)(self._made)

    def report(self, campaign: str) -> Assembled:
        """Raises NotServedError where it is not there, PipelineError for what cannot be read."""
        # What the report is kept by changes with every run that is stored and every change of the plan
        query = sa.select(campaigns.c.digest).where(campaigns.c.id == campaign)
        of_runs = sa.select(sa.func.count(), sa.func.max(runs.c.id)).where(runs.c.campaign_id == campaign)
        with self._making:
            digest = self.store.read(lambda connection: connection.scalar(query))
            if digest is None:
                raise unknown_campaign(campaign)
            counted = self.store.read(lambda connection: connection.execute(of_runs).one())
            return self._kept(campaign, (digest, *counted))

    def _made(self, campaign: str, _stamp: tuple[Any, ...]) -> Assembled:
        return with_earlier(assemble(self.store, self.store.campaign(campaign)), self.store)

    async def read(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


def unknown_campaign(campaign: str) -> NotServedError:
    """The error for a campaign that is not there."""
    return NotServedError(f"no campaign {campaign!r} here", remedy="see the list of campaigns")


def known_campaign(store: Store, campaign: str) -> CampaignRecord:
    """The stored campaign with that id; raises NotServedError for none."""
    query = sa.select(campaigns.c.id).where(campaigns.c.id == campaign)
    if store.read(lambda connection: connection.scalar(query)) is None:
        raise unknown_campaign(campaign)
    return store.campaign(campaign)


def progress_of(store: Store, record: CampaignRecord) -> CampaignProgress:
    """How far a campaign is now. Raises PipelineError for a plan that this release cannot read."""
    plan = record.job()
    failed_runs = sa.func.count().filter(runs.c.status == Status.FAILED)
    query = sa.select(runs.c.device, sa.func.count(), failed_runs)
    query = query.where(runs.c.campaign_id == record.id).group_by(runs.c.device)
    counted = {row[0]: (row[1], row[2]) for row in store.read(lambda connection: connection.execute(query).all())}
    states = {job.device: job.state for job in jobs_of(store, record.id)}
    names = sorted({run.device for run in plan.planned} | counted.keys() | states.keys())
    rows = [(name, *counted.get(name, (0, 0)), states.get(name, "")) for name in names]
    devices = tuple(DeviceProgress(device=name, stored=n, failed=bad, state=state) for name, n, bad, state in rows)
    stored, failed = sum(row.stored for row in devices), sum(row.failed for row in devices)
    at_most = max(stored, len(plan.planned) * plan.config.measure.timed_rounds)
    line = f"{stored} of at most {at_most} runs are stored, {failed} of them failed"
    return CampaignProgress(
        campaign=record.id, name=record.name, at_most=at_most, stored=stored, failed=failed, line=line, devices=devices
    )


def _campaigns(shelf: Shelf, *, limit: int = USUAL_CAMPAIGNS) -> ServedCampaigns:
    query = sa.select(campaigns.c.id, campaigns.c.name, campaigns.c.created_at)
    query = query.order_by(campaigns.c.sequence.desc()).limit(limit)
    total = shelf.store.read(lambda connection: connection.scalar(sa.select(sa.func.count()).select_from(campaigns)))
    rows = shelf.store.read(lambda connection: connection.execute(query).mappings().all())
    return ServedCampaigns(total=total or 0, campaigns=tuple(ServedCampaign(**row) for row in rows))


def _campaigns_page(shelf: Shelf, *, limit: int = USUAL_CAMPAIGNS) -> str:
    campaigns = _campaigns(shelf, limit=limit)
    listing = Listing(
        title="Campaigns", head=("Id", "Name", "Created"),
        rows=tuple((campaign.id, campaign.name, campaign.created_at) for campaign in campaigns.campaigns),
    )  # fmt: skip
    targets = {campaign.id: f"/campaigns/{quote(campaign.id, safe='')}" for campaign in campaigns.campaigns}
    lines = (f"{len(campaigns.campaigns)} of {campaigns.total} campaigns, the newest first",)
    return html.render_listings("Campaigns", (listing,), LINKS, lines=lines, targets=targets)


def _progress(shelf: Shelf, *, campaign: str) -> CampaignProgress:
    return progress_of(shelf.store, known_campaign(shelf.store, campaign))


def _progress_page(shelf: Shelf, *, campaign: str) -> str:
    progress = _progress(shelf, campaign=campaign)
    place = quote(progress.campaign, safe="")
    rows = ((row.device, str(row.stored), str(row.failed), row.state or DASH) for row in progress.devices)
    listing = Listing(title="Devices", head=("Device", "Stored", "Failed", "State"), rows=tuple(rows))
    links = (*LINKS, ("Report", f"/campaigns/{place}/report.html"))
    title = f"{progress.name} ({progress.campaign})"
    return html.render_listings(
        title, (listing,), links, lines=(progress.line,), events=f"/api/campaigns/{place}/events"
    )


def _report_page(shelf: Shelf, *, campaign: str) -> str:
    report = shelf.report(campaign)
    return html.render(report.report, report.measured, report.earlier)


def _lab_page(shelf: Shelf) -> str:
    state = state_of(shelf.store)
    hosts = ((row["name"], row["state"], f"{row['silent_seconds']:g} s", row["note"]) for row in state["hosts"])
    devices = ((row["name"], row["host"], row["model"], row["chip"] or row["soc"]) for row in state["devices"])
    jobs = (
        (job["device"], row["campaign"], job["state"], job["host"], job["reason"])
        for row in state["campaigns"] for job in row["jobs"]
    )  # fmt: skip
    listings = (
        Listing(title="Hosts", head=("Host", "State", "Silent for", "Note"), rows=tuple(hosts)),
        Listing(title="Devices", head=("Device", "Host", "Model", "Chip"), rows=tuple(devices)),
        Listing(title="Queue", head=("Device", "Campaign", "State", "Host", "Reason"), rows=tuple(jobs)),
    )
    return html.render_listings("Lab", listings, LINKS, lines=tuple(status_lines(state))[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPage:
    """A page: where it is, what it is made by (None: a stream of events), and the type of what it gives as JSON.

    It is made from the shelf and what the request names: `campaign` where the path has one, and `query`.
    """

    path: str
    summary: str
    media: str
    make: Callable[..., object] | None = None
    gives: Any = None
    query: tuple[str, ...] = ()
    policy: Callable[[], str] = html.listing_policy

    @property
    def has_campaign(self) -> bool:
        """Whether the path names a campaign."""
        return "{campaign}" in self.path


PAGES = (
    ServedPage(path="/", summary="The campaigns, as a page", media=HTML, make=_campaigns_page, query=("limit",)),
    ServedPage(path="/lab", summary="Hosts, devices and queue, as a page", media=HTML, make=_lab_page),
    ServedPage(
        path="/campaigns/{campaign}", summary="How far a campaign is, as a page that follows it", media=HTML,
        make=_progress_page,
    ),
    ServedPage(
        path="/campaigns/{campaign}/report.html", summary="The report of a campaign as it is now", media=HTML,
        make=_report_page, policy=html.report_policy,
    ),
    ServedPage(
        path="/api/campaigns", summary="The campaigns", media=JSON, make=_campaigns, gives=ServedCampaigns,
        query=("limit",),
    ),
    ServedPage(
        path="/api/campaigns/{campaign}", summary="The report of a campaign, as results.json", media=JSON,
        make=lambda shelf, *, campaign: model.encode(shelf.report(campaign).report),
        gives=model.CampaignReport,
    ),
    ServedPage(
        path="/api/campaigns/{campaign}/progress", summary="How far a campaign is", media=JSON, make=_progress,
        gives=CampaignProgress,
    ),
    ServedPage(
        path="/api/campaigns/{campaign}/events", summary="How far a campaign is, whenever that changes", media=EVENTS,
    ),
    ServedPage(
        path="/api/lab", summary="Hosts, devices and queue", media=JSON, make=lambda shelf: state_of(shelf.store),
        gives=dict[str, Any],
    ),
    ServedPage(
        path="/openapi.json", summary="This description", media=JSON,
        make=lambda shelf: openapi(has_token=shelf.has_token), gives=dict[str, Any],
    ),
)  # fmt: skip
"""Everything that is served: the server's routes and its OpenAPI are made from it."""


def openapi(*, has_token: bool) -> dict[str, Any]:
    """What is served, as OpenAPI 3.1: behind a token, or without one to requests that name the loopback address."""
    kinds = [page.gives for page in PAGES if page.gives is not None]
    schemas, components = msgspec.json.schema_components(
        [*kinds, ServedError], ref_template="#/components/schemas/{name}"
    )
    schemes = {name: {"type": "http", "scheme": name} for name in ("bearer", "basic")}
    by_path = dict(zip((page.path for page in PAGES if page.gives is not None), schemas, strict=False))
    campaign = {"name": "campaign", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 128}}
    limit = {
        "name": "limit", "in": "query", "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_CAMPAIGNS, "default": USUAL_CAMPAIGNS},
    }  # fmt: skip
    paths = {}
    for page in PAGES:
        refused = {
            "400": "The request has a wrong or unknown parameter",
            **({"401": "The token is missing or wrong"} if has_token else {"421": "The request is for another host"}),
            **({"404": "There is no such campaign"} if page.has_campaign else {}),
            "500": "The database is damaged, or an internal error",
            "503": "The database cannot be reached, or too many requests at once",
        }
        media, schema = error_media(page.path), by_path.get(page.path, {"type": "string"})
        error = {"type": "string"} if media == HTML else {"$ref": "#/components/schemas/ServedError"}
        content = {media: {"schema": error}}
        operation = {
            "summary": page.summary,
            "parameters": [*([campaign] if page.has_campaign else []), *([limit] if page.query else [])],
            "responses": {
                "200": {"description": page.summary, "content": {page.media: {"schema": schema}}},
                **{code: {"description": text, "content": content} for code, text in refused.items()},
            },
        }
        paths[page.path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ort-mobile lab serve", "version": __version__},
        **({"security": [{name: []} for name in schemes]} if has_token else {}),
        "paths": paths,
        "components": {"schemas": components, **({"securitySchemes": schemes} if has_token else {})},
    }


def error_media(path: str) -> str:
    """The media type of errors at a path, whether or not something is there: JSON for programs, else a page."""
    return JSON if path.startswith("/api/") or path == "/openapi.json" else HTML


TOKEN_VARIABLE = "ORT_MOBILE_LAB_TOKEN"  # noqa: S105 # the variable's name

LEAST_TOKEN, MOST_TOKEN = 16, 1024
"""Characters of a token."""

POLL_SECONDS, STEP_SECONDS, ALIVE_SECONDS, STREAM_SECONDS = 2.0, 0.25, 15.0, 3600.0
"""Between two looks at a campaign, at the client, between two signs of life; and the longest stream."""

HEADER_BYTES = 16 << 10

GRACE_SECONDS = 3
"""For answers that are being sent when the server is stopped."""


OF_ADDRESS, CONNECTIONS = 64, 128
"""How many connections there may be, of a client's address and in all."""

REQUEST_SECONDS, TAKING_SECONDS = 10.0, 30.0
"""How long the server waits for the whole head and for what is left of a body, however it trickles in; and for a client
that takes nothing of its answer."""


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


def serve(database: str, host: str, port: int, token: str, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `started` is called with the address when connections are accepted.

    Raises ConfigError for an address beyond this computer without a token, or one that cannot be used.
    """
    if not token and not _is_loopback(host):
        raise ConfigError(
            f"no token is given, and {host} is not an address of this computer alone", where="lab serve",
            why="anybody in the network could read all results",
            remedy=f"pass --token-file FILE or set {TOKEN_VARIABLE}, or leave out --host",
        )  # fmt: skip
    with open_reading(database) as store, contextlib.ExitStack() as stack:
        try:
            addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            listener = stack.enter_context(socket.create_server(addresses[0][4][:2], family=addresses[0][0]))
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}", where="lab serve", why=str(error),
                remedy="name an address of this computer and a free port with --host and --port; 0 finds one",
            ) from error  # fmt: skip
        app = make_app(store, token, lambda: bool(server.should_exit))
        config = uvicorn.Config(
            app, http=Bounded, ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, limit_concurrency=CONNECTIONS + 1,
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

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Give it the place of another where all are taken."""
        super().connection_made(transport)
        self.silent_since = time.monotonic()
        peers = [peer for peer in self.connections if isinstance(peer, Bounded) and not peer.transport.is_closing()]
        neighbours = [peer for peer in peers if (peer.client or ("",))[0] == (self.client or ("",))[0]]
        if len(neighbours) > OF_ADDRESS:
            self._longest_silent(neighbours).transport.abort()
        elif len(peers) > CONNECTIONS:
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
        self._end_after(TAKING_SECONDS)

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
            self._end_after(REQUEST_SECONDS)

    def _end_after(self, seconds: float | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def make_app(store: Store, token: str, ending: Callable[[], bool]) -> App:
    """The ASGI application; it accepts the token alone where there is one, else requests that name the loopback.

    Every answer has strict headers.
    """
    shelf = Shelf(store, has_token=bool(token), ending=ending)
    routes = [Route(page.path, partial(_answer, shelf, page), methods=["GET"]) for page in PAGES]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})

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
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = given.strip()
        elif scheme.lower() == "basic":  # which browsers ask for: the token is its password
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                given = ""
        else:
            given = ""
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            refusal = ServedError(error="The token is missing or wrong", remedy=_LOG_IN)
            await _error(path, 401, refusal, CHALLENGE)(scope, receive, strictly)
        elif not token and not (named and _is_loopback(named[1])):
            refusal = ServedError(error="This request is for another host", remedy="ask for 127.0.0.1 or localhost")
            await _error(path, 421, refusal)(scope, receive, strictly)
        else:
            await app(scope, receive, strictly)

    return guarded


async def _answer(shelf: Shelf, page: ServedPage, request: Request) -> Response | App:
    """The answer of a page; whatever goes wrong is a small one with the reason, and the log has the rest."""
    path = request.url.path
    try:
        asked = _asked(page, request)
        if page.make is None:
            return await _stream(shelf, asked["campaign"], request)
        body = await shelf.read(partial(page.make, shelf, **asked))
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


async def _stream(shelf: Shelf, campaign: str, request: Request) -> App:
    record = await shelf.read(partial(known_campaign, shelf.store, campaign))
    look = partial(progress_of, shelf.store, record)
    await shelf.read(look)  # what fails now is an answer with its reason
    if shelf.streams.locked():
        raise HTTPException(503, f"{MOST_STREAMS} event streams are open, the most at once", {"retry-after": "30"})
    await shelf.streams.acquire()

    async def streamed(scope: Any, receive: Any, send: Any) -> None:
        try:
            await StreamingResponse(_events(shelf, look, request), media_type=EVENTS)(scope, receive, send)
        finally:
            shelf.streams.release()

    return streamed


async def _events(shelf: Shelf, look: Callable[[], Any], request: Request) -> AsyncIterator[bytes]:
    """Progress whenever it changes, until the client goes, the server ends or the stream is old: browsers come back."""
    sent, begun, spoken = None, time.monotonic(), time.monotonic()
    yield b"retry: 5000\n\n"
    while time.monotonic() - begun < STREAM_SECONDS:
        try:
            news = await shelf.read(look)
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
            if shelf.ending() or await request.is_disconnected():
                return


async def _refused(request: Request, error: Exception) -> Response:
    """The answer to what has no page, another method or a wrong parameter."""
    status, headers = getattr(error, "status_code", 500), getattr(error, "headers", None) or {}
    text = PLAIN.get(status) or str(getattr(error, "detail", error))
    return _error(request.url.path, status, ServedError(error=text), headers)


def _error(path: str, status: int, error: ServedError, headers: Mapping[str, str] | None = None) -> Response:
    media = error_media(path)
    if media == JSON:
        return Response(msgspec.json.encode(error), status, headers or {}, media)
    lines = tuple(text for text in (error.why, error.remedy) if text)
    policy = f"{html.listing_policy()}; frame-ancestors 'none'"
    page = html.render_listings(error.error, (), LINKS, lines=lines)
    return Response(page, status, {"content-security-policy": policy, **(headers or {})}, media)
