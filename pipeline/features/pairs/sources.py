"""What paths name: reports to compare, and artifacts to measure in pairs, with their options and inputs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runner.device import DeviceFacts
from device_runner.files import sha256
from device_runner.reading import read_regular
from device_runner.spec import RunOptions, TensorFile
from pipeline.campaign.options import options_name
from pipeline.campaign.plan import Inputs, PlannedRun, inputs_of, run_of
from pipeline.campaign.record import Host
from pipeline.campaign.statistics.compare import DEFAULT_MARGIN
from pipeline.campaign.store.errors import hidden
from pipeline.config import MeasureMode, Target
from pipeline.core.errors import CheckFailed, ConfigError, PipelineError
from pipeline.core.output import ARTIFACTS, BUNDLE, DATABASE, REFERENCES, RESULTS
from pipeline.core.variant import Artifact, in_precision
from pipeline.features.pairs.comparison import ComparedSide
from pipeline.features.pairs.history import History
from pipeline.job.perf_files import PerfOrder, inputs_of_files
from pipeline.job.stored import REPORT_BYTES, has_campaigns, own_campaign, stored
from pipeline.release.manifest import MANIFEST_FILE, Manifest, Shipped, read_manifest, verify_bundle
from pipeline.report import model
from pipeline.report.model import CampaignReport, Row

SQLITE = b"SQLite format 3\0"
PREVIOUS = "previous"
"""What stands for the campaign before the newest, as in output/my#previous."""


def read_side(text: str, run: str = "") -> ComparedSide:
    """The campaign that `PATH`, `URL` or either with `#CAMPAIGN` names.

    Raises ConfigError for what is nothing of these, and PipelineError for what is damaged or another release's.
    """
    place, _, campaign = text.partition("#") if not Path(text).exists() else (text, "", "")
    if "://" in place:
        report = _stored(None, place, campaign)
    else:
        path = Path(place)
        if not path.exists():
            raise ConfigError(
                "there is nothing to compare", where=place, why="no file or folder has this name",
                remedy="name results.json, results.sqlite, an output folder, a bundle of ort-mobile, or a database URL",
            )  # fmt: skip
        report = _of_path(path, campaign)
    return ComparedSide(source=hidden(text), report=report, run=run)


def _of_path(path: Path, campaign: str) -> CampaignReport:
    if path.is_dir():
        if (path / MANIFEST_FILE).is_file():
            return _of_bundle(path)
        if (path / DATABASE).is_file() or (campaign and has_campaigns(path)):
            return _stored(path, None, campaign)
        return _of_document(path / RESULTS)
    try:
        head = read_regular(path, REPORT_BYTES)[: len(SQLITE)]
    except OSError as error:
        raise ConfigError("the file cannot be read", where=str(path), why=str(error)) from error
    return (
        _stored(path.parent if path.name == DATABASE else None, f"sqlite:///{path}", campaign)
        if head == SQLITE
        else _of_document(path)
    )


def _of_document(path: Path) -> CampaignReport:
    try:
        content = read_regular(path, REPORT_BYTES)
    except OSError as error:
        raise ConfigError(
            f"there is no {RESULTS} here", where=str(path), why=error.strerror or str(error),
            remedy="name results.json, results.sqlite, an output folder or a bundle of ort-mobile",
        ) from error  # fmt: skip
    return model.decode(content, str(path))


def _stored(folder: Path | None, database: str | None, campaign: str) -> CampaignReport:
    if campaign == PREVIOUS:
        campaign = _before_the_newest(folder, database)
    return stored(folder, database, campaign or None).report


def _before_the_newest(folder: Path | None, database: str | None) -> str:
    """The last campaign before the newest that has its name; those of searches have no rounds."""
    with own_campaign(folder, database) as (store, newest):
        names = store.names()
        earlier = list(names)[: list(names).index(newest.id)]
        for campaign in reversed(earlier):
            if names[campaign] == newest.name:
                document = store.campaign(campaign).document
                if not (document and document.searching):
                    return campaign
        raise ConfigError(
            "no campaign is before the newest", where=store.where, remedy="`ort-mobile report --list` lists all"
        )


class _Evidence(msgspec.Struct):
    """What a bundle keeps of its campaign."""

    campaign: str
    created_at: str
    host: Host
    versions: dict[str, str]
    devices: tuple[DeviceFacts, ...]
    measured: tuple[Row, ...]


