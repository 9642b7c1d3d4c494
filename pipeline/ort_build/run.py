"""Runs a plan, keeps the result by the digest of plan and source, and finds the cause of a failure in its log."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from device_runner.files import BUILD_PREFIX, cache_folder, remove_abandoned, scratch_folder
from device_runner.reading import decode_json
from pipeline.core.errors import PipelineError
from pipeline.core.files import make_folder, sha256_of, storage_errors, write_bytes, write_text
from pipeline.ort_build.plan import BuildPaths, BuildPlan, build_tree_digest, plan_build, plan_digest
from pipeline.ort_build.request import Request
from pipeline.ort_build.source_tree import Progress, SourceTree, build_environment, log_end, run_step, source_digest
from pipeline.required_ops import render

TAIL_LINES = 20
EXCERPT_LINES = 12


class Cause(NamedTuple):
    """Why a build failed, and what to do."""

    why: str
    remedy: str


_CAUSES: tuple[tuple[str, Cause], ...] = (
    (
        r"ort-mobile: missing system dependency: (?P<what>[^\n]+)",
        Cause("a library of this system is missing: {what}", "install it with your package manager"),
    ),
    (
        r"CMake (?P<what>[\d.]+) or higher is required",
        Cause("CMake is older than {what}", "pip install --upgrade cmake"),
    ),
    (
        r"x-block-origin|vcpkg\.storage\.devpackages",
        Cause(
            "vcpkg may download from Microsoft's own mirror only",
            "remove --use_vcpkg_ms_internal_asset_cache from build_aar_package.py in the source tree",
        ),
    ),
    (r"No space left on device", Cause("the disk is full", "free some space, or choose another --work")),
    (
        r"Killed signal terminated program|internal compiler error: Killed|c\+\+: fatal error: Killed",
        Cause("the compiler ran out of memory", "build with fewer jobs: `jobs = 1` in [build]"),
    ),
    (
        r"Could not resolve host|Failed to connect to|Couldn't connect to server|status_code: [67]\b|name resolution",
        Cause(
            "a dependency could not be downloaded",
            'check the network, or build against this system\'s libraries (dependencies = "system" in [build])',
        ),
    ),
    (
        r"error: unrecognized arguments: (?P<what>[^\n]+)",
        Cause("this release's script does not know {what}", "give the release's own source tree with --source"),
    ),
    (
        r"error: argument (?P<what>[^\n]+)",
        Cause("this release's script refuses {what}", "give the release's own source tree with --source"),
    ),
    (
        r"ModuleNotFoundError: No module named '(?P<what>[^'\n]+)'",
        Cause("the build's Python lacks {what}", "python3 -m pip install {what}"),
    ),
    (
        r"Running as root is not allowed",
        Cause("ONNX Runtime's script does not run as root by itself", "build as another user"),
    ),
    (
        r"Failed to resolve executable path for '(?P<what>[^'\n]+)'",
        Cause("{what} is not installed", "pip install {what}"),
    ),
    (
        r"android_[sn]dk_path is required|SDK location not found",
        Cause("the Android SDK or NDK was not found", "set ANDROID_HOME and ANDROID_NDK_HOME"),
    ),
    (
        r"Unable to access jarfile|GradleWrapperMain",
        Cause("gradle-wrapper.jar is missing in java/gradle/wrapper", "take a git checkout, or run `gradle wrapper`"),
    ),
    (
        r"xcodebuild: error: (?P<what>[^\n]+)",
        Cause("Xcode says: {what}", "open Xcode once, accept its licence, install the platform's SDK"),
    ),
    (
        r"Each download failed|HASH mismatch",
        Cause("a download came damaged", "run it again; a mirror may serve another file under that name"),
    ),
    (
        r"FLATBUFFERS_VERSION_MAJOR",
        Cause(
            "the FlatBuffers of this system is not the one that ONNX Runtime's generated code wants",
            "install the version that cmake/deps.txt of the tree names",
        ),
    ),
)
"""Patterns over the end of a log, the most telling first."""

_TELLING = re.compile(r"(?i)\berror\b[: ]|^FAILED:|fatal error|Error:|undefined reference|CalledProcessError|\*\*\*")


def cause_of(log: str) -> Cause | None:
    """The known cause that a log tells of, or None."""
    for pattern, cause in _CAUSES:
        found = re.search(pattern, log)
        if found:
            what = found.groupdict().get("what") or ""
            return Cause(cause.why.format(what=what.strip()), cause.remedy.format(what=what.strip()))
    return None


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


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A build in the cache; `fresh` tells whether it was made now."""

    folder: str
    record: BuildRecord
    fresh: bool


def default_cache() -> Path:
    """Where builds are kept: below the project's own cache."""
    return cache_folder() / "builds"


