"""Brings what sessions say of a campaign into its store: each turn once, judged as a phone's answers are."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from device_runner import device as runner_device
from device_runner import profile as ort_profile
from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Status
from pipeline import config as configs
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import store as campaign_store
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import Store
from pipeline.core import file_names
from pipeline.core import files as storage
from pipeline.core import progress as core_progress
from pipeline.core.errors import ConfigError
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact
from pipeline.features.away import ios_session, shell
from pipeline.features.away.answers import SessionReader
from pipeline.features.away.package import ASSUMED, asked_spec
from pipeline.features.away.plan import PACKAGES, KeptPlan, PackagePlan, PackageTurn, kept_plan
from pipeline.features.away.session import PackageSession, opened_sessions
from pipeline.job import assemble, campaigns, carrying
from pipeline.job import stored as job_stored

SCHEMES = {"ios": "ios"}
"""Platform to the first part of the names of its devices; others are of a farm, or of somebody else's desk."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one session: its turns that are new in the store, known by now, that failed, that were not run."""

    device: str
    session: str
    new: int
    known: int
    failed: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOrder:
    """What the command line says of sessions: where the job's folder is (None: it is looked for), and their device."""

    sessions: tuple[Path, ...]
    output: Path | None = None
    name: str = ""
    prove: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """A campaign, by its id, whose sessions are read."""

    store: Store
    campaign: str
    folder: Path
    work: Path


def collect(order: CollectOrder, progress: Progress) -> tuple[tuple[Collected, ...], assemble.Assembled]:
    """Store what sessions bring, then choose, bundle and report as after a run; raises ConfigError, PipelineError."""
    if order.name and not (runner_device.is_reported(order.name) and re.fullmatch(r"[\w:.,-]{3,80}", order.name)):
        raise ConfigError(
            f"{order.name!r} names no device of a package",
            where="--name",
            why=f"such names begin with {' or '.join(f'{scheme}:' for scheme in runner_device.REPORTED)}",
            remedy="write it as farm:pixel9",
        )
    with opened_sessions(list(order.sessions)) as sessions:
        if order.name and len(sessions) > 1:
            raise ConfigError(
                f"{len(sessions)} sessions are there, and one name", where="--name", remedy="collect each by itself"
            )
        folder = order.output or _folder_of(sessions[0])
        plans = [_plan_of(session, folder) for session in sessions]
        if len({plan.campaign for plan in plans}) > 1:
            raise ConfigError(
                "the sessions are of several campaigns",
                where=str(folder),
                why=", ".join(sorted({plan.campaign for plan in plans})),
                remedy="collect those of each by themselves",
            )
        stages = core_progress.StageLog(progress)
        database = job_stored.kept_campaigns(folder).database or f"sqlite:///{folder / storage.DATABASE}"
        with (
            job_stored.locked(folder),
            storage.scratch(folder) as work,
            campaign_store.open_store(database) as store,
        ):
            collecting = Collecting(store=store, campaign=plans[0].campaign, folder=folder, work=work)
            with stages.stage("collect", len(sessions)) as stage:
                collected = []
                for session, plan in zip(sessions, plans, strict=True):
                    collected.append(store_session(collecting, session, plan, order.name))
                    stage.done()
            left = {done.device: f"{done.left} turns were not run there" for done in collected if done.left}
            ended = assemble.EndedCampaign(campaign=store.campaign(plans[0].campaign), left=left)
            assembled = assemble.close_job(store, folder, ended, None, stages, prove=order.prove)
            return tuple(collected), assembled


def _folder_of(session: PackageSession) -> Path:
    """The job's folder that keeps the plan of a session's package, among those of this folder."""
    paths = sorted(Path("output").glob(f"*/{PACKAGES}/{session.package}.json"))
    if len(paths) != 1:
        raise ConfigError(
            "which job the session is of is not known" if not paths else "several jobs made this package",
            where=session.files.where,
            why=f"no folder in output/ keeps a package {session.package[:12]}…"
            if not paths
            else ", ".join(str(path.parent.parent) for path in paths),
            remedy="name the output folder of the config that was exported with --output",
        )
    return paths[0].parent.parent


