"""The difference between two bundles as one small file, and a new bundle made of an old one and it.

A delta is a ZIP of stored members: `delta.json`, and for each file of the new bundle that the old one does not have the
smallest of three forms (release_consumers R.5): compressed alone, as a patch of a file of the old bundle, or as the
differences of its 32-bit words, sorted by significance, which is what fine-tuned weights need. Needs the package
zstandard (extra `delta`).
"""

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from device_runner.files import ZIP_ERRORS, remove_abandoned, scratch_folder
from device_runner.reading import read_regular
from device_runner.result import Struct
from pipeline.core.errors import CheckFailed, ConfigError, missing_extra
from pipeline.core.files import copy_file, sha256_of, storage_errors, write_bytes, write_zip
from pipeline.release.attestation import verify_signed
from pipeline.release.bundle import refuse_foreign, restore_interrupted, take_place
from pipeline.release.manifest import (
    MANIFEST_FILE,
    OWN_FILES,
    BundledFile,
    Manifest,
    verify_bundle,
)
from pipeline.release.update import App, refuse_misfit

ANY_APP = App()
"""Nothing is known of the app."""

EXTRA = "delta"
DELTA_FILE = "delta.json"
DELTA_VERSION = 1
LEVEL = 19
WORTH = 0.8
"""A form that is larger than this share of the file is not worth its time: the file is stored as it is."""
LARGEST_BASE = 1 << 30
"""Files above are not patched: the patch needs both in memory, and zstd's window ends at 2 GiB."""
DELTA_BYTES = 16 << 20
LARGEST_FILE = 4 << 30

Words = npt.NDArray[np.uint32]
How = Literal["kept", "whole", "zstd", "patch", "words"]


class DeltaFile(BundledFile, frozen=True, kw_only=True):
    """A file of the new bundle and its form: `base` is a file of the old bundle, `member` one of the delta."""

    how: How
    base: str = ""
    member: str = ""


class Delta(Struct, frozen=True, kw_only=True):
    """`delta.json`. Both bundles are named by the sha256 of their manifest.json, which covers every byte of them."""

    version: int = DELTA_VERSION
    old_manifest_sha256: str
    new_manifest_sha256: str
    old_digest: str
    new_digest: str
    files: tuple[DeltaFile, ...]


def write_delta(old: Path, new: Path, output: Path) -> Delta:
    """Write the delta between two bundles. Raises as `verify_bundle`, and MissingError without zstandard."""
    zstandard = _zstandard("delta")
    before, after = verify_bundle(old), verify_bundle(new)
    places = {digest: path for path, digest in _digests(old, before).items()}
    models = {one.model: one.file for one in before.content.ships}
    with storage_errors(output), scratch_folder(f".{output.name}.", output.absolute().parent) as work:
        files: list[DeltaFile] = []
        members: dict[str, Path | bytes] = {}
        for number, (path, digest) in enumerate(sorted(_digests(new, after).items())):
            base = places.get(digest) or _base(path, after, models, old)
            found, content = _form(zstandard, new / path, old / base if base else None, kept=digest in places)
            member = f"{number}.{found}" if content is not None else ""
            if content is not None:
                members[member] = work / member
                write_bytes(work / member, content)
            size = (new / path).stat().st_size
            uses = base if found in ("kept", "patch", "words") else ""
            files.append(DeltaFile(path=path, size_bytes=size, sha256=digest, how=found, base=uses, member=member))
        delta = Delta(
            old_manifest_sha256=sha256_of(old / MANIFEST_FILE),
            new_manifest_sha256=sha256_of(new / MANIFEST_FILE),
            old_digest=before.content_sha256,
            new_digest=after.content_sha256,
            files=tuple(files),
        )
        write_zip(output, {**members, DELTA_FILE: msgspec.json.encode(delta, order="sorted")})
    return delta