def run_build(
    request: Request,
    tree: SourceTree,
    cache: Path,
    progress: Progress,
    *,
    android: tuple[Path | None, Path | None] = (None, None),
) -> Built:
    """Build what is asked, or take it from the cache.

    `android` are the folders of SDK and NDK. Raises PipelineError with an excerpt of the log, its known cause and the
    log's path; a build that fails or is interrupted leaves its tree for the next try, and nothing in the cache.
    """
    sources = source_digest(Path(tree.path))
    digest = _sha256(f"{plan_digest(request)}{sources}")
    folder = cache / digest[:32]
    if (kept := read_record(folder)) is not None:
        return Built(folder=str(folder), record=kept, fresh=False)
    work = cache / "trees" / _sha256(f"{build_tree_digest(request)}{sources}")[:32]
    make_folder(work)
    with _alone(work):
        started = time.monotonic()
        plan = plan_build(request, _places(tree, work, android))
        _execute(plan, work, progress)
        record = _record(request, digest, sources, time.monotonic() - started)
        return Built(folder=str(folder), record=_publish(plan, work, folder, record), fresh=True)


def read_record(folder: Path) -> BuildRecord | None:
    """The record of a build in the cache, None when there is none that is whole."""
    try:
        record = decode_json((folder / RECORD).read_bytes(), BuildRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    whole = all(_size(folder / file.file) == file.size_bytes for file in record.files)
    return record if whole else None


def builds_in(cache: Path) -> list[tuple[Path, BuildRecord]]:
    """All whole builds of a cache, by folder name."""
    folders = sorted(path.parent for path in cache.glob(f"*/{RECORD}"))
    return [(folder, record) for folder in folders if (record := read_record(folder)) is not None]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _places(tree: SourceTree, work: Path, android: tuple[Path | None, Path | None]) -> BuildPaths:
    sdk, ndk = (str(folder.absolute()) if folder else None for folder in android)
    return BuildPaths(
        source=str(Path(tree.path).absolute()),
        work=str(work.absolute()),
        python=sys.executable,
        android_sdk=sdk,
        android_ndk=ndk,
        as_root=sys.platform == "linux" and os.geteuid() == 0,
    )


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


def _execute(plan: BuildPlan, work: Path, progress: Progress) -> None:
    for file in plan.files:
        write_text(Path(file.path), file.content)
    log = work / LOG
    log.unlink(missing_ok=True)
    for step in plan.steps:
        code = run_step(step, log, build_environment(os.environ), progress)
        if code:
            raise _failure(plan, step.name, code, log)


def _failure(plan: BuildPlan, step: str, code: int, log: Path) -> PipelineError:
    text = log_end(log)
    cause = cause_of(text)
    return PipelineError(
        f"the build of {step} for {plan.target} failed with exit code {code}",
        where=str(log),
        why=f"{cause.why}\n{excerpt(text)}" if cause else excerpt(text),
        remedy=cause.remedy if cause else "read the log from the first error on",
    )


def _record(request: Request, digest: str, sources: str, seconds: float) -> BuildRecord:
    return BuildRecord(
        digest=digest,
        source_digest=sources,
        target=request.target.name,
        campaign=request.campaign,
        version=request.version,
        kind=request.kind.value,
        providers=request.providers,
        operators=None if request.operators is None else render(request.operators),
        seconds=round(seconds, 1),
        files=(),
    )


def _publish(plan: BuildPlan, work: Path, folder: Path, record: BuildRecord) -> BuildRecord:
    """Copy what came out beside the cache and give it its name there only when all is whole."""
    make_folder(folder.parent)
    remove_abandoned(BUILD_PREFIX, folder.parent)
    with storage_errors(folder), scratch_folder(BUILD_PREFIX, folder.parent) as building:
        whole = building / "whole"
        whole.mkdir()
        files = tuple(_collect(plan, work, whole))
        done = msgspec.structs.replace(record, files=files)
        write_bytes(whole / RECORD, msgspec.json.format(msgspec.json.encode(done)) + b"\n")
        if folder.exists():
            shutil.rmtree(folder)
        whole.rename(folder)
    return done


def _collect(plan: BuildPlan, work: Path, whole: Path) -> Iterator[BuiltFile]:
    for product in plan.products:
        found = sorted(path for path in work.glob(product.pattern))
        if not found:
            raise PipelineError(
                "the build ended well without what it was for", where=str(work / product.pattern),
                why="no such file", remedy=f"read {work / LOG}",
            )  # fmt: skip
        for path in found[:1] if product.abi else found:
            yield from _copied(path, whole, product.abi)


def _copied(path: Path, whole: Path, abi: str) -> Iterator[BuiltFile]:
    """Copy a file, or a folder with all its files, below the ABI's own folder."""
    target = whole / abi / _plain_name(path.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, symlinks=True)
    else:
        shutil.copyfile(path, target)
    for file in sorted(target.rglob("*")) if target.is_dir() else [target]:
        if file.is_file() and not file.is_symlink():
            _sync(file)
            yield BuiltFile(
                file=file.relative_to(whole).as_posix(), abi=abi, size_bytes=file.stat().st_size, sha256=sha256_of(file)
            )


def _plain_name(name: str) -> str:
    """`libonnxruntime.so.1.21.0` as apps know it: without the release."""
    stem, versioned, _ = name.partition(".so.")
    return f"{stem}.so" if versioned else name


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
