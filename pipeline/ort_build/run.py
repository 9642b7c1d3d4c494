"""Runs a plan in a source tree, keeps the result by the digest of both, and finds the cause of a failure.

Sizes of what was built: before and after, against a budget, in earlier builds, and what operators and types cost.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner import errors as runner_errors
from device_runner import files as runner_files
from device_runner import untrusted_files
from pipeline import required_ops
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError, Finding, PipelineError, Severity
from pipeline.core.releases import Release
from pipeline.ort_build.plan import BuildPaths, BuildPlan, BuildStep, plan_build, plan_digest
from pipeline.ort_build.request import Request

LEFT_OUT = frozenset({".git", "build", "__pycache__", "node_modules", ".gradle", ".idea", ".vscode"})
"""Folders that no build compiles: history, earlier builds, caches."""


def source_digest(path: Path) -> str:
    """Hex SHA-256 over names and bytes of all files that a build may compile (some seconds for 300 MB)."""
    digest = hashlib.sha256()
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if name not in LEFT_OUT)
        for name in sorted(files):
            file = Path(folder, name)
            if not file.is_file() or file.is_symlink() or name.endswith(".pyc"):
                continue
            digest.update(file.relative_to(path).as_posix().encode("utf-8", "surrogateescape") + b"\0")
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


OnStep = Callable[[str, float], None]
"""Takes the last line of the log and the seconds since the start, about twice a second."""

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
TAIL_BYTES = 4096
LOG_END_BYTES = 1 << 20


def build_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with this process's Python first on the path: CMake calls it, and pip puts tools beside it."""
    return {
        **environment,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
    }


def run_step(step: BuildStep, log: Path, environment: Mapping[str, str], progress: OnStep) -> int:
    """Run a command to its end and return its exit code; the log is appended to.

    The command gets a process group of its own, which is ended with it when this process is interrupted: compilers
    would otherwise go on for hours.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            step.arguments,
            cwd=step.folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = time.monotonic()
    try:
        while process.poll() is None:
            lines = [line for line in log_end(log, TAIL_BYTES).splitlines() if line.strip()]
            progress(lines[-1].strip() if lines else "", time.monotonic() - started)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    except BaseException:
        # End a command with all that it started: politely, then not
        for ending, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, ending)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        raise
    return process.returncode


def log_end(log: Path, size: int = LOG_END_BYTES) -> str:
    """The last `size` bytes of a log as text."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read().decode("utf-8", "replace")


TAIL_LINES = 20
EXCERPT_LINES = 12


def _said(pattern: str) -> Callable[[str], Mapping[str, object] | None]:
    """Whether a log has a text, with what it names there."""

    def applies(log: str) -> Mapping[str, object] | None:
        match = re.search(pattern, log)
        return match and {"what": (match.groupdict().get("what") or "").strip()}

    return applies


_CAUSES = tuple(
    core_errors.FindingRule(_said(pattern), Severity.ERROR, what, remedy=remedy)
    for pattern, what, remedy in (
        (
            r"ort-mobile: missing system dependency: (?P<what>[^\n]+)",
            "a library of this system is missing: {what}",
            "install it with your package manager",
        ),
        (
            r"CMake (?P<what>[\d.]+) or higher is required",
            "CMake is older than {what}",
            runner_errors.pip_install("--upgrade", "cmake"),
        ),
        (
            r"x-block-origin|vcpkg\.storage\.devpackages",
            "vcpkg may download from Microsoft's own mirror only",
            "remove --use_vcpkg_ms_internal_asset_cache from build_aar_package.py in the source tree",
        ),
        (r"No space left on device", "the disk is full", "free some space, or choose another --cache"),
        (
            r"Killed signal terminated program|internal compiler error: Killed|c\+\+: fatal error: Killed",
            "the compiler ran out of memory",
            "build with fewer jobs: `jobs = 1` in [build]",
        ),
        (
            (
                r"Could not resolve host|Failed to connect to|Couldn't connect to server|status_code: [67]\b|name "
                r"resolution"
            ),
            "a dependency could not be downloaded",
            'check the network, or build against this system\'s libraries (dependencies = "system" in [build])',
        ),
        (
            r"error: unrecognized arguments: (?P<what>[^\n]+)",
            "this release's script does not know {what}",
            "give the release's own source tree with --source",
        ),
        (
            r"error: argument (?P<what>[^\n]+)",
            "this release's script refuses {what}",
            "give the release's own source tree with --source",
        ),
        (
            r"ModuleNotFoundError: No module named '(?P<what>[^'\n]+)'",
            "the build's Python lacks {what}",
            runner_errors.pip_install("{what}"),
        ),
        (
            r"Running as root is not allowed",
            "ONNX Runtime's script does not run as root by itself",
            "build as another user",
        ),
        (
            r"Failed to resolve executable path for '(?P<what>[^'\n]+)'",
            "{what} is not installed",
            runner_errors.pip_install("{what}"),
        ),
        (
            r"android_[sn]dk_path is required|SDK location not found",
            "the Android SDK or NDK was not found",
            "set ANDROID_HOME and ANDROID_NDK_HOME",
        ),
        (
            r"Unable to access jarfile|GradleWrapperMain",
            "gradle-wrapper.jar is missing in java/gradle/wrapper",
            "take a git checkout, or run `gradle wrapper`",
        ),
        (
            r"xcodebuild: error: (?P<what>[^\n]+)",
            "Xcode says: {what}",
            "open Xcode once, accept its licence, install the platform's SDK",
        ),
        (
            r"Each download failed|HASH mismatch",
            "a download came damaged",
            "run it again; a mirror may serve another file under that name",
        ),
        (
            r"FLATBUFFERS_VERSION_MAJOR",
            "the FlatBuffers of this system is not the one that ONNX Runtime's generated code wants",
            "install the version that cmake/deps.txt of the tree names",
        ),
    )
)
"""Patterns over the end of a log, the most telling first."""

