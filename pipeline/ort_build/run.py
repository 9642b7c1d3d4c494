"""Runs a plan and keeps what comes of it by the digest of plan and source: the same build is never made twice."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from device_runner.folders import cache_folder
from device_runner.scratch import BUILD_PREFIX, remove_abandoned, scratch_folder
from pipeline.core.errors import PipelineError
from pipeline.core.files import make_folder, sha256_of, storage_errors, write_bytes, write_text
from pipeline.ort_build.failure import cause_of, excerpt
from pipeline.ort_build.plan import BuildPaths, BuildPlan, build_tree_digest, plan_build, plan_digest
from pipeline.ort_build.process import Progress, build_environment, log_end, run_step
from pipeline.ort_build.request import Request
from pipeline.ort_build.source_tree import SourceTree, source_digest
from pipeline.required_ops import render

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
        record = msgspec.json.decode((folder / RECORD).read_bytes(), type=BuildRecord)
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