def _of_bundle(folder: Path) -> CampaignReport:
    manifest = read_manifest(folder)
    try:
        evidence = msgspec.convert(manifest.evidence, _Evidence)
    except msgspec.ValidationError as error:
        raise PipelineError(
            "the bundle does not say what was measured", where=str(folder), why=str(error),
            remedy="make it again: `ort-mobile bundle rebuild OUTPUT`",
        ) from error  # fmt: skip
    return CampaignReport(
        name=manifest.content.name,
        campaign=evidence.campaign,
        created_at=evidence.created_at,
        margin=DEFAULT_MARGIN,
        host=evidence.host,
        versions=evidence.versions,
        devices=evidence.devices,
        rows=evidence.measured,
    )


MODEL_FILES = (".ort", ".onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSource:
    """What a path has: the runs of what ships, by model and target, and every planned run, by model and run.

    They are of no device yet. `library` is libonnxruntime to run with; without one phones have that of the first of
    `targets` that is like them.
    """

    path: Path
    shipped: dict[tuple[str, str], PlannedRun]
    planned: dict[tuple[str, str], PlannedRun] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    library: str | None = None

    @property
    def by_run(self) -> dict[tuple[str, str], PlannedRun]:
        """Every planned run by model and run; of a bundle, which has no plan, what ships."""
        return self.planned or {(run.model, run.run_name): run for run in self.shipped.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A base and a candidate of one model, each as its source has it."""

    base: PlannedRun
    candidate: PlannedRun
    base_source: PairSource
    candidate_source: PairSource

    @property
    def model(self) -> str:
        """Their model, or both."""
        models = dict.fromkeys((self.base.model, self.candidate.model))
        return " → ".join(models)


def model_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those of some paths that are model files by their names."""
    return tuple(path for path in paths if path.is_file() and path.suffix.lower() in MODEL_FILES)


def read_sources(paths: Sequence[Path], order: PerfOrder, work: Path) -> tuple[PairSource, ...]:
    """Each path as what can be measured: a bundle or an output folder with its own options and inputs, a model file
    with those of the order, made in `work`, which must stay while they are run.

    Raises ConfigError for what cannot be measured, CheckFailed for a bundle that was changed.
    """
    inputs = inputs_of_files(order, work) if order.dimensions or order.data.given else {}
    return tuple(_source(path, order.options, inputs.get(str(path))) for path in paths)


def _source(path: Path, options: Sequence[RunOptions], inputs: Inputs | None) -> PairSource:
    if path.is_dir():
        if (path / MANIFEST_FILE).is_file():
            return _bundle_source(path)
        if has_campaigns(path):
            return _folder_source(path)
    elif model_files([path]):
        digest = sha256(path)
        # Two files have no models or targets in common: their options are what pairs them.
        runs = {("", options_name(way)): _run(path.name, path.stem, path, digest, way, inputs) for way in options}
        return PairSource(path=path, shipped=runs)
    raise ConfigError(
        "there is nothing to measure", where=str(path),
        why="it is no model file (.ort, .onnx), no bundle and no output folder of `ort-mobile run`" if path.exists()
        else "no file or folder has this name",
        remedy="name a model file, OUTPUT/bundle, or OUTPUT with its artifacts",
    )  # fmt: skip


def _run(name: str, variant: str, file: Path, digest: str, options: RunOptions, inputs: Inputs | None) -> PlannedRun:
    return PlannedRun(
        device="",
        model=name,
        variant=variant,
        source=name,
        file=str(file.resolve()),
        sha256=digest,
        size_bytes=file.stat().st_size,
        options=options,
        inputs=inputs,
    )


def _bundle_source(folder: Path) -> PairSource:
    manifest = verify_bundle(folder)
    digests = {file.path: file.sha256 for file in manifest.files}
    runs = {
        (row.model, row.target): _run(
            row.model, row.variant.name, folder / row.file, digests[row.file], row.runs[0],
            _kept_inputs(manifest, folder, row),
        )
        for row in manifest.content.ships
    }  # fmt: skip
    return PairSource(path=folder, shipped=runs)


def _kept_inputs(manifest: Manifest, folder: Path, row: Shipped) -> Inputs | None:
    source = in_precision(row.model, row.variant.precision)
    kept = next((reference for reference in manifest.references if reference.model == source), None)
    dimensions = next((sizes.dimensions for sizes in manifest.content.models if sizes.model == row.model), {})
    tensors = tuple(
        TensorFile(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, file=str((folder / tensor.path).resolve()))
        for tensor in (kept.inputs if kept else ())
    )
    return Inputs(tensors=tensors, dimensions={} if tensors else dimensions) if tensors or dimensions else None


def _folder_source(folder: Path) -> PairSource:
    campaign = stored(folder, None, None)
    record = campaign.record

    def inputs(source: str) -> Inputs | None:
        """Those of the model's check, where the folder has them now: it may have been moved since."""
        reference, table = record.references.get(source), record.tables.get(source.partition("@")[0])
        tensors = reference.inputs if reference else ()
        files = [folder / REFERENCES / source / Path(tensor.file).name for tensor in tensors]
        if reference is None or not all(path.is_file() for path in files):
            return Inputs(dimensions=dict(table.dimensions)) if table and table.dimensions else None
        moved = tuple(
            msgspec.structs.replace(tensor, file=str(path.resolve()))
            for tensor, path in zip(tensors, files, strict=True)
        )
        return replace(inputs_of(reference, {}), tensors=moved, labelled=None)

    def run(artifact: Artifact, options: RunOptions) -> PlannedRun:
        file = str((folder / ARTIFACTS / artifact.file).resolve())
        return replace(run_of("", artifact, options), file=file, inputs=inputs(artifact.source))

    shipped = {
        (choice.artifact.model, choice.target.name): run(choice.artifact, choice.options) for choice in campaign.choices
    }
    artifacts = {(artifact.model, artifact.variant.name): artifact for artifact in campaign.report.artifacts}
    runs = [
        run(artifacts[planned.model, planned.variant], planned.options)
        for planned in record.planned
        if (planned.model, planned.variant) in artifacts and planned.mode is MeasureMode.STEADY
    ]
    by_run = {(planned.model, planned.run_name): planned for planned in runs}
    return PairSource(path=folder, shipped=shipped, planned=by_run, targets=record.config.targets)


def paired(base: PairSource, candidate: PairSource) -> tuple[list[Pair], tuple[str, ...], tuple[str, ...]]:
    """What ships of both, by model and target; every planned run of both where one of them ships nothing; and what
    only the base, and only the candidate has. Raises ConfigError where they have nothing in common.
    """
    ships = bool(base.shipped and candidate.shipped)
    before, after = (source.shipped if ships else source.by_run for source in (base, candidate))
    pairs: dict[object, Pair] = {}
    for key in before.keys() & after.keys():
        pair = Pair(base=before[key], candidate=after[key], base_source=base, candidate_source=candidate)
        runs_what = [
            (run.sha256, msgspec.json.encode(run.run_options, order="sorted")) for run in (pair.base, pair.candidate)
        ]
        pairs.setdefault((pair.model, *runs_what), pair)
    if not pairs:
        before_names, after_names = (", ".join(map(_name, list(runs)[:5])) or "nothing" for runs in (before, after))
        raise ConfigError(
            "the two have nothing in common", where=f"{base.path}, {candidate.path}",
            why=f"one has {before_names}, the other {after_names}",
            remedy="name two files, bundles or output folders of the same models and targets",
        )  # fmt: skip
    return (
        sorted(pairs.values(), key=lambda pair: (pair.model, pair.candidate.run_name)),
        tuple(_name(key) for key in before if key not in after),
        tuple(_name(key) for key in after if key not in before),
    )


def _name(key: tuple[str, str]) -> str:
    return " / ".join(part for part in key if part)


def suspected_pairs(
    histories: Iterable[History], base: PairSource, candidate: PairSource
) -> tuple[list[tuple[str, Pair]], tuple[str, ...], tuple[str, ...]]:
    """The pairs of suspected histories, each with its device; and what only the base, and only the candidate has."""
    pairs: list[tuple[str, Pair]] = []
    only_base, only_candidate = [], []
    for row in histories:
        before, after = (source.by_run.get((row.model, row.run)) for source in (base, candidate))
        if before and after:
            pair = Pair(base=before, candidate=after, base_source=base, candidate_source=candidate)
            pairs.append((row.device, pair))
        name = f"{row.device} / {row.model} / {row.run}"
        only_base += [] if after else [name]
        only_candidate += [] if before else [name]
    return pairs, tuple(only_base), tuple(only_candidate)


def require_unchanged(runs: Iterable[PlannedRun]) -> None:
    """Raise CheckFailed for a file that is not the one of its record."""
    for run in runs:
        if not Path(run.file).is_file() or sha256(Path(run.file)) != run.sha256:
            raise CheckFailed(
                "an artifact is not what was recorded", where=run.file,
                why="it is missing or was changed after the campaign",
                remedy=f"run the job again, or name its {BUNDLE} folder",
            )  # fmt: skip