def _plan_of(session: PackageSession, folder: Path) -> KeptPlan:
    """The plan of a session's package, as the job's folder keeps it: none comes with a session."""
    plan = kept_plan(folder, session.package)
    if plan is None:
        raise ConfigError(
            "the session is of another campaign, or of a package that was exported elsewhere",
            where=session.files.where,
            why=f"{folder} keeps no package {session.package[:12]}…",
            remedy="name the output folder of the config that was exported with --output",
        )
    made, here = plan.plan.made_with.get("ort-mobile"), campaigns.versions()["ort-mobile"]
    if made != here:
        raise ConfigError(
            "the package was exported by another release",
            where=session.files.where,
            why=f"ort-mobile {made} made it, this is {here}",
            remedy=f"collect it with ort-mobile {made}, or export the config again",
        )
    return plan


def store_session(collecting: Collecting, session: PackageSession, kept: KeptPlan, name: str) -> Collected:
    """Enter a session's device and store its turns."""
    facts = _entered(collecting, session, kept, name)
    store = collecting.store
    campaign = store.campaign(collecting.campaign)
    carried = carrying.Carried(
        campaign=campaign,
        record=campaign.job(),
        artifacts=store.artifacts(campaign.id),
        folder=collecting.folder,
    )
    runs = _planned(kept.plan, facts.name, carried.artifacts)
    plan = campaign_measure.with_looks(carrying.plan_here(carried, runs, facts), runs, store)
    before = store.finished(campaign.id, facts.name)
    reader = SessionReader(session, facts, (run.result for run in store.runs(campaign.id)))
    new = failed = 0
    schedule = plan.schedules.get(facts.name)
    for planned, turn in _due(schedule, kept.plan, runs, reader):
        if (planned.id, turn.round) not in before:
            record = _record(plan, planned, turn, reader, collecting.work)
            new += store.add_run(record)
            failed += record.result.failure is not None
            _learn(schedule, record)
    wanted = {(runs[turn.run].id, turn.round) for turn in kept.plan.turns}
    decided = schedule is not None and schedule.due() is None
    return Collected(
        device=facts.name,
        session=session.id,
        new=new,
        known=len(wanted & before),
        failed=failed,
        left=0 if decided else len(wanted - store.finished(campaign.id, facts.name)),
    )


def _entered(collecting: Collecting, session: PackageSession, kept: KeptPlan, name: str) -> DeviceFacts:
    """The facts of a session's device, which is in the campaign then with its planned runs."""
    said = ios_session if kept.plan.platform is configs.Platform.IOS else shell
    facts = said.facts_of(session.device, name or ASSUMED)
    if facts.platform != kept.plan.platform or kept.plan.abi not in facts.abis:
        raise ConfigError(
            "the session ran on another kind of device than the package is for",
            where=session.files.where,
            why=f"it is {facts.platform} on {', '.join(facts.abis) or 'nothing that it says'}, the package is for "
            f"{kept.plan.platform} on {kept.plan.abi}",
            remedy=f"export one for it: --platform {facts.platform} --abi {next(iter(facts.abis), 'ABI')}",
        )
    facts = msgspec.structs.replace(facts, name=name or _name_of(facts, session))
    store = collecting.store
    campaign = store.campaign(collecting.campaign)
    known = next((other for other in store.devices(campaign.id) if other.name == facts.name), None)
    if known and _lasting(known) != _lasting(facts):
        raise ConfigError(
            f"{facts.name} is another device, or has another system, than when its results were collected before",
            where=session.files.where,
            why=f"then {known.model} {known.fingerprint or known.os_release}, now {facts.model} "
            f"{facts.fingerprint or facts.os_release}",
            remedy="collect it under another name with --name, or the whole campaign anew",
        )
    if known is None:
        runs = _planned(kept.plan, facts.name, store.artifacts(campaign.id))
        recorded = tuple(planning.recorded(runs, campaign.job().config.measure.baseline))
        skipped = tuple(msgspec.structs.replace(run, device=facts.name) for run in kept.skipped)

        def joined(record: campaign_record.JobRecord) -> campaign_record.JobRecord:
            return msgspec.structs.replace(
                record, planned=(*record.planned, *recorded), skipped=(*record.skipped, *skipped)
            )

        store.amend(campaign.id, joined, [facts])
    return known or facts


