"""What to run of a bundle (each artifact in every way that ships, API level, processor), and why what failed did."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner import failures, host_device
from device_runner import library as ort_library
from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner.android_host import device as android_host_device
from device_runner.errors import UnavailableError
from device_runner.spec import RunOptions, TensorFile
from pipeline import config as configs
from pipeline import required_ops
from pipeline.campaign import run_options
from pipeline.check import compare as output_compare
from pipeline.check import library_proof
from pipeline.check.compare import OutputCheck
from pipeline.compat import defects as compat_defects
from pipeline.compat import gpu
from pipeline.compat import rules as compat_rules
from pipeline.config import tables as config_tables
from pipeline.core import abis as core_abis
from pipeline.core import custom_ops as core_custom_ops
from pipeline.core import releases as ort_releases
from pipeline.core.errors import CheckFailed, ConfigError, ModelError, Severity
from pipeline.model import ort_format
from pipeline.partition import file_graph, processors
from pipeline.release import kept as kept_files
from pipeline.release import manifest as bundle_manifest
from pipeline.required_ops import proof as required_ops_proof

NEWEST_LEVEL = android_host_device.DEFAULT_API_LEVEL
"""The newest API level at which NNAPI behaves otherwise than below: from it on its runtime tells its own level."""
ANDROID = "android"
NO_LEVEL = 0
"""The API level of a run on another system than Android."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOrder:
    """What to run a bundle with.

    `library` is an AAR, a JAR, a libonnxruntime.so or a release; `targets` are names, () for all of its system;
    `api_levels` () are each target's lowest and the newest. `driver` is what NNAPI is on the phone that is played.
    `abis` () are this computer's own for a first look and those that the targets ship, `cpus` () the ABI's usual ones
    where it is emulated. An emulator has ten times the time limit. `vulkan` names the driver that plays a GPU, "" the
    first there is.
    """

    library: str
    targets: tuple[str, ...] = ()
    api_levels: tuple[int, ...] = ()
    driver: android_host_device.DriverProfile | None = None
    abis: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    """Chips whose contexts must run, in a simulator; () for all where one is here."""
    timeout_seconds: float = 60.0
    vulkan: str = ""

    def phone(self, level: int, cpu: str = "", calls: Path | None = None) -> android_host_device.Phone:
        """The phone that is played at an API level; `calls` is a file for the record of NNAPI calls."""
        return android_host_device.Phone(api_level=level, driver=self.driver, calls=calls, cpu=cpu, vulkan=self.vulkan)


def wanted_targets(
    content: bundle_manifest.Content, order: ProofOrder, system: str = ANDROID
) -> tuple[list[bundle_manifest.Shipped], list[str]]:
    """What of a bundle a library for `system` is for, and the names of the targets that are another platform's.

    Where nothing is for that system, it is Android's targets that the library is refused for.

    Raises ConfigError when that is nothing, or a target that is asked for is not in the bundle; CheckFailed for an
    artifact that is none of the bundle's files.
    """
    files = {file.path for file in content.files}
    if strangers := [shipped.file for shipped in content.ships if shipped.file not in files]:
        why = "it ships what is none of its files, and so was never verified"
        raise CheckFailed(
            "the manifest contradicts itself", where=strangers[0], why=why, remedy="make the bundle again"
        )
    names = dict.fromkeys(shipped.target for shipped in content.ships)
    if unknown := [name for name in order.targets if name not in names]:
        raise ConfigError(f"the bundle has no target {unknown[0]!r}", remedy=f"it ships to {', '.join(names)}")
    chosen = [shipped for shipped in content.ships if not order.targets or shipped.target in order.targets]
    platform = system if any(shipped.platform == system for shipped in chosen) else ANDROID
    ships = [shipped for shipped in chosen if shipped.platform == platform]
    if not ships:
        named = ", ".join(f"{shipped.target} ({shipped.platform})" for shipped in chosen)
        raise ConfigError(
            f"there is nothing to prove in a library for {system}",
            why=f"of the bundle's targets these were asked for: {named or 'none'}",
            remedy="give a library of that platform, or prove it on a device (`ort-mobile run --device ...`)",
        )
    return ships, list(dict.fromkeys(shipped.target for shipped in chosen if shipped.platform != platform))