_TELLING = re.compile(r"(?i)\berror\b[: ]|^FAILED:|fatal error|Error:|undefined reference|CalledProcessError|\*\*\*")


def cause_of(log: str) -> Finding | None:
    """The known cause that a log tells of, or None."""
    return next(core_errors.findings(_CAUSES, log, ""), None)


def excerpt(log: str) -> str:
    """The first lines that speak of an error, with what follows each; the last lines when none does."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if _TELLING.search(line)), None)
    return "\n".join(lines[-TAIL_LINES:] if first is None else lines[first : first + EXCERPT_LINES])


RECORD = "build.json"
LOG = "build.log"


class BuiltFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a build left, by its path below the build's folder."""

    file: str
    abi: str
    size_bytes: int
    sha256: str


class BuildRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was built, from what, and what came out: `build.json` beside the files."""

    format: int = 1
    digest: str
    source_digest: str
    target: str
    campaign: str = ""
    """`campaign_digest` of the config that it was built for, "" for none."""
    version: str
    kind: str
    providers: tuple[str, ...]
    operators: str | None
    seconds: float
    files: tuple[BuiltFile, ...]


def default_cache() -> Path:
    """Where builds are kept: below the project's own cache."""
    return runner_files.cache_folder() / "builds"


@dataclass(frozen=True, slots=True)
class Build:
    """A build in the cache: its folder there, its record, and whether it was made now."""

    folder: Path
    record: BuildRecord
    fresh: bool


def run_build(
    request: Request,
    source: Path,
    cache: Path,
    progress: OnStep,
    *,
    android: tuple[Path | None, Path | None] = (None, None),
) -> Build:
    """Build what is asked, or take it from the cache.

    `android` are the folders of SDK and NDK. Raises PipelineError with an excerpt of the log, its known cause and the
    log's path; a build that fails or is interrupted leaves its tree for the next try, and nothing in the cache.
    """
    sources = source_digest(source)
    digest = _sha256(f"{plan_digest(request)}{sources}")
    folder = cache / digest[:32]
    if (kept := read_record(folder)) is not None:
        return Build(folder, kept, fresh=False)
    work = cache / "trees" / _sha256(f"{plan_digest(request, operators=False)}{sources}")[:32]
    storage.make_folder(work)
    with _alone(work):
        started = time.monotonic()
        sdk, ndk = (str(path.absolute()) if path else None for path in android)
        places = BuildPaths(
            source=str(source.absolute()),
            work=str(work.absolute()),
            python=sys.executable,
            android_sdk=sdk,
            android_ndk=ndk,
            as_root=sys.platform == "linux" and os.geteuid() == 0,
        )
        plan = plan_build(request, places)
        for file in plan.files:
            storage.write_text(Path(file.path), file.content)
        log = work / LOG
        log.unlink(missing_ok=True)
        for step in plan.steps:
            code = run_step(step, log, build_environment(os.environ), progress)
            if code:
                text = log_end(log)
                cause = cause_of(text)
                raise PipelineError(
                    f"the build of {step.name} for {plan.target} failed with exit code {code}",
                    where=str(log),
                    why=f"{cause.what}\n{excerpt(text)}" if cause else excerpt(text),
                    remedy=cause.remedy if cause else "read the log from the first error on",
                )
        record = BuildRecord(
            digest=digest,
            source_digest=sources,
            target=request.target.name,
            campaign=request.campaign,
            version=request.version,
            kind=request.kind.value,
            providers=request.providers,
            operators=None if request.operators is None else required_ops.render(request.operators),
            seconds=round(time.monotonic() - started, 1),
            files=(),
        )
        # Copy what came out beside the cache and give it its name there only when all is whole
        storage.make_folder(folder.parent)
        with storage.storage_errors(folder), runner_files.staging_folder(folder) as whole:
            files = tuple(_collect(plan, work, whole))
            done = msgspec.structs.replace(record, files=files)
            storage.write_bytes(whole / RECORD, msgspec.json.format(msgspec.json.encode(done)) + b"\n")
            runner_files.take_place(whole, folder)
        return Build(folder, done, fresh=True)


