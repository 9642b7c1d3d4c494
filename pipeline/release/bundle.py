"""Makes a bundle: a new folder takes the old one's place only when every byte of it is written and proven."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from device_runner.files import scratch_folder
from pipeline.core.errors import ConfigError
from pipeline.core.files import copy_file, make_folder, sha256_of, storage_errors, umask, write_bytes
from pipeline.release.manifest import (
    MANIFEST_FILE,
    SEAL_FILE,
    BundledFile,
    Content,
    KeptReference,
    Manifest,
    ModelSignature,
    Shipped,
    content_digest,
    encode_manifest,
    sealed,
)
from pipeline.release.readme import README_FILE, readme
from pipeline.release.verify import verify_bundle

OLD = "old"
"""The bundle that is being replaced, in a folder of its own."""


def make_bundle(
    folder: Path,
    *,
    name: str,
    sources: Mapping[str, Path | bytes],
    ships: tuple[Shipped, ...],
    made_with: Mapping[str, str],
    evidence: Mapping[str, Any],
    models: tuple[ModelSignature, ...] = (),
    reports: Mapping[str, bytes] | None = None,
    references: tuple[KeptReference, ...] = (),
    tensors: Mapping[str, Path] | None = None,
    attest: Callable[[Path], Mapping[str, Any]] = lambda _: {},
) -> Manifest:
    """Write a bundle to `folder` from `sources` (path inside the bundle to a file or its bytes).

    README.md is made of `ships` and `models`. `reports` are texts on the evidence, and `tensors` the files of
    `references`, by path. `attest` is given the finished bundle, whole and verified but not
    yet in its place; what it returns is added to the evidence. An older bundle there is replaced at once by renaming; a
    folder that holds anything else is left alone and refused.
    """
    make_folder(folder.parent)
    refuse_foreign(folder)
    with contextlib.ExitStack() as stack:
        with storage_errors(folder):
            building = stack.enter_context(scratch_folder(f".{folder.name}.", folder.parent))
        texts = {README_FILE: readme(name, ships, models).encode()}
        files = tuple(_put(building, path, source) for path, source in sorted({**sources, **texts}.items()))
        told = tuple(_put(building, path, text) for path, text in sorted((reports or {}).items()))
        for path, source in (tensors or {}).items():
            _put(building, path, source)
        content = Content(name=name, made_with=dict(made_with), files=files, ships=ships, models=models)
        manifest = Manifest(
            content=content,
            content_sha256=content_digest(content),
            references=references,
            evidence=dict(evidence),
            reports=told,
        )
        _seal(building, manifest)
        if added := attest(building):
            manifest = msgspec.structs.replace(manifest, evidence={**evidence, **added})
            _seal(building, manifest)
        _take_place(building, folder)
    return manifest


def _seal(building: Path, manifest: Manifest) -> None:
    """Write manifest and seal, and prove that the bundle is then whole."""
    text = encode_manifest(manifest)
    write_bytes(building / MANIFEST_FILE, text)
    write_bytes(building / SEAL_FILE, sealed(text))
    verify_bundle(building)


def refuse_foreign(folder: Path) -> None:
    """Raise when `folder` holds something that is no bundle: it would be lost."""
    if not folder.exists() or (folder / MANIFEST_FILE).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise ConfigError(
            "this folder is no bundle of ours",
            where=str(folder),
            why=f"it is not empty and has no {MANIFEST_FILE}; making the bundle would delete what is there",
            remedy="move it away, or choose another folder with --output",
        )


def _put(building: Path, path: str, source: Path | bytes) -> BundledFile:
    target = building / path
    if isinstance(source, bytes):
        write_bytes(target, source)
    else:
        copy_file(source, target)
    return BundledFile(path=path, size_bytes=target.stat().st_size, sha256=sha256_of(target))


def _take_place(building: Path, folder: Path) -> None:
    """Rename the new bundle into place; the old one goes last, so that at every instant one of them is whole."""
    with storage_errors(folder):
        building.chmod(0o777 & ~umask())
        if not folder.exists():
            building.rename(folder)
            return
        with scratch_folder(f".{folder.name}.", folder.parent) as old:
            folder.rename(old / OLD)
            building.rename(folder)


def restore_interrupted(folder: Path) -> None:
    """Put a bundle back that a process was about to replace when it was killed. Raises PipelineError."""
    if not folder.exists():
        for old in folder.parent.glob(f".{folder.name}.*/{OLD}"):
            with storage_errors(folder):
                old.rename(folder)
            return