def _name_of(facts: DeviceFacts, session: PackageSession) -> str:
    """A device's name by what it is and by the session: phones of one model are devices of their own."""
    words = re.findall(r"[A-Za-z0-9,._]+", facts.model or facts.abis[0])
    return f"{SCHEMES.get(facts.platform, 'farm')}:{'-'.join(words)[:40]}-{session.id.replace('-', '')[:8]}"


def _lasting(facts: DeviceFacts) -> tuple[object, ...]:
    """What makes a device the same one at another time."""
    return facts.platform, facts.manufacturer, facts.model, facts.soc, facts.abis, facts.fingerprint, facts.os_release


def _planned(plan: PackagePlan, device: str, artifacts: Sequence[Artifact]) -> list[campaign_planned.PlannedRun]:
    """The planned runs of a package on a device: as the plan has them, not planned again."""
    by_name = {(artifact.model, artifact.variant.name, artifact.sha256): artifact for artifact in artifacts}
    runs = []
    for run in plan.runs:
        artifact = by_name.get((run.model, run.variant, run.artifact))
        if artifact is None:
            raise ConfigError(
                "the campaign has another file than the package",
                where=f"{run.model}/{run.variant}",
                why=f"none has the sha256 {run.artifact[:12]}…",
                remedy="export the config again",
            )
        planned = campaign_planned.run_of(device, artifact, run.options, mapped=run.mapped)
        runs.append(replace(planned, mode=run.mode))
    return runs


def _due(
    schedule: campaign_measure.Schedule | None,
    plan: PackagePlan,
    runs: Sequence[campaign_planned.PlannedRun],
    reader: SessionReader,
) -> Iterator[tuple[campaign_planned.PlannedRun, PackageTurn]]:
    """The turns that a session began, in their order; with a schedule until its comparisons are decided."""
    if schedule is None or all(turn.round >= campaign_record.FRESH_FROM for turn in plan.turns):
        yield from ((runs[turn.run], turn) for turn in plan.turns if reader.begun(turn))
        return
    turns = {(runs[turn.run].id, turn.round): turn for turn in plan.turns}
    while due := schedule.due():
        planned, number = due
        turn = turns.get((planned.id, number))
        if turn is None or not reader.begun(turn):
            return
        yield planned, turn


def _learn(schedule: campaign_measure.Schedule | None, record: RunRecord) -> None:
    """Tell a schedule of a turn; one that was spoilt on its way says nothing of the other rounds of its run."""
    failure = record.result.failure
    if isinstance(schedule, campaign_measure.OpenTurns) and failure and failure.code in campaign_store.REPEATED:
        schedule.pass_over(record)
    elif schedule:
        schedule.learn(record)


def _record(
    plan: campaign_measure.CampaignPlan,
    planned: campaign_planned.PlannedRun,
    turn: PackageTurn,
    reader: SessionReader,
    work: Path,
) -> RunRecord:
    """A turn as it is stored, its outputs compared."""
    with tempfile.TemporaryDirectory(dir=work, prefix="run.") as folder:
        spec = asked_spec(plan, planned, turn.round, folder)
        result: RunResult = reader.result(turn, spec)
        has_outputs = result.status is Status.OK and not spec.profile
        checks = plan.check(planned, result) if plan.check and has_outputs else ()
        if spec.profile:
            result = ort_profile.with_profile(result, plan.profiles / f"{file_names.safe_name(planned.text)}.json.gz")
    name = planned.id
    expected = plan.predictions.get(name)
    return RunRecord(
        campaign=plan.campaign,
        planned=name,
        round=turn.round,
        model=planned.model,
        variant=planned.variant,
        spec=spec,
        result=result,
        checks=checks,
        prediction=expected if expected is None or spec.profile else expected.brief,
    )
