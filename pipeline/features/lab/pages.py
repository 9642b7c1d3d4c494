"""What `lab serve` shows, made from an open store: campaigns, their progress and reports, the lab, and its OpenAPI."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec
import sqlalchemy as sa

from device_runner.result import Status, Struct
from pipeline import __version__
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store
from pipeline.campaign.store.tables import campaigns, runs
from pipeline.core.errors import ConfigError
from pipeline.features.lab.campaigns import state_of, status_lines
from pipeline.features.lab.queue import jobs_of
from pipeline.job.assemble import Assembled, assemble, with_earlier
from pipeline.report import html, model
from pipeline.report.wording import DASH, Listing

JSON, HTML, EVENTS = "application/json", "text/html", "text/event-stream"

USUAL_CAMPAIGNS, MOST_CAMPAIGNS = 100, 1000
"""How many campaigns a list has where nothing is said, and at most."""

KEPT_REPORTS = 4
"""Reports that are kept in memory until their campaign has more runs: one of 10,000 runs takes seconds."""

LINKS = (("Campaigns", "/"), ("Lab", "/lab"))


class NotServedError(ConfigError):
    """There is no such campaign, or no such page."""


class ServedCampaign(Struct, frozen=True, kw_only=True):
    """A campaign of the list."""

    id: str
    name: str
    created_at: str


class ServedCampaigns(Struct, frozen=True, kw_only=True):
    """Campaigns, the newest first; `total` counts those that are not listed, too."""

    version: int = 1
    total: int
    campaigns: tuple[ServedCampaign, ...]


class DeviceProgress(Struct, frozen=True, kw_only=True):
    """Runs of a device that are stored, and of these failed; its state in the queue of a lab, "" elsewhere."""

    device: str
    stored: int
    failed: int
    state: str = ""


class CampaignProgress(Struct, frozen=True, kw_only=True):
    """How far a campaign is; `at_most` counts the timed rounds that were planned: a campaign may end earlier."""

    version: int = 1
    campaign: str
    name: str
    at_most: int
    stored: int
    failed: int
    line: str
    devices: tuple[DeviceProgress, ...]


class ServedError(Struct, frozen=True, kw_only=True):
    """What went wrong, why, and what to do."""

    error: str
    why: str = ""
    remedy: str = ""


class Shelf:
    """What pages are made from: a store, and reports of campaigns.

    One report is made at a time; the last few are kept while nothing was added to their campaign.
    """

    def __init__(self, store: Store, *, has_token: bool = False) -> None:
        self.store = store
        self.has_token = has_token
        self._making = threading.Lock()
        self._kept = lru_cache(KEPT_REPORTS)(self._made)

    def report(self, campaign: str) -> Assembled:
        """Raises NotServedError where it is not there, PipelineError for what cannot be read."""
        with self._making:
            return self._kept(campaign, self._stamp(campaign))

    def _made(self, campaign: str, _stamp: tuple[Any, ...]) -> Assembled:
        return with_earlier(assemble(self.store, self.store.campaign(campaign)), self.store)

    def _stamp(self, campaign: str) -> tuple[Any, ...]:
        """Changes with every run that is stored and every change of the plan."""
        query = sa.select(campaigns.c.digest).where(campaigns.c.id == campaign)
        of_runs = sa.select(sa.func.count(), sa.func.max(runs.c.id)).where(runs.c.campaign_id == campaign)
        digest = self.store.read(lambda connection: connection.scalar(query))
        if digest is None:
            raise unknown_campaign(campaign)
        return digest, *self.store.read(lambda connection: connection.execute(of_runs).one())


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


def error_page(error: ServedError) -> str:
    """An error as a page."""
    lines = tuple(text for text in (error.why, error.remedy) if text)
    return html.render_listings(error.error, (), LINKS, lines=lines)


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


def _report(shelf: Shelf, *, campaign: str) -> bytes:
    return model.encode(shelf.report(campaign).report)


def _lab(shelf: Shelf) -> dict[str, Any]:
    return state_of(shelf.store)


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


def _openapi(shelf: Shelf) -> dict[str, Any]:
    return openapi(has_token=shelf.has_token)


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
        make=_report, gives=model.CampaignReport,
    ),
    ServedPage(
        path="/api/campaigns/{campaign}/progress", summary="How far a campaign is", media=JSON, make=_progress,
        gives=CampaignProgress,
    ),
    ServedPage(
        path="/api/campaigns/{campaign}/events", summary="How far a campaign is, whenever that changes", media=EVENTS,
    ),
    ServedPage(path="/api/lab", summary="Hosts, devices and queue", media=JSON, make=_lab, gives=dict[str, Any]),
    ServedPage(path="/openapi.json", summary="This description", media=JSON, make=_openapi, gives=dict[str, Any]),
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
    return {
        "openapi": "3.1.0",
        "info": {"title": "ort-mobile lab serve", "version": __version__},
        **({"security": [{name: []} for name in schemes]} if has_token else {}),
        "paths": {
            page.path: {"get": _operation(page, by_path.get(page.path, {"type": "string"}), has_token)}
            for page in PAGES
        },
        "components": {"schemas": components, **({"securitySchemes": schemes} if has_token else {})},
    }


def _operation(page: ServedPage, schema: Any, has_token: bool) -> dict[str, Any]:
    campaign = {"name": "campaign", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 128}}
    limit = {
        "name": "limit", "in": "query", "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_CAMPAIGNS, "default": USUAL_CAMPAIGNS},
    }  # fmt: skip
    refused = {
        "400": "The request has a wrong or unknown parameter",
        **({"401": "The token is missing or wrong"} if has_token else {"421": "The request is for another host"}),
        **({"404": "There is no such campaign"} if page.has_campaign else {}),
        "500": "The database is damaged, or an internal error",
        "503": "The database cannot be reached, or too many requests at once",
    }  # fmt: skip
    content = {error_media(page.path): {"schema": error_schema(page.path)}}
    return {
        "summary": page.summary,
        "parameters": [*([campaign] if page.has_campaign else []), *([limit] if page.query else [])],
        "responses": {
            "200": {"description": page.summary, "content": {page.media: {"schema": schema}}},
            **{code: {"description": text, "content": content} for code, text in refused.items()},
        },
    }


def error_media(path: str) -> str:
    """The media type of errors at a path, whether or not something is there: JSON for programs, else a page."""
    return JSON if path.startswith("/api/") or path == "/openapi.json" else HTML


def error_schema(path: str) -> dict[str, Any]:
    """The schema of an error at a path."""
    return {"type": "string"} if error_media(path) == HTML else {"$ref": "#/components/schemas/ServedError"}
