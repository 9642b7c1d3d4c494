"""Proves every byte of a bundle offline: anything changed, missing or added is named."""

import os
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import CheckFailed, ConfigError
from pipeline.files import sha256_of
from pipeline.release.manifest import (
    MANIFEST_FILE,
    READABLE_VERSIONS,
    SEAL_FILE,
    BundledFile,
    Manifest,
    content_digest,
)


def verify_bundle(folder: Path) -> Manifest:
    """The manifest of a bundle of which every byte is as it was made.

    Raises CheckFailed that names each file that was changed, is missing or was added (symbolic links count as
    added: a bundle has none), and ConfigError where there is no bundle at all.
    """
    manifest = read_manifest(folder)
    findings = [finding for file in manifest.files for finding in _compare(folder, file)]
    listed = {file.path for file in manifest.files} | {MANIFEST_FILE, SEAL_FILE}
    findings += [f"added: {path}" for path in sorted(_present(folder) - listed)]
    if findings:
        raise _refusal(folder, findings)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, after its own seal was checked; the files that it lists are not looked at.

    Raises as `verify_bundle`.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ConfigError(
            "there is no bundle here",
            where=str(folder),
            why=f"it has no {MANIFEST_FILE}",
            remedy="name the folder that `ort-mobile run` or `ort-mobile release` wrote (…/bundle)",
        )
    seal = folder / SEAL_FILE
    if not seal.is_file():
        raise _refusal(folder, [f"missing: {SEAL_FILE}"])
    if seal.read_bytes() != f"{sha256_of(path)}  {MANIFEST_FILE}\n".encode():
        raise _refusal(folder, [f"changed: {MANIFEST_FILE} or {SEAL_FILE}"])
    return _decode(folder, path.read_bytes())


def _decode(folder: Path, text: bytes) -> Manifest:
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
        _check_version(folder, document.get("version"))
        manifest = msgspec.convert(document, Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal(folder, [f"unreadable: {MANIFEST_FILE} ({error})"]) from error
    if manifest.content_sha256 != content_digest(document["content"]):
        raise _refusal(folder, [f"changed: the content part of {MANIFEST_FILE}"])
    return manifest


def _check_version(folder: Path, version: object) -> None:
    if version not in READABLE_VERSIONS:
        raise ConfigError(
            f"this bundle has version {version}",
            where=str(folder / MANIFEST_FILE),
            why=f"this release reads versions {' and '.join(map(str, READABLE_VERSIONS))}",
            remedy="use the release of ort-mobile that made it, or make the bundle again",
        )


def _compare(folder: Path, file: BundledFile) -> list[str]:
    path = folder / file.path
    if path.is_symlink() or not path.is_file():
        return [f"missing: {file.path}"]
    size = path.stat().st_size
    if size != file.size_bytes:
        return [f"changed: {file.path} ({size} bytes instead of {file.size_bytes})"]
    return [] if sha256_of(path) == file.sha256 else [f"changed: {file.path}"]


def _present(folder: Path) -> set[str]:
    """Every file and link below `folder`, by its path inside it; empty folders count, with a slash behind."""
    found = set()
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found |= {(inside / name).as_posix() for name in [*files, *links]}
        if not files and not folders and place != str(folder):
            found.add(f"{inside.as_posix()}/")
    return found


def _refusal(folder: Path, findings: list[str]) -> CheckFailed:
    return CheckFailed(
        f"the bundle is not as it was made ({len(findings)} {'finding' if len(findings) == 1 else 'findings'})",
        where=str(folder),
        why="; ".join(findings),
        remedy="take the bundle from its source again, or make it anew",
    )
