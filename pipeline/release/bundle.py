"""Makes a bundle: a new folder takes the old one's place only when every byte of it is written and proven."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.files import copy_file, make_folder, sha256_of, storage_errors, umask, write_bytes, write_text
from pipeline.release.manifest import (
    MANIFEST_FILE,
    SEAL_FILE,
    BundledFile,
    Content,
    Shipped,
    encode_manifest,
)
from pipeline.release.verify import verify_bundle


def make_bundle(
    folder: Path,
    *,
    name: str,
    sources: Mapping[str, Path | bytes],
    ships: tuple[Shipped, ...],
    made_with: Mapping[str, str],
    evidence: Mapping[str, Any],
) -> Content:
    """Write a bundle to `folder` from `sources` (path inside the bundle to a file or its bytes).

    An older bundle there is replaced at once by renaming; a folder that holds anything else is left alone and refused.
    """
    make_folder(folder.parent)
    refuse_foreign(folder)
    with storage_errors(folder):
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        files = tuple(_put(building, path, sources[path]) for path in sorted(sources))
        content = Content(name=name, made_with=dict(made_with), files=files, ships=ships)
        manifest = building / MANIFEST_FILE
        write_bytes(manifest, encode_manifest(content, dict(evidence)))
        write_text(building / SEAL_FILE, f"{sha256_of(manifest)}  {MANIFEST_FILE}\n")
        verify_bundle(building)
        _take_place(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return content


def refuse_foreign(folder: Path) -> None:
    """Raise when `folder` holds something that is no bundle: it would be lost."""
    if not folder.exists() or (folder / MANIFEST_FILE).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise PipelineError(
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
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent)) / "old"
            folder.rename(old)
            building.rename(folder)
            shutil.rmtree(old.parent)
        else:
            building.rename(folder)