def read_record(folder: Path) -> BuildRecord | None:
    """The record of a build in the cache, None when there is none that is whole."""
    try:
        record = untrusted_files.decode_json((folder / RECORD).read_bytes(), BuildRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    whole = all(
        (path := folder / file.file).is_file() and path.stat().st_size == file.size_bytes for file in record.files
    )
    return record if whole else None


def builds_in(cache: Path) -> list[tuple[Path, BuildRecord]]:
    """All whole builds of a cache, by folder name."""
    folders = sorted(path.parent for path in cache.glob(f"*/{RECORD}"))
    return [(folder, record) for folder in folders if (record := read_record(folder)) is not None]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Keep a second build out of the same tree; it waits for nothing and says so."""
    with (work / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PipelineError(
                "this build is running already", where=str(work), remedy="wait for it, or end that process"
            ) from error
        yield


def _collect(plan: BuildPlan, work: Path, whole: Path) -> Iterator[BuiltFile]:
    for product in plan.products:
        paths = sorted(path for path in work.glob(product.pattern))
        if not paths:
            raise PipelineError(
                "the build ended well without what it was for",
                where=str(work / product.pattern),
                why="no such file",
                remedy=f"read {work / LOG}",
            )
        for path in paths[:1] if product.abi else paths:
            # Copy a file, or a folder with all its files, below the ABI's own folder
            # `libonnxruntime.so.1.21.0` as apps know it: without the release
            stem, versioned, _ = path.name.partition(".so.")
            target = whole / product.abi / (f"{stem}.so" if versioned else path.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, symlinks=True)
            else:
                shutil.copyfile(path, target)
            for file in sorted(target.rglob("*")) if target.is_dir() else [target]:
                if file.is_file() and not file.is_symlink():
                    runner_files.sync(file)
                    yield BuiltFile(
                        file=file.relative_to(whole).as_posix(),
                        abi=product.abi,
                        size_bytes=file.stat().st_size,
                        sha256=storage.sha256_of(file),
                    )


SizedBuild = tuple[required_ops.RequiredOps, int]
"""What a build contains, and how many bytes its library has."""


def check_budget(sizes: Mapping[str, int], budget: Mapping[str, int]) -> tuple[Finding, ...]:
    """An error for each ABI whose library is larger than its budget, a warning for a budget that nothing was held to.

    Sizes and budgets are in bytes by ABI.
    """
    findings = []
    for abi, limit in sorted(budget.items()):
        size = sizes.get(abi)
        if size is None:
            findings.append(
                Finding(
                    severity=Severity.WARNING,
                    code=core_errors.BUDGET,
                    what=f"no library for {abi} was checked against its budget",
                    where="[build] max_library_bytes",
                    why=f"there are: {', '.join(sorted(sizes)) or 'none'}",
                    remedy="build that ABI, or remove its budget",
                )
            )
        elif size > limit:
            findings.append(
                Finding(
                    severity=Severity.ERROR,
                    code=core_errors.BUDGET,
                    what=f"the library for {abi} is {size - limit:,} bytes over budget",
                    where="[build] max_library_bytes",
                    why=f"it has {size:,} bytes, {limit:,} are allowed",
                    remedy="`ort-mobile build size` ranks operators by what they add; or raise the budget",
                )
            )
    return tuple(findings)


def rank_additions(builds: Sequence[SizedBuild]) -> list[tuple[tuple[str, ...], int]]:
    """What operators and types cost in bytes, from pairs of builds of which one contains the other.

    The dearest come first, by what each costs where several were added and all cost the same. Of the pairs with the
    same addition the first counts. Builds must differ in their operators only: same release,
    ABI, kind and options.
    """
    sizes: dict[tuple[str, ...], int] = {}
    for small, small_bytes in builds:
        for large, large_bytes in builds:
            if small != large and large.contains(small) and (added := added_names(small, large)):
                sizes.setdefault(added, large_bytes - small_bytes)
    return sorted(sizes.items(), key=lambda pair: (-(pair[1] // len(pair[0])), pair[0]))


def added_names(small: required_ops.RequiredOps, large: required_ops.RequiredOps) -> tuple[str, ...]:
    """What `large` has over `small`: `domain:op` for operators, `domain:op type` for types of operators that both
    have.
    """
    before, after = small.operator_keys(), large.operator_keys()
    operators = [f"{domain}:{op}" for domain, op in after - before]
    versions = [
        f"{domain}:{op} opset {opset}"
        for (domain, opset), ops in large.operators.items()
        for op in ops - small.operators.get((domain, opset), frozenset())
        if (domain, op) in before
    ]
    types = set()
    for domain, op in before & after:
        old, new = small.types.get((domain, op)), large.types.get((domain, op))
        if old is not None and new is None:
            types.add(f"{domain}:{op} all types")
        for slot, names in (new or {}).items():
            types |= {f"{domain}:{op} {name}" for name in names - (old or {}).get(slot, names)}
    return tuple(sorted([*operators, *versions, *types]))


def newest_build(target: str, release: Release, campaign: str, cache: Path | None = None) -> BuildRecord | None:
    """The newest build on this computer for a target and release of a campaign, None where none was made.

    `campaign` is its `campaign_digest`: another project's target may have the same name, as `phone`.
    """
    builds = [
        (folder, record)
        for folder, record in builds_in(cache or default_cache())
        if (record.target, record.campaign) == (target, campaign) and ort_releases.line_of(record.version) == release
    ]
    return max(builds, key=lambda build: (build[0] / RECORD).stat().st_mtime_ns)[1] if builds else None


def build_of(digests: Collection[str]) -> BuildRecord | None:
    """The build on this computer that made a library with one of these sha256, None where none did."""
    records = (record for _, record in builds_in(default_cache()))
    return next(
        (record for record in records if any(file.abi and file.sha256 in digests for file in record.files)), None
    )


def operators_of(record: BuildRecord) -> required_ops.RequiredOps | None:
    """The operators that a build was reduced to, None where it has all."""
    return None if record.operators is None else required_ops.parse(record.operators, record.digest)


def sizes_of_record(record: BuildRecord) -> dict[str, int]:
    """Bytes of the library by ABI."""
    return {file.abi: file.size_bytes for file in record.files if file.abi}


@dataclass(frozen=True, slots=True)
class AddedSize:
    """What some operators and types added to the library of an ABI."""

    abi: str
    added: tuple[str, ...]
    size_bytes: int


def ranking(records: Iterable[BuildRecord]) -> list[AddedSize]:
    """What operators and types added between builds that differ in operators only, by ABI; the dearest of one first."""
    groups = counting.grouped(
        ((record.version, record.kind, record.providers, record.source_digest, abi), (operators, size))
        for record in records
        if (operators := operators_of(record)) is not None
        for abi, size in sizes_of_record(record).items()
    )
    return [AddedSize(key[-1], added, size) for key, builds in groups.items() for added, size in rank_additions(builds)]


MOST_BUILDS = 20
"""Newest builds of this computer that `added_by_operator` compares, each with each."""


def added_by_operator() -> dict[str, dict[str, int]]:
    """What single operators, as `domain:op`, added to libraries that were built on this computer: bytes by ABI."""
    builds = sorted(builds_in(default_cache()), key=lambda build: (build[0] / RECORD).stat().st_mtime_ns)
    sizes: dict[str, dict[str, int]] = {}
    for addition in ranking(record for _, record in builds[-MOST_BUILDS:]):
        if len(addition.added) == 1:
            sizes.setdefault(addition.added[0], {}).setdefault(addition.abi, addition.size_bytes)
    return sizes


def measured_at(path: Path, cache: Path) -> tuple[Mapping[str, int], required_ops.RequiredOps | None]:
    """Bytes of the library there by ABI, and the operators of a build (None for libraries of unknown ones).

    Raises ConfigError for what is neither a file nor one build, MissingError for a wrong file.
    """
    from device_runner import library as ort_library

    if path.is_file() or ort_library.name_of(str(path)):
        return {library.abi: library.facts.size_bytes for library in ort_library.resolve_all(str(path))}, None
    if path.is_dir():
        record = read_record(path)
    else:
        named = [build for folder, build in builds_in(cache) if folder.name.startswith(str(path))]
        if len(named) > 1:
            raise ConfigError(
                f"{len(named)} builds begin with {str(path)!r}", where=str(cache), remedy="give more letters"
            )
        record = named[0] if named else None
    if record is None:
        raise ConfigError(
            "there is no whole build", where=str(path), remedy="`ort-mobile build size` lists the builds that are there"
        )
    return sizes_of_record(record), operators_of(record)