def tensor_files(bundle: Path, tensors: Sequence[kept_files.KeptTensor]) -> tuple[TensorFile, ...]:
    """Tensors of a bundle as inputs of a run."""
    return tuple(
        TensorFile(name=kept.name, dtype=kept.dtype, shape=kept.shape, file=str(bundle / kept.path)) for kept in tensors
    )


def trials_of(ships: Sequence[bundle_manifest.Shipped], order: ProofOrder) -> list[library_proof.ProofRow]:
    """Every run as a row without what comes of it, the lowest API level first; what targets have in common is one."""
    rows: dict[bytes, library_proof.ProofRow] = {}
    for shipped in ships:
        levels = order.api_levels or levels_of(shipped)
        for level in levels if shipped.platform == ANDROID else (NO_LEVEL,):
            for number, options in enumerate(shipped.runs):
                key = msgspec.json.encode((shipped.file, options, level), order="sorted")
                row = rows.get(key) or library_proof.ProofRow(
                    targets=(),
                    model=shipped.model,
                    variant=shipped.variant.name,
                    file=shipped.file,
                    run=run_options.options_name(options),
                    options=options,
                    api_level=level,
                )
                targets = tuple(dict.fromkeys((*row.targets, shipped.target)))
                rows[key] = msgspec.structs.replace(row, targets=targets, chosen=row.chosen or number == 0)
    return sorted(rows.values(), key=lambda row: row.api_level)


def on_gpu(row: library_proof.ProofRow) -> bool:
    """Whether a GPU computes: no emulated processor has one, and API levels change nothing."""
    return runner_providers.provider_named(row.options.provider).gpu


def levels_of(shipped: bundle_manifest.Shipped) -> tuple[int, ...]:
    """The lowest API level of a target (NNAPI's first where the config names none), and the newest."""
    lowest = shipped.min_api_level or runner_providers.NNAPI_API_LEVEL
    return tuple(dict.fromkeys((lowest, max(lowest, NEWEST_LEVEL))))


@dataclass(frozen=True, slots=True)
class ProofPlace:
    """What is run on an ABI, and the targets on which it decides: for the others it is a first look."""

    abi: str
    deciding: frozenset[str]
    trials: list[library_proof.ProofRow]


def places_of(ships: list[bundle_manifest.Shipped], order: ProofOrder) -> tuple[list[ProofPlace], list[str]]:
    """Where the library of an order runs, and in words which ABIs of targets do not run here, and why.

    Without `order.abis` this computer's own is run first, where the library has it, then each of the targets' ABIs.
    Raises UnavailableError for an ABI that is asked for and cannot run here, or when no ABI of the library can;
    SpecError for a CPU that does not exist.
    """
    targets = {shipped.target: core_abis.abis_of_target(shipped.platform, shipped.abis) for shipped in ships}
    if order.abis:
        return [place for abi in order.abis for place in _places(abi, ships, frozenset(targets), order)], []
    there, host_abi = library_abis(order.library), host_device.default_abi()
    places: list[ProofPlace] = []
    problems: list[UnavailableError] = []
    notes: list[str] = []
    for abi in dict.fromkeys(abi for abis in targets.values() for abi in abis):
        deciding = frozenset(target for target, abis in targets.items() if abi in abis)
        try:
            if abi in there:
                places += _places(abi, [trial for trial in ships if trial.target in deciding], deciding, order)
            else:
                notes.append(
                    f"{abi} was not run: the library has {', '.join(there) or 'no ABI'}; build it for {abi} too"
                )
        except UnavailableError as error:
            problems.append(error)
            notes.append(f"{abi} was not run: {error.reason}; {error.remedy}")
    rest = frozenset(targets).difference(*(place.deciding for place in places))
    if rest and problems and (order.cpus or host_abi not in there):
        raise problems[0]
    if rest:
        notes.append(f"{', '.join(sorted(rest))}: {host_abi} was run instead of its ABIs")
    if (host_abi not in there or order.cpus) and not rest:
        return places, notes
    deciding = rest.union(*(place.deciding for place in places if place.abi == host_abi))
    looks = _places(host_abi, ships, deciding, order)
    if not deciding:
        notes.append(f"{host_abi} was run as a first look: no target ships it, and what fails there is a warning")
    return [*looks, *(place for place in places if place.abi != host_abi)], notes