def apply_delta(
    path: Path, bundle: Path, key: Path | None = None, app: App = ANY_APP, keep: Path | None = None
) -> Delta:
    """Turn a bundle into the newer one, at once and whole; the old one stays where anything is wrong.

    With `key`, a public one, the new bundle must be signed by its owner; it must fit what is known of `app`. `keep` is
    a folder that gets a whole copy of the old bundle before the new one takes its place. Raises CheckFailed for another
    bundle than the delta was made for, a damaged delta, a signature that does not hold, and an app that it is not for.
    """
    zstandard = _zstandard("apply")
    if not path.is_file():
        raise ConfigError("there is no delta", where=str(path), remedy="name the file that `ort-mobile delta` wrote")
    restore_interrupted(bundle)
    remove_abandoned(f".{bundle.name}.", bundle.absolute().parent)
    old = verify_bundle(bundle)
    if keep:
        refuse_foreign(keep)
        restore_interrupted(keep)
        remove_abandoned(f".{keep.name}.", keep.absolute().parent)
    try:
        with zipfile.ZipFile(path) as archive:
            delta = _read(archive, path)
            if sha256_of(bundle / MANIFEST_FILE) == delta.new_manifest_sha256:
                return delta
            _refuse_other(bundle, delta)
            with storage_errors(bundle), scratch_folder(f".{bundle.name}.", bundle.absolute().parent) as building:
                for file in delta.files:
                    _make(zstandard, archive, file, bundle, building)
                manifest = verify_bundle(building, delta.new_digest)
                if key:
                    verify_signed(building, manifest, key)
                if app.known:
                    refuse_misfit(app, old, manifest, building)
                if keep:
                    _keep(bundle, keep)
                take_place(building, bundle)
    except (*ZIP_ERRORS, zstandard.ZstdError, KeyError) as error:
        raise _damaged(path, str(error)) from error
    return delta


def _keep(bundle: Path, place: Path) -> None:
    """A whole copy of a bundle, by a rename; what was kept there before goes."""
    with storage_errors(place), scratch_folder(f".{place.name}.", place.absolute().parent) as copy:
        shutil.copytree(bundle, copy, dirs_exist_ok=True)
        take_place(copy, place)


def _digests(folder: Path, manifest: Manifest) -> dict[str, str]:
    """Every file of a verified bundle to its sha256."""
    found = {file.path: file.sha256 for file in manifest.files}
    return found | {name: sha256_of(folder / name) for name in OWN_FILES if (folder / name).is_file()}


def _base(path: str, after: Manifest, models: Mapping[str, str], old: Path) -> str:
    """The file of the old bundle that is most likely alike: of the same path, else of the same model."""
    if (old / path).is_file():
        return path
    return next((models[one.model] for one in after.content.ships if one.file == path and one.model in models), "")


def _form(zstandard: ModuleType, file: Path, base: Path | None, *, kept: bool) -> tuple[How, bytes | None]:
    """The smallest form of a file and its bytes; None for one that is kept."""
    if kept:
        return "kept", None
    content = read_regular(file, LARGEST_FILE)
    usable = base and max(base.stat().st_size, len(content)) <= LARGEST_BASE
    forms = forms_of(zstandard, read_regular(base, LARGEST_BASE) if base and usable else None, content)
    how = min(forms, key=lambda one: len(forms[one]))
    return (how, forms[how]) if len(forms[how]) <= WORTH * len(content) else ("whole", content)


def forms_of(zstandard: ModuleType, before: bytes | None, content: bytes) -> dict[How, bytes]:
    """Every form that content can take, as bytes; None before: there is nothing that it could be made from."""
    forms: dict[How, bytes] = {"zstd": zstandard.ZstdCompressor(level=LEVEL).compress(content)}
    if before is not None:
        forms["patch"] = _patch(zstandard, before, content)
        if len(before) == len(content):
            forms["words"] = zstandard.ZstdCompressor(level=LEVEL).compress(words_of(before, content))
    return forms


def _patch(zstandard: ModuleType, before: bytes, content: bytes) -> bytes:
    window = max(10, min(31, (len(before) + len(content)).bit_length()))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=window, enable_ldm=True, source_size=len(content)
    )
    known = zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    patch: bytes = zstandard.ZstdCompressor(dict_data=known, compression_params=parameters).compress(content)
    return patch


