"""Checks every byte of a bundle offline: anything changed, missing or added is named.

A manifest is not signed: whoever changes a bundle can write a manifest that fits. Where a bundle comes from is proven
only by its digest, compared with the one that its maker names (`expected`).
"""

import os
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from device_runner.reading import read_regular
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.files import sha256_of
from pipeline.release.manifest import (
    MANIFEST_FILE,
    READABLE_VERSIONS,
    SEAL_FILE,
    BundledFile,
    Manifest,
    content_digest,
    sealed,
)

MANIFEST_BYTES = 256 << 20
"""Most that is read of a manifest; one of a hundred models and their evidence has some megabytes."""
SHOWN = 200
"""Characters of a path or a reason that a finding shows."""


def verify_bundle(folder: Path, expected: str = "") -> Manifest:
    """The manifest of a bundle of which every byte matches it.

    `expected` is the digest that the bundle's maker names, "" for none. Raises CheckFailed that names each file that
    was changed, is missing, was added (symbolic links count as added: a bundle has none) or cannot be looked at, and
    ConfigError where there is no bundle at all.
    """
    manifest = read_manifest(folder)
    findings = _contradictions(manifest)
    findings += [finding for file in manifest.files for finding in _compare(folder, file)]
    present, unreadable = _present(folder)
    listed = {file.path for file in manifest.files} | {MANIFEST_FILE, SEAL_FILE}
    findings += [f"added: {path[:SHOWN]}" for path in sorted(present - listed)]
    findings += unreadable
    if findings:
        raise _refusal(folder, findings)
    if expected and manifest.content_sha256 != expected.strip().lower():
        raise _another(folder, manifest.content_sha256, expected)
    return manifest


def refuse_unproven(folder: Path, manifest: Manifest) -> None:
    """Raise CheckFailed for a bundle that failed in a library that ships: whole as it is, it must not ship."""
    try:
        failed = [proof for proof in manifest.proofs if proof.failed]
    except msgspec.ValidationError as error:
        raise _refusal(folder, [f"unreadable: the proofs in {MANIFEST_FILE} ({str(error)[:SHOWN]})"]) from error
    if failed:
        raise CheckFailed(
            f"do not ship this bundle: it failed in {', '.join(proof.library.file for proof in failed)}",
            where=str(folder),
            why="; ".join(f"{text}"[:SHOWN] for proof in failed for text in proof.objections),
            remedy="fix what the proof names (report.md has each cause and remedy), and make the bundle again",
        )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, after its own seal was checked; the files that it lists are not looked at.

    Raises as `verify_bundle`.
    """
    path, seal = folder / MANIFEST_FILE, folder / SEAL_FILE
    try:
        if not path.is_file() and not path.is_symlink():
            raise ConfigError(
                "there is no bundle here",
                where=str(folder),
                why=f"it has no {MANIFEST_FILE}",
                remedy="name the folder that `ort-mobile run` or `ort-mobile release` wrote (…/bundle)",
            )
        if links := [f"link: {file.name}" for file in (path, seal) if file.is_symlink()]:
            raise _refusal(folder, links)
        if not seal.is_file():
            raise _refusal(folder, [f"missing: {SEAL_FILE}"])
        text = read_regular(path, MANIFEST_BYTES)
        wanted = sealed(text)
        if seal.stat().st_size != len(wanted) or read_regular(seal) != wanted:
            raise _refusal(folder, [f"changed: {MANIFEST_FILE} or {SEAL_FILE}"])
    except OSError as error:
        raise _refusal(folder, [_unreadable(Path(error.filename or path).name, error)]) from error
    return _decode(folder, text)


def _decode(folder: Path, text: bytes) -> Manifest:
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
        _check_version(folder, document.get("version"))
        manifest = msgspec.convert(document, Manifest)
        digest = content_digest(document["content"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(folder, [f"unreadable: {MANIFEST_FILE} ({str(error)[:SHOWN]})"]) from error
    if manifest.content_sha256 != digest:
        raise _refusal(folder, [f"changed: the content part of {MANIFEST_FILE}"])
    return manifest


def _check_version(folder: Path, version: object) -> None:
    if version not in READABLE_VERSIONS:
        raise ConfigError(
            f"this bundle has version {str(version)[:SHOWN]}",
            where=str(folder / MANIFEST_FILE),
            why=f"this release reads versions {' and '.join(map(str, READABLE_VERSIONS))}",
            remedy="use the release of ort-mobile that made it, or make the bundle again",
        )


def _contradictions(manifest: Manifest) -> list[str]:
    """What a manifest says that no bundle of ours does: a file listed twice, or shipped and not listed."""
    paths = Counter(file.path for file in manifest.files)
    content = {file.path for file in manifest.content.files}
    odd = [path for path in paths if PurePosixPath(path).as_posix() != path or path in (MANIFEST_FILE, SEAL_FILE)]
    return [
        *(f"not a plain path: {path[:SHOWN]}" for path in odd),
        *(f"listed {count} times: {path[:SHOWN]}" for path, count in paths.items() if count > 1),
        *(f"ships, but is not listed: {one.file[:SHOWN]}" for one in manifest.content.ships if one.file not in content),
    ]


def _compare(folder: Path, file: BundledFile) -> list[str]:
    path = folder / file.path
    try:
        if path.is_symlink() or not path.is_file():
            return [f"missing: {file.path[:SHOWN]}"]
        size = path.stat().st_size
        if size != file.size_bytes:
            return [f"changed: {file.path} ({size} bytes instead of {file.size_bytes})"]
        return [] if sha256_of(path) == file.sha256 else [f"changed: {file.path}"]
    except OSError as error:
        return [_unreadable(file.path, error)]


def _present(folder: Path) -> tuple[set[str], list[str]]:
    """Every file and link below `folder` by its path inside it, and what could not be looked at, as findings.

    Empty folders count as files, with a slash behind their name.
    """
    found: set[str] = set()
    unreadable: list[str] = []
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        inside = place.relative_to(folder)
        try:
            with os.scandir(place) as entries:
                below = list(entries)
            folders = [entry for entry in below if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            unreadable.append(_unreadable(inside.as_posix(), error))
            continue
        waiting += [Path(entry.path) for entry in folders]
        found |= {(inside / entry.name).as_posix() for entry in below if entry not in folders}
        if not below and place != folder:
            found.add(f"{inside.as_posix()}/")
    return found, sorted(unreadable)


def _unreadable(path: str, error: OSError) -> str:
    return f"cannot be read: {path[:SHOWN]} ({error.strerror or error})"


def _refusal(folder: Path, findings: list[str]) -> CheckFailed:
    return CheckFailed(
        f"the bundle does not match its manifest ({len(findings)} {'finding' if len(findings) == 1 else 'findings'})",
        where=str(folder),
        why="; ".join(findings),
        remedy="get the bundle from its source again, or make it again",
    )


def _another(folder: Path, digest: str, expected: str) -> CheckFailed:
    return CheckFailed(
        "this is another bundle than the expected one",
        where=str(folder),
        why=f"its digest is {digest}, expected is {expected}",
        remedy="get the bundle from its source again, and ask its maker for the digest",
    )