def library_abis(text: str) -> list[str]:
    """The ABIs that a library's archive or its fetched wheels have; a .so has one."""
    archive = ort_library.find_archive(text)
    return (
        ort_library.archive_abis(archive)
        if ort_library.is_archive(archive)
        else [library.abi for library in ort_library.resolve_all(text)]
    )


def _places(
    abi: str, ships: Sequence[bundle_manifest.Shipped], deciding: frozenset[str], order: ProofOrder
) -> list[ProofPlace]:
    """A place for each CPU: those that are asked for, where the ABI has some or is the only one; "": this computer's.

    No emulated CPU has a GPU beside it.
    """
    usual = host_device.HOST_ABIS[abi].usual if host_device.find_processor(abi).emulated else ("",)
    chosen = order.cpus if len(order.abis) == 1 or host_device.HOST_ABIS[abi].cpus else ()
    if chosen == ("all",):
        chosen = host_device.common_cpus(abi)
    trials, places = trials_of(ships, order), []
    for cpu in (host_device.find_processor(abi, name).cpu for name in chosen or usual):
        rows = (trial for trial in trials if not (cpu and on_gpu(trial)))
        places.append(ProofPlace(abi, deciding, [msgspec.structs.replace(row, abi=abi, cpu=cpu) for row in rows]))
    return places


def loaded(shipped: bundle_manifest.Shipped, options: RunOptions, bundle: Path) -> RunOptions:
    """Options that load the file as it was loaded when it was measured, with the bundle's custom operators."""
    loading = runner_options.MAPPED if shipped.loading == "mapped" else {}
    libraries = (*bundle_manifest.bundled_libraries(bundle), *core_custom_ops.given()) if options.custom_ops else ()
    return msgspec.structs.replace(options, session_config={**loading, **options.session_config}, custom_ops=libraries)


EXPLAINS: dict[str, frozenset[library_proof.FindingKind]] = {
    **dict.fromkeys(
        ("int8-sums", "replayed-int8-sums", "int8-rows"), frozenset({library_proof.FindingKind.OUTPUTS_DIFFER})
    ),
    **dict.fromkeys(
        ("half-precision", "half-pools"),
        frozenset({library_proof.FindingKind.MISSING_KERNEL, library_proof.FindingKind.CANNOT_RUN}),
    ),
    **dict.fromkeys(("sme-crash", "sme-traps"), frozenset({library_proof.FindingKind.CRASH})),
    "sme-values": frozenset({library_proof.FindingKind.OUTPUTS_DIFFER}),
}
"""Defects that depend on the processor, by name, with the findings that each explains."""

AWARE_OF_ABI = (
    "make an EP-aware file by the rules of this ABI, which leave what cannot be built to the CPU (`ort-mobile convert "
    "--ep nnapi --safe --abi {abi}`), or leave nnapi out"
)


def with_cause(
    finding: library_proof.ProofFinding, file: Path, runtime: compat_defects.Runtime, options: RunOptions
) -> library_proof.ProofFinding:
    """The finding with what of the file is known to fail on such a processor as its cause, and the remedy of that.

    What nothing known explains stays as it is.
    """
    if finding.severity is not Severity.ERROR:
        return finding
    provider = options.provider
    facts = compat_rules.read_artifacts({file.name: file}).get(file.name)
    read = facts if isinstance(facts, compat_rules.ArtifactFacts) else None
    for defect in compat_defects.DEFECTS:
        mark = read.defects.get(defect.name, "") if read else ""
        if mark and finding.code in EXPLAINS.get(defect.name, ()) and defect.shows(runtime):
            why = f"{defect.what.format(mark=mark)}, because {defect.why}: {finding.why}"
            return msgspec.structs.replace(finding, why=why, remedy=defect.remedy, config_line="")
    if runner_providers.provider_named(provider).gpu and (
        cause := gpu.first_on_gpu(file, runtime.release, options.provider_options)
    ):
        return msgspec.structs.replace(finding, why=f"{cause.what}: {finding.why}", remedy=cause.remedy)
    refused = read is not None and finding.code is library_proof.FindingKind.PROVIDER_REFUSED
    if (
        refused
        and provider in processors.BY_UNITS
        and (clips := processors.clips_by_processor(file_graph.view_of_file(file)))
    ):
        remedy = (
            AWARE_OF_ABI.format(abi=runtime.abis[0])
            if runner_providers.provider_named(provider).nnapi
            else finding.remedy
        )
        return msgspec.structs.replace(finding, why=f"{clips}: {finding.why}", remedy=remedy)
    return finding


