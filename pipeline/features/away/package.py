"""Makes a package: the campaign of a config as a folder that the probe and a shell run alone."""

import hashlib
import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from device_runner import build as runner_build
from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner import library as ort_library
from device_runner import local as local_device
from device_runner import profile as ort_profile
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import run as device_run
from device_runner import spec as run_spec
from device_runner.device import DeviceFacts
from device_runner.errors import UnavailableError
from device_runner.probe import protocol
from device_runner.result import RunResult
from device_runner.spec import RunSpec
from pipeline import config as configs
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store
from pipeline.config import Config
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError
from pipeline.core.progress import Progress
from pipeline.features.away import ios, linked, runners, shell
from pipeline.features.away.plan import (
    PLAN,
    KeptPlan,
    MadePackage,
    PackagedFile,
    PackagedRun,
    PackagePlan,
    PackageTurn,
    keep_plan,
)
from pipeline.features.away.runner_kinds import Runner
from pipeline.job import campaigns, predicted
from pipeline.job import run as job_run

ASSUMED = "farm:package"
"""The name of the device that a package is planned for: which one it will be is not known then."""

SESSION = "session"

LIBRARIES, LIBRARY = "lib", ".so"
"""The folder of libraries, which LD_LIBRARY_PATH names, and how their names end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOrder:
    """What the command line adds to a config. "" and None leave it to the config's targets.

    `runner` says what a package has besides. With `rest` it has only the turns
    that `devices` (by default all that were collected) have not run, with `confirm` fresh rounds of what was chosen by
    their results.
    """

    output: Path | None = None
    folder: Path | None = None
    platform: str = ""
    abi: str = ""
    library: str | None = None
    runner: Runner = Runner.SHELL
    rest: bool = False
    confirm: bool = False
    devices: tuple[str, ...] = ()


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A package that was made: where it lies, what it is called, and what is in it."""

    folder: str
    package: str
    campaign: str
    platform: str
    abi: str
    turns: int
    files: int
    bytes: int
    skipped: tuple[campaign_record.Skipped, ...]


LINKED = Path("linked")
"""What requests name in place of a library where an app links it."""