def words_of(before: bytes, content: bytes) -> bytes:
    """Differences of two contents of one length, taken as 32-bit floats: small for weights that changed a little.

    Bits of floats in the order of their values, differences as unsigned numbers with the sign last, all highest bytes
    first, then the next; a rest of less than four bytes as it is.
    """
    steps = (_ordered(content) - _ordered(before)).view(np.int32)
    unsigned = ((steps << 1) ^ (steps >> 31)).view(np.uint32)
    planes = np.ascontiguousarray(unsigned.astype(">u4").view(np.uint8).reshape(-1, 4).T)
    return planes.tobytes() + content[len(content) // 4 * 4 :]


def from_words(before: bytes, words: bytes) -> bytes:
    """What `words_of` was made of."""
    count = len(before) // 4
    if len(words) != len(before):
        raise ValueError("the words have another length than the file")
    planes = np.frombuffer(words, np.uint8, count * 4).reshape(4, count)
    unsigned = np.ascontiguousarray(planes.T).view(">u4").ravel().astype(np.uint32)
    steps = (unsigned >> 1) ^ (~(unsigned & 1) + 1)
    return _unordered(_ordered(before) + steps).tobytes() + words[count * 4 :]


def _ordered(content: bytes) -> Words:
    """Bits of floats as numbers in the order of the floats."""
    bits = np.frombuffer(content, "<u4", len(content) // 4).astype(np.uint32)
    return bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))


def _unordered(ordered: Words) -> npt.NDArray[np.uint32]:
    return (ordered ^ np.where(ordered >> 31, np.uint32(0x80000000), np.uint32(0xFFFFFFFF))).astype("<u4")


def _read(archive: zipfile.ZipFile, path: Path) -> Delta:
    if archive.getinfo(DELTA_FILE).file_size > DELTA_BYTES:
        raise _damaged(path, f"{DELTA_FILE} has more than {DELTA_BYTES:,} bytes")
    try:
        delta = msgspec.json.decode(archive.read(DELTA_FILE), type=Delta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)[:200]) from error
    if delta.version != DELTA_VERSION:
        raise ConfigError(
            f"this delta has version {delta.version}",
            where=str(path),
            why=f"this release reads version {DELTA_VERSION}",
            remedy="use a newer release of ort-mobile",
        )
    return delta


def _refuse_other(bundle: Path, delta: Delta) -> None:
    if sha256_of(bundle / MANIFEST_FILE) != delta.old_manifest_sha256:
        raise CheckFailed(
            "this delta was made for another bundle",
            where=str(bundle),
            why=f"the sha256 of its {MANIFEST_FILE} is not {delta.old_manifest_sha256}",
            remedy=f"get the whole new bundle (digest {delta.new_digest[:16]}), or a delta from this one",
        )


def _make(zstandard: ModuleType, archive: zipfile.ZipFile, file: DeltaFile, old: Path, building: Path) -> None:
    target = building / file.path
    if file.how == "kept":
        copy_file(_base_in(old, file), target)
    else:
        write_bytes(target, _content(zstandard, archive, file, old))
    if target.stat().st_size != file.size_bytes or sha256_of(target) != file.sha256:
        raise ValueError(f"{file.path[:200]} does not become what it should")


def _content(zstandard: ModuleType, archive: zipfile.ZipFile, file: DeltaFile, old: Path) -> bytes:
    """The bytes of a file; never more than the delta says, whatever is packed."""
    if file.size_bytes > LARGEST_FILE or archive.getinfo(file.member).file_size > LARGEST_FILE:
        raise ValueError(f"{file.path[:200]} would have more than {LARGEST_FILE:,} bytes")
    packed = archive.read(file.member)
    if file.how == "whole":
        return packed
    if zstandard.frame_content_size(packed) != file.size_bytes:
        raise ValueError(f"{file.path[:200]} would have another size than stated")
    if file.how == "zstd":
        return bytes(zstandard.ZstdDecompressor().decompress(packed))
    before = read_regular(_base_in(old, file), LARGEST_BASE)
    if file.how == "words":
        return from_words(before, zstandard.ZstdDecompressor().decompress(packed))
    known = zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return bytes(zstandard.ZstdDecompressor(dict_data=known, max_window_size=1 << 31).decompress(packed))


def _base_in(old: Path, file: DeltaFile) -> Path:
    """The base in the old bundle, which was verified: only its own files are named in its manifest."""
    path = Path(file.base)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{file.base[:200]} lies outside of the bundle")
    return old / path


def _damaged(path: Path, why: str) -> CheckFailed:
    return CheckFailed("the delta is damaged", where=str(path), why=why[:300], remedy="get it from its source again")


def _zstandard(command: str) -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise missing_extra(EXTRA, "zstandard", command, error) from error
    module: ModuleType = zstandard
    return module