MOST_SAID = 400
"""Characters of a library's own words that a finding keeps."""

KINDS: dict[run_result.FailureKind, library_proof.FindingKind] = {
    run_result.FailureKind.CRASH: library_proof.FindingKind.CRASH,
    run_result.FailureKind.TIMEOUT: library_proof.FindingKind.HANG,
    run_result.FailureKind.PROVIDER_MISSING: library_proof.FindingKind.PROVIDER_MISSING,
    run_result.FailureKind.PROVIDER_REFUSED: library_proof.FindingKind.PROVIDER_REFUSED,
}
"""Kinds of failures that say all; the others are told apart by their texts."""

TOPICS: dict[failures.Topic, tuple[library_proof.FindingKind, str]] = {
    failures.Topic.FORMAT: (library_proof.FindingKind.REFUSED_FORMAT, "the library refuses the file's format"),
    failures.Topic.OPERATOR: (library_proof.FindingKind.UNKNOWN_OPERATOR, "the library does not know an operator"),
}
"""Texts of ONNX Runtime by what they speak of: the kind of finding, and what is wrong."""

WHATS: dict[library_proof.FindingKind, str] = {
    library_proof.FindingKind.CRASH: "the library crashed",
    library_proof.FindingKind.HANG: "the library did not come back in time",
    library_proof.FindingKind.PROVIDER_MISSING: "the library lacks the provider",
    library_proof.FindingKind.PROVIDER_REFUSED: "the provider refused",
    library_proof.FindingKind.CANNOT_RUN: "the library could not load or run it",
}

REMEDIES: dict[library_proof.FindingKind, str] = {
    library_proof.FindingKind.CRASH: "leave {provider} out of [[runs]] for this artifact, or change the model: "
    "`ort-mobile partition` knows the usual causes; the CPU's row says whether the artifact itself is sound",
    library_proof.FindingKind.HANG: (
        "give it more time (--timeout), or leave {provider} out of [[runs]] for this artifact"
    ),
    library_proof.FindingKind.PROVIDER_MISSING: (
        "build the library with {provider} ([build] providers), or leave it out of [[runs]]"
    ),
}
"""What to do where the way to run, or the bundle itself, is what has to change."""

MISSING_IN_STOCK = (
    "no config can bring it: ship a release that has the kernel, or export the model with another type or opset"
)
MISSING_IN_BUILD = (
    "build the library with the bundle's operators/required_operators.config (or _and_types), which has this line; if "
    "it is ONNX Runtime's own package, no config can bring it: ship a release that has the kernel"
)
"""What to do about a kernel that a library lacks."""


def explain_run(
    failure: run_result.Failure | None,
    checks: Sequence[OutputCheck],
    file: Path,
    options: RunOptions,
    ran_in: tuple[ort_library.LibraryFacts, str],
    *,
    stock: bool,
    origin: str,
) -> Iterator[library_proof.ProofFinding]:
    """Findings on a run that failed, or on its outputs, with the cause where the processor is known to be one.

    It `ran_in` a library, on a CPU ("": this computer's own). `stock` as in `explain_failure`, `origin` as in
    ExpectedOutputs.
    """
    library, cpu = ran_in
    # What decides whether a defect shows: the profile that an emulator played says what its processor has.
    profile = host_device.CPUS.get(cpu)
    features = frozenset(profile.features.split()) if profile else None
    if features and profile and profile.announced:
        features |= {compat_defects.SME_TRAPS}
    runtime = compat_defects.Runtime(
        release=ort_releases.line_of(library.release) if library.release else ort_releases.NEWEST_KNOWN,
        kind=config_tables.BuildKind(library.kind),
        asks_replay=options.session_config.get(configs.REPLAY_KEY) == "1",
        abis=(library.abi,),
        features=features,
    )
    findings = (
        (explain_failure(failure, file, options.provider, stock=stock),)
        if failure
        else explain_checks(checks, options.provider, origin)
    )
    for finding in findings:
        yield with_cause(finding, file, runtime, options)


