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
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import msgspec
import sqlalchemy as sa

from device_runner import untrusted_files
from device_runner.errors import RunnerError
from device_runner.result import Status
from pipeline import __version__
from pipeline.campaign import store as campaign_store
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store
from pipeline.campaign.store import tables as store_tables
from pipeline.core.errors import ConfigError, MissingError, PipelineError
from pipeline.features.lab.connections import Answer, serve_until_stopped
from pipeline.features.lab.queue import jobs_of
from pipeline.features.lab.status import state_of, status_lines
from pipeline.job import assemble
from pipeline.report import html, wording
from pipeline.report import model as report_model

log = logging.getLogger(__name__)

JSON, HTML, EVENTS = "application/json", "text/html", "text/event-stream"

USUAL_CAMPAIGNS, MOST_CAMPAIGNS = 100, 1000
"""How many campaigns a list has where nothing is said, and at most."""

KEPT_REPORTS = 4
"""Reports that are kept in memory until their campaign has more runs: one of 10,000 runs takes seconds."""

LINKS = (("Campaigns", "/"), ("Lab", "/lab"))


class RefusedError(ConfigError):
    """A request that gets no page, with the HTTP status that says so."""

    def __init__(self, status: int, what: str, remedy: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.status, self.headers = status, headers or {}


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


MOST_STREAMS, WORKERS = 32, 4
"""Event streams at once, each of which asks the database every `POLL_SECONDS`; and threads that read the database."""


class Shelf:
    """What requests share: the open store with threads to read it, the token or "", reports, places for streams.

    One report is made at a time; the last few are kept while nothing was added to their campaign.
    """

    def __init__(self, store: Store, token: str) -> None:
        self.store, self.token = store, token
        self.pool = ThreadPoolExecutor(WORKERS, "lab-serve")
        self.streams = asyncio.Semaphore(MOST_STREAMS)
        self._making = threading.Lock()
        self._kept = lru_cache(KEPT_REPORTS)(self._made)

    def report(self, campaign: str) -> assemble.Assembled:
        """Raises RefusedError where it is not there, PipelineError for what cannot be read."""
        # What the report is kept by changes with every run that is stored and every change of the plan
        of_runs = sa.select(sa.func.count(), sa.func.max(store_tables.runs.c.id)).where(
            store_tables.runs.c.campaign_id == campaign
        )
        with self._making:
            digest = _digest(self.store, campaign)
            counted = self.store.read(lambda connection: connection.execute(of_runs).one())
            return self._kept(campaign, (digest, *counted))

    def _made(self, campaign: str, _stamp: tuple[Any, ...]) -> assemble.Assembled:
        return assemble.with_earlier(assemble.assemble(self.store, self.store.campaign(campaign)), self.store)

    async def read(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


def _digest(store: Store, campaign: str) -> str:
    query = sa.select(store_tables.campaigns.c.digest).where(store_tables.campaigns.c.id == campaign)
    digest = store.read(lambda connection: connection.scalar(query))
    if digest is None:
        raise RefusedError(404, f"no campaign {campaign!r} here", "see the list of campaigns")
    return str(digest)


def known_campaign(store: Store, campaign: str) -> CampaignRecord:
    """The stored campaign with that id; raises RefusedError for none."""
    _digest(store, campaign)
    return store.campaign(campaign)


def progress_of(store: Store, record: CampaignRecord) -> CampaignProgress:
    """How far a campaign is now. Raises PipelineError for a plan that this release cannot read."""
    plan = record.job()
    failed_runs = sa.func.count().filter(store_tables.runs.c.status == Status.FAILED)
    query = sa.select(store_tables.runs.c.device, sa.func.count(), failed_runs)
    query = query.where(store_tables.runs.c.campaign_id == record.id).group_by(store_tables.runs.c.device)
    counted = {
        counts[0]: (counts[1], counts[2]) for counts in store.read(lambda connection: connection.execute(query).all())
    }
    states = {job.device: job.state for job in jobs_of(store, record.id)}
    names = sorted({run.device for run in plan.planned} | counted.keys() | states.keys())
    rows = [(name, *counted.get(name, (0, 0)), states.get(name, "")) for name in names]
    devices = tuple(DeviceProgress(device=name, stored=n, failed=bad, state=state) for name, n, bad, state in rows)
    stored, failed = sum(device.stored for device in devices), sum(device.failed for device in devices)
    at_most = max(stored, len(plan.planned) * plan.config.measure.timed_rounds)
    line = f"{stored} of at most {at_most} runs are stored, {failed} of them failed"
    return CampaignProgress(
        campaign=record.id, name=record.name, at_most=at_most, stored=stored, failed=failed, line=line, devices=devices
    )


def _campaigns(shelf: Shelf, *, limit: int = USUAL_CAMPAIGNS) -> ServedCampaigns:
    query = sa.select(store_tables.campaigns.c.id, store_tables.campaigns.c.name, store_tables.campaigns.c.created_at)
    query = query.order_by(store_tables.campaigns.c.sequence.desc()).limit(limit)
    total = shelf.store.read(
        lambda connection: connection.scalar(sa.select(sa.func.count()).select_from(store_tables.campaigns))
    )
    rows = shelf.store.read(lambda connection: connection.execute(query).mappings().all())
    return ServedCampaigns(total=total or 0, campaigns=tuple(ServedCampaign(**campaign) for campaign in rows))


def _campaigns_page(shelf: Shelf, *, limit: int = USUAL_CAMPAIGNS) -> str:
    campaigns = _campaigns(shelf, limit=limit)
    listing = wording.Listing(
        title="Campaigns",
        head=("Id", "Name", "Created"),
        rows=tuple((campaign.id, campaign.name, campaign.created_at) for campaign in campaigns.campaigns),
    )
    targets = {campaign.id: f"/campaigns/{quote(campaign.id, safe='')}" for campaign in campaigns.campaigns}
    lines = (f"{len(campaigns.campaigns)} of {campaigns.total} campaigns, the newest first",)
    return html.render_listings("Campaigns", (listing,), LINKS, lines=lines, targets=targets)


def _progress(shelf: Shelf, *, campaign: str) -> CampaignProgress:
    return progress_of(shelf.store, known_campaign(shelf.store, campaign))


def _progress_page(shelf: Shelf, *, campaign: str) -> str:
    progress = _progress(shelf, campaign=campaign)
    quoted = quote(progress.campaign, safe="")
    rows = (
        (device.device, str(device.stored), str(device.failed), device.state or wording.DASH)
        for device in progress.devices
    )
    listing = wording.Listing(title="Devices", head=("Device", "Stored", "Failed", "State"), rows=tuple(rows))
    links = (*LINKS, ("Report", f"/campaigns/{quoted}/report.html"))
    title = f"{progress.name} ({progress.campaign})"
    return html.render_listings(
        title, (listing,), links, lines=(progress.line,), events=f"/api/campaigns/{quoted}/events"
    )


def _report_page(shelf: Shelf, *, campaign: str) -> str:
    report = shelf.report(campaign)
    return html.render(report.report, report.measured, report.earlier)


def _lab_page(shelf: Shelf) -> str:
    state = state_of(shelf.store)
    hosts = ((host["name"], host["state"], f"{host['silent_seconds']:g} s", host["note"]) for host in state["hosts"])
    devices = (
        (device["name"], device["host"], device["model"], device["chip"] or device["soc"])
        for device in state["devices"]
    )
    held = (
        (device, quarantine["since"][:16].replace("T", " "), quarantine["host"], quarantine["reason"])
        for device, quarantine in state["quarantine"].items()
    )
    jobs = (
        (job["device"], campaign["campaign"], str(job["priority"]), job["state"], job["host"], job["reason"])
        for campaign in state["campaigns"]
        for job in campaign["jobs"]
    )
    queue_head = ("Device", "Campaign", "Priority", "State", "Host", "Reason")
    listings = (
        wording.Listing(title="Hosts", head=("Host", "State", "Silent for", "Note"), rows=tuple(hosts)),
        wording.Listing(title="Devices", head=("Device", "Host", "Model", "Chip"), rows=tuple(devices)),
        wording.Listing(title="Quarantine", head=("Device", "Since", "Found at", "Reason"), rows=tuple(held)),
        wording.Listing(title="Queue", head=queue_head, rows=tuple(jobs)),
    )
    return html.render_listings("Lab", listings, LINKS, lines=tuple(status_lines(state))[:1])


@dataclass(frozen=True, slots=True)
class ServedPage:
    """A page: where it is, what it is made by (None: a stream of events), and the type of what it gives.

    It is made from the shelf and what the request names: `campaign` where the path has one, and `query`.
    """

    path: str
    summary: str
    make: Callable[..., object] | None = None
    gives: Any = str
    query: tuple[str, ...] = ()
    policy: Callable[[], str] = html.listing_policy

    @property
    def media(self) -> str:
        """The media type of what it gives."""
        return error_media(self.path) if self.make else EVENTS

    def matched(self, path: str) -> dict[str, str] | None:
        """What `path` names, as it was sent: %2F is a part of an id, and no end of it. None where another page is."""
        # PostgreSQL takes no NUL in an id, not even to say that it is not there.
        match = re.fullmatch(self.path.replace("{campaign}", "(?P<campaign>(?:(?!%00)[^/])+)"), path)
        return match and {name: unquote(text) for name, text in match.groupdict().items()}


def error_media(path: str) -> str:
    """The media type of errors at a path, whether or not something is there: JSON for programs, else a page."""
    return JSON if path.startswith("/api/") or path == "/openapi.json" else HTML


PAGES = (
    ServedPage("/", "The campaigns, as a page", _campaigns_page, query=("limit",)),
    ServedPage("/lab", "Hosts, devices and queue, as a page", _lab_page),
    ServedPage("/campaigns/{campaign}", "How far a campaign is, as a page that follows it", _progress_page),
    ServedPage(
        "/campaigns/{campaign}/report.html",
        "The report of a campaign as it is now",
        _report_page,
        policy=html.report_policy,
    ),
    ServedPage("/api/campaigns", "The campaigns", _campaigns, ServedCampaigns, query=("limit",)),
    ServedPage(
        "/api/campaigns/{campaign}",
        "The report of a campaign, as results.json",
        lambda shelf, *, campaign: report_model.encode(shelf.report(campaign).report),
        report_model.CampaignReport,
    ),
    ServedPage("/api/campaigns/{campaign}/progress", "How far a campaign is", _progress, CampaignProgress),
    ServedPage("/api/campaigns/{campaign}/events", "How far a campaign is, whenever that changes"),
    ServedPage("/api/lab", "Hosts, devices and queue", lambda shelf: state_of(shelf.store), dict[str, Any]),
    ServedPage("/openapi.json", "This description", lambda shelf: openapi(has_token=bool(shelf.token)), dict[str, Any]),
)
"""Everything that is served: the server's routes and its OpenAPI are made from it."""

REFUSED = {
    "400": "The request has a wrong or unknown parameter",
    "401": "The token is missing or wrong",
    "404": "There is no such campaign",
    "421": "The request is for another host",
    "500": "The database is damaged, or an internal error",
    "503": "The database cannot be reached, or too many requests at once",
}
"""HTTP status of an error to when it is given."""


def openapi(*, has_token: bool) -> dict[str, Any]:
    """What is served, as OpenAPI 3.1: behind a token, or without one to requests that name the loopback address."""
    kinds = [*(page.gives for page in PAGES), ServedError]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemes = {name: {"type": "http", "scheme": name} for name in ("bearer", "basic")}
    campaign = {"name": "campaign", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 128}}
    numbers = {"type": "integer", "minimum": 1, "maximum": MOST_CAMPAIGNS, "default": USUAL_CAMPAIGNS}
    limit = {"name": "limit", "in": "query", "required": False, "schema": numbers}
    paths = {}
    for page, schema in zip(PAGES, schemas, strict=False):
        error = {"schema": schemas[-1] if error_media(page.path) == JSON else {"type": "string"}}
        named = [campaign] if "{campaign}" in page.path else []
        never = {"421" if has_token else "401", "" if named else "404"}
        responses = {"200": {"description": page.summary, "content": {page.media: {"schema": schema}}}}
        for status, when in REFUSED.items():
            if status not in never:
                responses[status] = {"description": when, "content": {error_media(page.path): error}}
        parameters = named + ([limit] if page.query else [])
        paths[page.path] = {"get": {"summary": page.summary, "parameters": parameters, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ort-mobile lab serve", "version": __version__},
        **({"security": [{name: []} for name in schemes]} if has_token else {}),
        "paths": paths,
        "components": {"schemas": components, **({"securitySchemes": schemes} if has_token else {})},
    }


TOKEN_VARIABLE = "ORT_MOBILE_LAB_TOKEN"  # noqa: S105 # the variable's name

LEAST_TOKEN, MOST_TOKEN = 16, 1024
"""Characters of a token."""

POLL_SECONDS, ALIVE_SECONDS, STREAM_SECONDS = 2.0, 15.0, 3600.0
"""Between two looks at a campaign, between two signs of life; and the longest stream."""

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(:[0-9]{1,5})?")
"""A Host header: a name or an address, and a port."""

CHALLENGE = {"www-authenticate": 'Basic realm="ort-mobile lab", charset="UTF-8"'}


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The token of a file, else of the environment, "" for none. Raises ConfigError for one that is too short."""
    where = TOKEN_VARIABLE if file is None else str(file)
    try:
        text = (
            environment.get(TOKEN_VARIABLE, "")
            if file is None
            else untrusted_files.read_regular(file, 64 << 10).decode("ascii")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the token cannot be read", where=where, why=str(error), remedy=_NEW_TOKEN) from error
    token = text.strip()
    if not token and file is None:
        return ""
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "this is no good token",
            where=where,
            why=f"a token has {LEAST_TOKEN} to {MOST_TOKEN} printable ASCII characters and no space",
            remedy=_NEW_TOKEN,
        )
    return token


_NEW_TOKEN = "make one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE"  # noqa: S105 # a command


def serve(database: str, host: str, port: int, token: str, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `started` is called with the address when connections are accepted.

    Raises ConfigError for an address beyond this computer without a token, or one that cannot be used.
    """
    if not token and not _is_loopback(host):
        raise ConfigError(
            f"no token is given, and {host} is not an address of this computer alone",
            where="lab serve",
            why="anybody in the network could read all results",
            remedy=f"pass --token-file FILE or set {TOKEN_VARIABLE}, or leave out --host",
        )
    with campaign_store.open_reading(database) as store, contextlib.ExitStack() as stack:
        try:
            addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            listener = stack.enter_context(socket.create_server(addresses[0][4][:2], family=addresses[0][0]))
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}",
                where="lab serve",
                why=str(error),
                remedy="name an address of this computer and a free port with --host and --port; 0 finds one",
            ) from error
        address = listener.getsockname()
        shown = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}/"
        asyncio.run(serve_until_stopped(listener, partial(answer_to, Shelf(store, token)), partial(started, shown)))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def answer_to(shelf: Shelf, method: str, target: str, headers: Mapping[str, str]) -> Answer:
    """The answer to a request; whatever goes wrong is a small one with the reason, and the log has the rest."""
    path, _, query = target.partition("?")
    try:
        _admit(shelf.token, headers)
        page, asked = _asked(method, path, query)
        if page.make is None:
            return await _stream(shelf, asked["campaign"], path)
        body = await shelf.read(partial(page.make, shelf, **asked))
    except RefusedError as error:
        log.info("%s: %s", path, error)
        return _error(path, error.status, error)
    except RunnerError as error:
        log.warning("%s: %s", path, error)
        return _error(path, 503 if isinstance(error, MissingError) else 500, error)
    except Exception as error:  # a page that fails must not end the server, nor show its inside
        log.error("%s: %s: %s", path, type(error).__name__, error)  # noqa: TRY400 # one line, as everywhere
        log.debug("%s", path, exc_info=True)
        return _error(path, 500, PipelineError("Internal error", remedy="see the log of the server"))
    if isinstance(body, str):
        return Answer(media=page.media, content=body.encode(), policy=page.policy())
    return Answer(media=page.media, content=body if isinstance(body, bytes) else msgspec.json.encode(body))


