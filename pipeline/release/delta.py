"""The difference between two bundles as one small file, and a new bundle made of an old one and it.

A delta is a ZIP of stored members: `delta.json`, and for each file of the new bundle that the old one does not have the
smallest of three forms (release_consumers R.5): compressed alone, as a patch of a file of the old bundle, or as the
differences of its weights (words.py) and a patch of what is between them. Needs the package zstandard (extra `delta`).
"""

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec

from device_runner.files import ZIP_ERRORS, remove_abandoned, scratch_folder
from device_runner.reading import decode_json, read_regular
from device_runner.result import Struct
from pipeline.core.errors import CheckFailed, ConfigError, missing_extra
from pipeline.core.files import copy_file, sha256_of, storage_errors, write_bytes, write_zip
from pipeline.release.attestation import verify_signed
from pipeline.release.bundle import refuse_foreign, refuse_inside, restore_interrupted, take_place
from pipeline.release.manifest import (
    MANIFEST_FILE,
    OWN_FILES,
    BundledFile,
    Manifest,
    verify_bundle,
)
from pipeline.release.update import App, refuse_misfit
from pipeline.release.words import Region, filled, from_words, gaps_of, refuse_outside, regions_of, whole, words_of

ANY_APP = App()
"""Nothing is known of the app."""

EXTRA = "delta"
DELTA_FILE = "delta.json"
DELTA_VERSION = 2
READABLE = (1, DELTA_VERSION)
"""Version 1 has no regions: its words are of whole files."""
LEVEL = 19
WORTH = 0.8
"""A form that is larger than this share of the file is not worth its time: the file is stored as it is."""
LARGEST_BASE = 1 << 30
"""Files above are not patched: the patch needs both in memory, and zstd's window ends at 2 GiB."""
DELTA_BYTES = 16 << 20
LARGEST_FILE = 4 << 30

How = Literal["kept", "whole", "zstd", "patch", "words"]


class DeltaFile(BundledFile, frozen=True, kw_only=True):
    """A file of the new bundle and its form: `base` is a file of the old bundle, `member` one of the delta.

    Of words, `regions` are where in the file they belong (none: all of it), and `rest` is the member with a patch of
    what is between them in the base.
    """

    how: How
    base: str = ""
    member: str = ""
    regions: tuple[Region, ...] = ()
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """The digest of the new bundle, and whether it took the old one's place now: else it was there before."""

    digest: str
    changed: bool


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
    for bundle in (old, new):
        refuse_inside(bundle, output, "--output")
    before, after = verify_bundle(old), verify_bundle(new)
    places = {digest: path for path, digest in _digests(old, before).items()}
    models = {one.model: one.file for one in before.content.ships}
    with storage_errors(output), scratch_folder(f".{output.name}.", output.absolute().parent) as work:
        files: list[DeltaFile] = []
        members: dict[str, Path | bytes] = {}
        for number, (path, digest) in enumerate(sorted(_digests(new, after).items())):
            base = places.get(digest) or _base(path, after, models, old)
            form = Form("kept") if digest in places else _smallest(zstandard, new / path, old / base if base else None)
            names = {part: f"{number}.{part}" for part, content in form.parts() if content}
            for part, content in form.parts():
                if content:
                    members[names[part]] = work / names[part]
                    write_bytes(work / names[part], content)
            files.append(
                DeltaFile(
                    path=path,
                    size_bytes=(new / path).stat().st_size,
                    sha256=digest,
                    how=form.how,
                    base=base if form.how in ("kept", "patch", "words") else "",
                    member=names.get(form.how, ""),
                    regions=form.regions,
                    rest=names.get("rest", ""),
                )
            )
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
) -> Applied:
    """Turn a bundle into the newer one, at once and whole; the old one stays where anything is wrong.

    With `key`, a public one, the new bundle must be signed by its owner; it must fit what is known of `app`. `keep` is
    a folder that gets a whole copy of the old bundle before the new one takes its place. A bundle that is the new one
    already is checked alike. Raises CheckFailed for another bundle than the delta was made for, a damaged delta, a
    signature that does not hold, and an app that it is not for.
    """
    zstandard = _zstandard("apply")
    if not path.is_file():
        raise ConfigError("there is no delta", where=str(path), remedy="name the file that `ort-mobile delta` wrote")
    restore_interrupted(bundle)
    remove_abandoned(f".{bundle.name}.", bundle.absolute().parent)
    old = verify_bundle(bundle)
    if keep:
        refuse_inside(bundle, keep, "--keep")
        refuse_foreign(keep)
        restore_interrupted(keep)
        remove_abandoned(f".{keep.name}.", keep.absolute().parent)
    try:
        with zipfile.ZipFile(path) as archive:
            delta = _read(archive, path)
            if sha256_of(bundle / MANIFEST_FILE) == delta.new_manifest_sha256:
                _accept(bundle, old, old, key, app, bundle)
                return Applied(delta.new_digest, changed=False)
            _refuse_other(bundle, delta)
            with storage_errors(bundle), scratch_folder(f".{bundle.name}.", bundle.absolute().parent) as building:
                for file in delta.files:
                    _make(zstandard, archive, file, bundle, building)
                manifest = verify_bundle(building, delta.new_digest)
                _accept(building, old, manifest, key, app, path)
                if keep:
                    _keep(bundle, keep)
                take_place(building, bundle)
    except (*ZIP_ERRORS, zstandard.ZstdError, KeyError) as error:
        raise _damaged(path, str(error)) from error
    return Applied(delta.new_digest, changed=True)