def explain_failure(
    failure: run_result.Failure, file: Path, provider: str, *, stock: bool
) -> library_proof.ProofFinding:
    """The finding of a failed run. `stock`: the library is ONNX Runtime's own package, so no config can fix it."""
    message = " ".join(failure.what.replace(str(file.absolute()), file.name).split())
    message = message if len(message) <= MOST_SAID else f"{message[:MOST_SAID]}..."
    # What the text says of operators, checked against an empty config: every kernel is then one that is missing.
    logged: required_ops_proof.LogFinding | None = None
    if failure.code not in (run_result.FailureKind.CRASH, run_result.FailureKind.TIMEOUT):
        needs: required_ops.Needs = {}
        with suppress(ModelError):  # of a file that cannot be read the types are unknown
            needs = required_ops.needs_of(
                ort_format.read_artifact(file), providers=[] if runner_providers.on_cpu(provider) else [provider]
            )
        logged = next(iter(required_ops_proof.read_log(failure.what, required_ops.EMPTY, [needs])), None)
    if logged and logged.kernel:
        return library_proof.ProofFinding(
            severity=Severity.ERROR,
            code=library_proof.FindingKind.MISSING_KERNEL,
            what=f"the library has no kernel for {logged.kernel}",
            why=message,
            remedy=MISSING_IN_STOCK if stock else MISSING_IN_BUILD,
            config_line=logged.kernel_line,
        )
    text = failures.text_of_message(failure.what, *TOPICS)
    kind_of_topic, what = TOPICS[text.topic] if text else (library_proof.FindingKind.CANNOT_RUN, "")
    kind = KINDS.get(failure.code) or kind_of_topic
    what = what if what and kind is kind_of_topic else WHATS[kind]
    signal = f" ({failure.signal})" if failure.signal and kind is library_proof.FindingKind.CRASH else ""
    cause = logged.why if logged else failure.why
    remedy = logged.remedy if logged else failure.remedy
    if kind in REMEDIES:
        remedy = REMEDIES[kind].format(provider=provider)
    return library_proof.ProofFinding(
        severity=Severity.ERROR,
        code=kind,
        what=what + signal,
        why=f"{cause}: {message}" if cause else message,
        remedy=failure.remedy if failure.signal == "SIGILL" else remedy,
    )


def explain_checks(checks: Sequence[OutputCheck], provider: str, origin: str) -> Iterator[library_proof.ProofFinding]:
    """Findings on outputs that are too far from what they must be, or cannot show it; `origin` as in
    ExpectedOutputs.
    """
    if bad := [check for check in checks if check.failed]:
        other = (
            ""
            if runner_providers.on_cpu(provider)
            else f"if the CPU's outputs pass, leave {provider} out of [[runs]]; else "
        )
        yield library_proof.ProofFinding(
            severity=Severity.ERROR,
            code=library_proof.FindingKind.OUTPUTS_DIFFER,
            what=f"outputs are not those of {origin or 'the original model'}",
            why="; ".join(f"{check.output}: {check.reason}" for check in bad),
            remedy=other + output_compare.remedy_of(bad[0]),
        )
    if unknown := [check for check in checks if check.unknown]:
        yield library_proof.ProofFinding(
            severity=Severity.WARNING,
            code=library_proof.FindingKind.NOT_COMPARED,
            what="it ran, but these inputs cannot show whether its outputs are right",
            why="; ".join(f"{check.output}: {check.reason}" for check in unknown),
            remedy=f"{output_compare.remedy_of(unknown[0])} and make the bundle again",
        )


def not_compared(why: str) -> library_proof.ProofFinding:
    """The finding when there is nothing that outputs could be checked against."""
    return library_proof.ProofFinding(
        severity=Severity.WARNING,
        code=library_proof.FindingKind.NOT_COMPARED,
        what="it ran, but its outputs were compared with nothing",
        why=f"the bundle keeps no reference, and this computer has none ({why})",
        remedy="make the bundle again with this release of ort-mobile: it keeps inputs and outputs of the original",
    )