def _admit(token: str, headers: Mapping[str, str]) -> None:
    """Raises RefusedError for who has not the token; without one, for another host's name."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":  # which browsers ask for: the token is its password
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            given = ""
    elif scheme.lower() != "bearer":
        given = ""
    named = HOST.fullmatch(headers.get("host", ""))
    if token and not hmac.compare_digest(given.strip().encode(), token.encode()):
        remedy = "log in with it as the password; programs send `Authorization: Bearer TOKEN`"
        raise RefusedError(401, "The token is missing or wrong", remedy, CHALLENGE)
    if not token and not (named and _is_loopback(named[1])):
        raise RefusedError(421, "This request is for another host", "ask for 127.0.0.1 or localhost")


def _asked(method: str, path: str, query: str) -> tuple[ServedPage, dict[str, Any]]:
    """The page at a path, and the values with which it is made.

    Raises RefusedError for no page, a method that writes, and a parameter that the page does not have, or a wrong one.
    """
    page, values = next(((page, values) for page in PAGES if (values := page.matched(path)) is not None), (None, {}))
    if page is None:
        raise RefusedError(404, "There is no such page")
    if method not in ("GET", "HEAD"):
        raise RefusedError(405, "Only GET and HEAD are served", headers={"allow": "GET, HEAD"})
    given = parse_qsl(query, keep_blank_values=True)
    if unknown := [name for name, _ in given if name not in page.query]:
        raise RefusedError(400, f"there is no parameter {unknown[0]!r} here")
    if len(given) > 1:
        raise RefusedError(400, "a parameter is given twice")
    for name, text in given:
        if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_CAMPAIGNS):
            raise RefusedError(400, f"{name} is a number from 1 to {MOST_CAMPAIGNS}")
    return page, {**values, **{name: int(text) for name, text in given}}


async def _stream(shelf: Shelf, campaign: str, path: str) -> Answer:
    record = await shelf.read(partial(known_campaign, shelf.store, campaign))
    look = partial(progress_of, shelf.store, record)
    await shelf.read(look)  # what fails now is an answer with its reason
    if shelf.streams.locked():
        raise RefusedError(503, f"There are {MOST_STREAMS} event streams", headers={"retry-after": "30"})
    return Answer(media=EVENTS, content=_events(shelf, look, path))


async def _events(shelf: Shelf, look: Callable[[], Any], path: str) -> AsyncGenerator[bytes, None]:
    """Progress whenever it changes, until the stream is old or cut off: browsers come back."""
    sent, begun, spoken = None, time.monotonic(), time.monotonic()
    async with shelf.streams:
        yield b"retry: 5000\n\n"
        while time.monotonic() - begun < STREAM_SECONDS:
            try:
                news = await shelf.read(look)
            except RunnerError as error:
                log.warning("%s: %s", path, error)
                return
            if news != sent:
                sent, spoken = news, time.monotonic()
                yield b"event: progress\ndata: %s\n\n" % msgspec.json.encode(news)
            elif time.monotonic() - spoken > ALIVE_SECONDS:
                spoken = time.monotonic()
                yield b": alive\n\n"
            await asyncio.sleep(POLL_SECONDS)


def _error(path: str, status: int, error: RunnerError) -> Answer:
    headers = error.headers if isinstance(error, RefusedError) else {}
    if error_media(path) == JSON:
        content = msgspec.json.encode(ServedError(error=error.what, why=error.why, remedy=error.remedy))
        return Answer(status=status, media=JSON, content=content, headers=headers)
    lines = tuple(text for text in (error.why, error.remedy) if text)
    page = html.render_listings(error.what, (), LINKS, lines=lines).encode()
    return Answer(status=status, media=HTML, content=page, policy=html.listing_policy(), headers=headers)