COMPILED = "../compiled"
"""The folder, beside that of the session, for what an app's providers compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagePrograms:
    """What a package is run by: a library (as a text that names it) and the probe, or what an app links."""

    library: str | None = None
    probe: Path | None = None
    runtime: linked.LinkedRuntime | None = None

    @property
    def made_with(self) -> dict[str, str]:
        """What a package was made with: later releases may ask and judge otherwise."""
        versions = {name: version for name, version in campaigns.versions().items() if name in MADE_WITH}
        sources = "".join(text for _, text in ios.probe_sources()).encode()
        probe = storage.sha256_of(self.probe) if self.probe else hashlib.sha256(sources).hexdigest()
        return {**versions, "probe": probe[:12], **({"library": self.runtime.name} if self.runtime else {})}


MADE_WITH = ("ort-mobile", "onnxruntime")


class PackageDevice(device_run.FilePlacement, runner_device.Device):
    """What stands for the devices that a package will run on: files go into the package, by what they contain."""

    def __init__(self, folder: Path, facts: DeviceFacts, library: str | None) -> None:
        super().__init__(facts.name)
        self.folder = folder
        self.files: dict[str, PackagedFile] = {}
        self._facts = facts
        self._library = library

    def facts(self) -> DeviceFacts:
        """What is assumed of them."""
        return self._facts

    def library_for(self, given: str | None) -> ort_library.Library:
        """The library that goes with the package; UnavailableError where an app links it."""
        if not (given or self._library):
            raise UnavailableError("an app links the library", why="it is no file of the package")
        return ort_library.resolve(given or self._library or "", self._facts.abis[0])

    @property
    def library(self) -> Path:
        """The file of the library, or what stands for it."""
        return Path(self.library_for(None).path) if self._library else LINKED

    def run(self, spec: RunSpec) -> RunResult:
        """Nothing: turns run where the package is brought."""
        failure = run_result.Failure(
            code=run_result.FailureKind.SET_UP,
            what="a package runs nothing here",
            why="its device is where the package is brought",
            remedy="run its run.sh there, and `ort-mobile collect` its session",
        )
        return run_result.without_measurement(spec, self.name, failure)

    def placed(self, spec: RunSpec, library: Path, folder: str) -> RunSpec:
        """As of `FilePlacement`; what providers compile goes to a folder of the app, whatever the config calls it."""
        placed = super().placed(spec, library, folder)
        key = runner_providers.provider_named(spec.options.provider).cache_key
        if library != LINKED or key not in spec.options.provider_options:
            return placed
        there = {**placed.options.provider_options, key: COMPILED}
        return replace(placed, options=replace(placed.options, provider_options=there))

    def _put(self, path: Path, suffix: str = "") -> str:
        if path == LINKED:
            return str(path)
        digest, ending = storage.sha256_of(path)[:16], suffix or path.suffix
        if ending == LIBRARY:  # found by its name alone: an app has libraries where nobody knows beforehand
            return Path(self._kept(path, f"{LIBRARIES}/lib{digest}{ending}")).name
        return self._kept(path, f"files/{digest}{ending}")

    def _put_named(self, files: Sequence[str], folder: str) -> list[str]:
        beside = f"files/{storage.sha256_of(Path(files[0]))[:16]}"
        return [self._kept(Path(file), f"{beside}/{Path(file).name}") for file in files]

    def _kept(self, path: Path, name: str) -> str:
        if name not in self.files:
            self.files[name] = PackagedFile(sha256=storage.sha256_of(path), bytes=path.stat().st_size)
            storage.make_folder((self.folder / name).parent)
            storage.copy_file(path, self.folder / name)
        return f"../{name}"  # turns run in the folder of the session


def chosen_target(config: Config, order: ExportOrder) -> configs.Target:
    """The target that a package is for: the first of the config that fits what was asked, else one made of that.

    Raises ConfigError for a runner that is none of the platform that was asked for.
    """
    additions = runners.ADDITIONS.get(order.runner)
    wanted = additions.platform if additions else None
    if order.platform:
        wanted = configs.Platform(order.platform)
    if wanted is configs.Platform.IOS and order.runner is not Runner.IOS:
        raise _wrong_platform(order, wanted, "android or linux", "pass --for ios")
    if additions and wanted is not additions.platform:
        remedy = f"leave --platform out, or pass --platform {additions.platform}"
        raise _wrong_platform(order, wanted, additions.platform, remedy)
    fitting = [
        target
        for target in config.targets
        if (
            target.platform is wanted
            if wanted
            else target.platform in (configs.Platform.ANDROID, configs.Platform.LINUX)
        )
        and (not order.abi or not target.abis or order.abi in target.abis)
    ]
    if fitting:
        abis = (order.abi,) if order.abi else fitting[0].abis[:1] or (DEFAULT_ABI[fitting[0].platform],)
        return replace(fitting[0], abis=abis, library=order.library or fitting[0].library)
    platform = wanted or configs.Platform.ANDROID
    return configs.Target(
        name="package",
        platform=platform,
        abis=(order.abi or DEFAULT_ABI[platform],),
        library=order.library,
        ort_release=str(max(ort_releases.SWIFT_PACKAGES)) if platform is configs.Platform.IOS else None,
    )


def _wrong_platform(order: ExportOrder, wanted: configs.Platform | None, runs: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"what is to run the package runs programs for {runs}",
        where=f"--for {order.runner}, {wanted}",
        why="the package is for another one",
        remedy=remedy,
    )


DEFAULT_ABI = {
    configs.Platform.ANDROID: "arm64-v8a",
    configs.Platform.IOS: "arm64",
    configs.Platform.LINUX: local_device.machine_abi(),
}


def assumed_facts(target: configs.Target) -> DeviceFacts:
    """What planning needs to know of a device that nobody has seen yet."""
    on_android = target.platform is configs.Platform.ANDROID
    level = max(target.min_api_level or 0, runner_build.DEFAULT_API_LEVEL) if on_android else 0
    return DeviceFacts(name=ASSUMED, platform=target.platform.value, abis=target.abis, api_level=level)


def library_of(target: configs.Target) -> str:
    """The library of a package; raises ConfigError where none is named, and none of this computer serves."""
    abi = target.abis[0]
    here = (local_device.machine_system(), local_device.machine_abi())
    if target.library:
        return target.library
    if (target.platform.value, abi) == here:
        return str(local_device.wheel_library())
    raise ConfigError(
        f"no library is named for {target.platform.value} on {abi}",
        where="--library",
        why="a package brings the libonnxruntime that it is measured with",
        remedy="pass --library android:RELEASE (`ort-mobile library get` fetches it), or give the target a `library`",
    )


def programs_for(target: configs.Target, config: Config, order: ExportOrder, work: Path) -> PackagePrograms:
    """What runs a package for a target; a build that an app links lies in `work`.

    Raises UnavailableError without a compiler for the probe, ConfigError as `library_of` and `linked_runtime` do.
    """
    if target.platform is configs.Platform.IOS:
        return PackagePrograms(runtime=linked.linked_runtime(target, config, order.library, work))
    probe = runner_build.build_probe(runner_build.target_of(target.platform.value, target.abis[0]))
    return PackagePrograms(library=library_of(target), probe=probe)


def in_package(
    planned_runs: Sequence[campaign_planned.PlannedRun], platform: str, measure: configs.MeasureConfig
) -> tuple[list[campaign_planned.PlannedRun], list[campaign_record.Skipped]]:
    """The runs that a package for a platform can have, and the others with the reason."""
    kept: list[campaign_planned.PlannedRun] = []
    skipped: list[campaign_record.Skipped] = []
    for planned in planned_runs:
        options, for_app = planned.options, platform == configs.Platform.IOS
        if options.allocator is not run_spec.Allocator.DEFAULT:
            skipped.append(planned.skipped("a package brings no allocator: it stands in for the C library's"))
        elif options.provider in measure.plugins or runner_providers.provider_named(options.provider).plugin:
            skipped.append(planned.skipped("a package brings no plugin of an execution provider"))
        elif for_app and options.custom_ops:
            skipped.append(planned.skipped("the app of a package links no library of custom operators"))
        elif for_app and planned.mode is configs.MeasureMode.COLD:
            skipped.append(planned.skipped("an app cannot drop files out of the page cache: no cold start is measured"))
        else:
            kept.append(planned)
    return kept, skipped


def export(config: Config, order: ExportOrder, progress: Progress) -> Exported:
    """Convert and check what a config says, and make a package of its campaign, which is entered in the store.

    An earlier campaign of the same config and artifacts goes on. Raises ConfigError where nothing can be measured so.
    """
    target = chosen_target(config, order)
    _require_measurable(config.measure, target.platform)
    facts = assumed_facts(target)
    asked = job_run.JobOptions(output=order.output, convert_only=True, resume=True)
    with job_run.prepared_job(config, asked, progress) as (job, work):
        programs = programs_for(target, config, order, work / "runtime")
        folder = order.folder or job.folder / f"package-{facts.platform}-{facts.abis[0]}"
        with PackageDevice(work / "package", facts, programs.library) as device:
            runs, skipped = packaged_runs(job, device, facts)
            _, placements = predicted.predict(
                runs,
                {ASSUMED: facts},
                job.config.targets,
                job.folder / storage.ARTIFACTS,
                progress,
            )
            campaign = job.enter({}, [], [], placements=placements)
            plan = job.plan(campaign.id, planning.distinct(runs), {ASSUMED: programs.library}, {})
            asked_turns = (
                confirming_turns(job.store, campaign, plan, order) if order.confirm else plan.turns(plan.planned_runs)
            )
            package = packaged(plan, asked_turns, runs, device, job.config, programs.made_with)
            kept_plan = KeptPlan(campaign=campaign.id, plan=package, skipped=tuple(skipped))
            turns = left_turns(job.store, kept_plan, order.devices) if order.rest else package.turns
            made = MadePackage(
                folder=device.folder,
                plan=package,
                turns=turns,
                conditions=job.config.conditions,
                runtime=programs.runtime,
            )
            write_programs(made, programs.probe)
            if order.runner in runners.ADDITIONS:
                runners.ADDITIONS[order.runner].write(made)
            replace_package(device.folder, folder, package.digest)
            keep_plan(job.folder, kept_plan)
    return Exported(
        folder=str(folder),
        package=package.digest,
        campaign=campaign.id,
        platform=facts.platform,
        abi=facts.abis[0],
        turns=len(turns),
        files=len(package.files),
        bytes=sum(file.bytes for file in package.files.values()),
        skipped=kept_plan.skipped,
    )


def _require_measurable(measure: configs.MeasureConfig, platform: configs.Platform) -> None:
    if measure.perf_test:
        raise ConfigError(
            "a package is run by the probe",
            where="perf_test of [measure]",
            why="onnxruntime_perf_test has no list of turns and no outputs",
            remedy="leave perf_test out",
        )
    if measure.fits_mb and platform is configs.Platform.IOS:
        raise ConfigError(
            "an app cannot limit its memory",
            where="fits_mb of [measure]",
            why="the system limits it, by its footprint",
            remedy="leave fits_mb out for iPhones: memory is in the report",
        )


def packaged_runs(
    job: job_run.CampaignJob, device: PackageDevice, facts: DeviceFacts
) -> tuple[list[campaign_planned.PlannedRun], list[campaign_record.Skipped]]:
    """The runs of a job that its package has, and the others with the reason; ConfigError where none is left."""
    measure = job.config.measure
    measurable = [a for prepared in job.prepared for a in prepared.artifacts if a.source in prepared.references]
    legal, skipped = planning.plan_runs(
        job.config.runs, measurable, [facts], campaign_denied.known_denied(), job.contexts
    )
    possible, refused = job.possible(legal, {ASSUMED: device}, {ASSUMED: None}, change_layout=True)
    runs, left_out = in_package(planning.in_modes(possible, measure), facts.platform, measure)
    reasons = [*skipped, *refused, *left_out]
    if not runs:
        raise ConfigError(
            "nothing of the config can be measured by a package",
            where=f"{facts.platform} on {facts.abis[0]}",
            why="; ".join(dict.fromkeys(run.text for run in reasons)) or "no artifacts",
            remedy="see what `ort-mobile run` says of the same config",
        )
    return runs, reasons


def packaged(
    plan: campaign_measure.CampaignPlan,
    asked_turns: Iterable[campaign_measure.Turn],
    runs: Sequence[campaign_planned.PlannedRun],
    device: PackageDevice,
    config: Config,
    made_with: dict[str, str],
) -> PackagePlan:
    """The plan of a package with all planned runs; the files and requests of its turns are written.

    Each request names files that its turn alone writes, so that no two are equal.
    """
    library = device.library
    positions = {run.id: position for position, run in enumerate(runs)}
    turns = []
    storage.make_folder(device.folder / "requests")
    for number, (planned, round_number) in enumerate(asked_turns):
        name = f"{number:04d}"
        spec = asked_spec(plan, planned, round_number, "")
        request = protocol.encode_request(device.placed(spec, library, ""), prefix=f"{name}.")
        storage.write_bytes(device.folder / "requests" / name, request)
        turns.append(
            PackageTurn(
                turn=name,
                run=positions[planned.id],
                round=round_number,
                request=protocol.request_crc32(request),
                limit_seconds=math.ceil(spec.timeout_seconds + runner_device.GRACE_SECONDS),
                answer_bytes=protocol.answer_limit(spec),
                outputs_bytes=spec.outputs_limit_bytes,
            )
        )
    return PackagePlan(
        name=config.name,
        platform=configs.Platform(device.facts().platform),
        abi=device.facts().abis[0],
        made_with=made_with,
        library=None if library == LINKED else storage.sha256_of(library),
        wait_seconds=round(config.conditions.wait_seconds),
        runs=tuple(
            PackagedRun(
                model=run.model,
                variant=run.variant,
                artifact=run.sha256,
                options=run.options,
                mode=run.mode,
                mapped=run.mapped,
            )
            for run in runs
        ),
        turns=tuple(turns),
        files=device.files,
    )


def asked_spec(
    plan: campaign_measure.CampaignPlan, planned: campaign_planned.PlannedRun, round_number: int, folder: str
) -> RunSpec:
    """What a turn runs, its outputs or its profile in a folder."""
    spec = plan.spec(planned, round_number)
    if plan.is_profiled(round_number):
        return ort_profile.with_profiler(spec, folder)
    return replace(spec, outputs_folder=folder)


def confirming_turns(
    store: Store, campaign: CampaignRecord, plan: campaign_measure.CampaignPlan, order: ExportOrder
) -> list[campaign_measure.Turn]:
    """Fresh rounds of what was chosen by the results of some devices, and of what it was compared with.

    What looks best of many is partly lucky, so these choose nothing. Raises ConfigError where nothing was chosen so.
    """
    chosen = job_run.to_confirm(campaign, store)
    wanted = {
        (run.model, run.way, run.mode)
        for run in campaign.job().planned
        if run.id in chosen
        and (run.device in order.devices if order.devices else runner_device.is_reported(run.device))
    }
    runs = [run for run in plan.planned_runs if (run.model, run.way, run.mode) in wanted]
    if not runs:
        raise ConfigError(
            "nothing was chosen that fresh rounds could confirm",
            where="--confirm",
            why="no choice rests on a comparison by devices that were collected",
            remedy="collect a session of all turns first",
        )
    return [
        (run, campaign_record.FRESH_FROM + number)
        for number in range(campaign_record.FRESH_ROUNDS)
        for run in planning.order_of_round(runs, number)
    ]


def left_turns(store: Store, kept: KeptPlan, devices: Iterable[str]) -> tuple[PackageTurn, ...]:
    """The turns of a package that one of some devices has not run; ConfigError where none of them was collected."""
    collected = [facts.name for facts in store.devices(kept.campaign) if runner_device.is_reported(facts.name)]
    asked = list(devices) or collected
    if not asked or not set(asked) <= set(collected):
        raise ConfigError(
            "no session of such a device was collected",
            where=", ".join(asked) or "--rest",
            why=f"collected are: {', '.join(collected) or 'none'}",
            remedy="leave --rest out for a package with all turns",
        )
    by_id = {run.id: run for run in store.campaign(kept.campaign).job().planned}
    done = {
        (by_id[name].device, by_id[name].model, by_id[name].way, by_id[name].mode, number)
        for name, number in store.finished(kept.campaign)
        if name in by_id
    }
    runs = [(run, f"{run.variant}/{run_options.options_name(run.options)}") for run in kept.plan.runs]
    return tuple(
        turn
        for turn in kept.plan.turns
        for run, way in [runs[turn.run]]
        if any((device, run.model, way, run.mode, turn.round) not in done for device in asked)
    )


def write_programs(made: MadePackage, probe: Path | None) -> None:
    """Write the plan, the list of turns, and with a probe what runs them by a shell."""
    folder = made.folder
    storage.write_bytes(folder / PLAN, made.plan.encoded)
    storage.write_text(folder / "package", made.plan.digest + "\n")
    storage.write_text(folder / "turns", "".join(f"{turn.turn}\n" for turn in made.turns))
    if probe is None:
        return
    storage.write_text(folder / "run.sh", shell.run_script(made.plan.wait_seconds))
    storage.write_text(folder / "state.sh", shell.state_script(made.conditions))
    storage.copy_file(probe, folder / "probe")
    (folder / "probe").chmod(0o755)


def replace_package(made: Path, folder: Path, digest: str) -> None:
    """Put a package that was made into its folder, whole or not at all; a session of the same package stays there.

    Raises ConfigError for a folder that is no package, or has the session of another.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not (folder / "package").is_file():
        raise ConfigError(
            "the folder for the package has other files",
            where=str(folder),
            why="it is no package that could be replaced",
            remedy="name another with --to",
        )
    if SESSION in names and (folder / "package").read_text("utf-8", "replace").strip() != digest:
        raise ConfigError(
            "the folder has a session of another package",
            where=str(folder / SESSION),
            why="its results would belong to nothing any more",
            remedy="collect it and move it away, or name another folder with --to",
        )
    storage.make_folder(folder.parent)
    with storage.storage_errors(folder), runner_files.staging_folder(folder) as new:
        for part in made.iterdir():
            shutil.move(part, new)
        if SESSION in names:  # copied: its only other copy goes with the folder that is replaced
            shutil.copytree(folder / SESSION, new / SESSION, symlinks=True)
        runner_files.take_place(new, folder)