def _accept(folder: Path, old: Manifest, new: Manifest, key: Path | None, app: App, shown: Path) -> None:
    """Raise CheckFailed unless the new bundle in `folder` is signed with `key` and fits `app`; errors name `shown`."""
    if key:
        try:
            verify_signed(folder, new, key)
        except CheckFailed as error:
            raise CheckFailed(error.what, where=str(shown), why=error.why, remedy=error.remedy) from error
    if app.known:
        refuse_misfit(app, old, new, folder)


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


@dataclass(frozen=True, slots=True)
class Form:
    """A file as one of the ways to store it."""

    how: How
    content: bytes = b""
    regions: tuple[Region, ...] = ()
    rest: bytes = b""

    @property
    def size(self) -> int:
        """What it adds to a delta, in bytes."""
        return len(self.content) + len(self.rest) + len(msgspec.json.encode(self.regions))

    def parts(self) -> tuple[tuple[str, bytes], ...]:
        """What is stored, by the ending of its name."""
        return (self.how, self.content), ("rest", self.rest)


def _smallest(zstandard: ModuleType, file: Path, base: Path | None) -> Form:
    content = read_regular(file, LARGEST_FILE)
    usable = base and max(base.stat().st_size, len(content)) <= LARGEST_BASE
    forms = forms_of(zstandard, read_regular(base, LARGEST_BASE) if base and usable else None, content)
    best = min(forms, key=lambda one: one.size)
    return best if best.size <= WORTH * len(content) else Form("whole", content)


def forms_of(zstandard: ModuleType, before: bytes | None, content: bytes) -> list[Form]:
    """Every form that content can take; None before: there is nothing that it could be made from."""
    alone = zstandard.ZstdCompressor(level=LEVEL)
    forms = [Form("zstd", alone.compress(content))]
    if before is not None:
        forms.append(Form("patch", _patch(zstandard, before, content)))
        if regions := regions_of(before, content):
            gaps = gaps_of(content, [(one.new, one.length) for one in regions])
            rest = _patch(zstandard, _between(before, regions), gaps) if gaps else b""
            forms.append(Form("words", alone.compress(words_of(before, content, regions)), regions, rest))
    return forms


def _between(before: bytes, regions: Sequence[Region]) -> bytes:
    """What is between the regions in the old file: what the new file's is most likely alike."""
    return gaps_of(before, [(one.old, one.length) for one in regions])


def _patch(zstandard: ModuleType, before: bytes, content: bytes) -> bytes:
    window = max(10, min(31, (len(before) + len(content)).bit_length()))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=window, enable_ldm=True, source_size=len(content)
    )
    known = zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    patch: bytes = zstandard.ZstdCompressor(dict_data=known, compression_params=parameters).compress(content)
    return patch


def _read(archive: zipfile.ZipFile, path: Path) -> Delta:
    if archive.getinfo(DELTA_FILE).file_size > DELTA_BYTES:
        raise _damaged(path, f"{DELTA_FILE} has more than {DELTA_BYTES:,} bytes")
    try:
        delta = decode_json(archive.read(DELTA_FILE), Delta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)[:200]) from error
    if delta.version not in READABLE:
        raise ConfigError(
            f"this delta has version {delta.version}",
            where=str(path),
            why=f"this release reads versions up to {DELTA_VERSION}",
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
    if file.size_bytes > LARGEST_FILE:
        raise ValueError(f"{file.path[:200]} would have more than {LARGEST_FILE:,} bytes")
    if file.how == "whole":
        return _packed(archive, file.member)
    if file.how == "zstd":
        return _unpacked(zstandard, archive, file.member, file.size_bytes, None)
    before = read_regular(_base_in(old, file), LARGEST_BASE)
    if file.how == "patch":
        return _unpacked(zstandard, archive, file.member, file.size_bytes, before)
    regions = file.regions or whole(file.size_bytes)
    refuse_outside(regions, len(before), file.size_bytes)
    inside = sum(one.length for one in regions)
    words = _unpacked(zstandard, archive, file.member, inside, None)
    between = _between(before, regions) if file.rest else None
    gaps = _unpacked(zstandard, archive, file.rest, file.size_bytes - inside, between) if file.rest else b""
    return filled(file.size_bytes, regions, from_words(before, words, regions), gaps)


def _packed(archive: zipfile.ZipFile, member: str) -> bytes:
    if archive.getinfo(member).file_size > LARGEST_FILE:
        raise ValueError(f"a member has more than {LARGEST_FILE:,} bytes")
    return archive.read(member)


def _unpacked(zstandard: ModuleType, archive: zipfile.ZipFile, member: str, size: int, before: bytes | None) -> bytes:
    """What a member was made of, by what was known before; it must have the size that is stated."""
    packed = _packed(archive, member)
    if zstandard.frame_content_size(packed) != size:
        raise ValueError(f"{member[:200]} would have another size than stated")
    known = zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if before else None
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
