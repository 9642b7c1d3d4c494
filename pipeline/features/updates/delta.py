"""The difference between two bundles as one small file, and a new bundle made of an old one and it.

A delta is a ZIP of stored members: `delta.json`, and for each file of the new bundle that the old one does not have the
smallest of three forms (release_consumers R.5): compressed alone, as a patch of a file of the old bundle, or as the
differences of its weights and a patch of what is between them. Needs the package zstandard (extra `delta`).
"""

import contextlib
import errno
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Literal, cast

import msgspec

from device_runner import files as runner_files
from device_runner import untrusted_files
from pipeline.core import documents
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.features.updates.regions import (
    Region,
    copy_exactly,
    gaps_of,
    refuse_outside,
    regions_of,
    words_of,
    write_gaps,
    write_words,
)
from pipeline.release import app_fit, opened, signature
from pipeline.release import bundle as release_bundle
from pipeline.release import kept as kept_files
from pipeline.release import manifest as bundle_manifest

ANY_APP = app_fit.App()
"""Nothing is known of the app."""

EXTRA, APPLY = "delta", "bundle apply"
DELTA_FILE = "delta.json"
DELTA_VERSION = 1
LEVEL = 19
WORTH = 0.8
"""A form that is larger than this share of the file is not worth its time: the file is stored as it is."""
LARGEST_BASE = 1 << 30
"""Files above are not patched: the patch needs both in memory, and zstd's window ends at 2 GiB."""
DELTA_BYTES = 16 << 20
"""Most that is read of delta.json, and of the archive's list of members."""
LARGEST_FILE = 4 << 30
LARGEST_WINDOW = 1 << 27
"""Of a file that is compressed alone: level 19 keeps 8 MiB."""
FRAME_BYTES = 1 << 10
"""What zstd may add to content that cannot be compressed, for files of a few bytes."""
JOINED_BYTES = 64 << 20
"""A file that is made of one of the old bundle may have `UNSIGNED_GROWTH` times the bytes of that and the delta, and so
many more: a small delta takes little memory, whatever it says."""
UNSIGNED_GROWTH, UNSIGNED_BYTES = 4, 1 << 30
"""A new bundle that nobody is known to have signed may have so many times the bytes of the old one and the delta, and
so many more: weights shrink to a third or a tenth, and what shrinks more is made to fill disks."""

How = Literal["kept", "whole", "zstd", "patch", "words"]
STORED: tuple[How, ...] = ("whole", "zstd", "patch", "words")
JOINED: tuple[How, ...] = ("patch", "words")
"""What is made of a file of the old bundle: in memory, which grows with the new file's size."""
Parts = dict[str, bytes]
"""What is stored of a file: one of STORED, and beside words a `rest`; nothing where it is kept."""
Allowed = Literal["older", "unsigned"]
"""What is refused unless it is asked for: a bundle that was made before the old one, and one whose signature nobody
checks in place of a signed one."""


class DeltaFile(kept_files.BundledFile, frozen=True, kw_only=True):
    """A file of the new bundle and its form: `base` is a file of the old bundle, `member` one of the delta.

    Of words, `regions` are where in the file they belong, and `rest` is the member with a patch of
    what is between them in the base.
    """

    how: How
    base: str = ""
    member: str = ""
    regions: tuple[Region, ...] = ()
    rest: str = ""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """`delta.json`. Both bundles are named by the sha256 of their manifest.json, which covers every byte of them."""

    version: int = DELTA_VERSION
    old_manifest_sha256: str
    new_manifest_sha256: str
    old_digest: str
    new_digest: str
    files: tuple[DeltaFile, ...]


def write_delta(old: Path, new: Path, output: Path) -> Delta:
    """Write the delta between two bundles of one product.

    Raises as `verify_bundle`, CheckFailed for two products, and MissingError without zstandard.
    """
    zstandard = _zstandard("bundle delta")
    for bundle in (old, new):
        release_bundle.refuse_inside(bundle, output, "--output")
    old_manifest, new_manifest = bundle_manifest.verify_bundle(old), bundle_manifest.verify_bundle(new)
    places = {digest: path for path, digest in _digests(old, old_manifest).items()}
    models = {shipped.model: shipped.files for shipped in old_manifest.content.ships}
    alike: dict[str, str] = {}
    for shipped in reversed(new_manifest.content.ships):
        alike |= dict(zip(shipped.files, models.get(shipped.model, ()), strict=False))
    bundle_manifest.refuse_unproven(new, new_manifest)
    _refuse_other_product(old_manifest, new_manifest, new)
    with storage.storage_errors(output), runner_files.staging_folder(output) as work:
        files: list[DeltaFile] = []
        members: dict[str, Path | bytes] = {}
        for number, (path, digest) in enumerate(sorted(_digests(new, new_manifest).items())):
            base = places.get(digest, "")
            parts: Parts = {}
            regions: tuple[Region, ...] = ()
            if not base:
                # The file of the old bundle that is most likely alike: of the same path, else of the same model
                base = path if (old / path).is_file() else alike.get(path, "")
                parts, regions = _smallest(zstandard, new / path, old / base if base else None)
            how: How = next((form for form in STORED if form in parts), "kept")
            names = {part: f"{number}.{part}" for part, content in parts.items() if content}
            for part, name in names.items():
                members[name] = work / name
                storage.write_bytes(work / name, parts[part])
            files.append(
                DeltaFile(
                    path=path,
                    size_bytes=(new / path).stat().st_size,
                    sha256=digest,
                    how=how,
                    base=base if how in ("kept", "patch", "words") else "",
                    member=names.get(how, ""),
                    regions=regions,
                    rest=names.get("rest", ""),
                )
            )
        delta = Delta(
            old_manifest_sha256=bundle_manifest.manifest_digest(old),
            new_manifest_sha256=bundle_manifest.manifest_digest(new),
            old_digest=old_manifest.content_sha256,
            new_digest=new_manifest.content_sha256,
            files=tuple(files),
        )
        with storage.storage_errors(output):
            runner_files.remove_parts(output)  # of a call that was killed
        storage.write_zip(output, {**members, DELTA_FILE: msgspec.json.encode(delta, order="sorted")})
    return delta


def apply_delta(
    path: Path,
    bundle: Path,
    *,
    key: Path | None = None,
    app: app_fit.App = ANY_APP,
    keep: Path | None = None,
    allow: Container[Allowed] = (),
) -> tuple[str, bool]:
    """Turn a bundle into the newer one, at once and whole; the old one stays where anything is wrong.

    Gives its digest, and whether it took the old one's place now: else it was there before.

    With `key`, a public one, the new bundle must be signed by its owner; that is known before anything but its manifest
    is unpacked. It must fit what is known of `app`. `keep` is a folder that gets a whole copy of the old bundle before
    the new one takes its place. A bundle that is the new one already is checked alike. Raises CheckFailed for another
    bundle than the delta was made for, a damaged delta, a bundle that must not ship or is not for the app, a signature
    that does not hold, and what is not in `allow`; SpecError while another process replaces the bundle; PipelineError
    (DiskError for a full disk) for a file that cannot be read or written.
    """
    zstandard = _zstandard(APPLY)
    if not path.is_file():
        raise ConfigError(
            "there is no delta", where=str(path), remedy="name the file that `ort-mobile bundle delta` wrote"
        )
    runner_files.restore_place(bundle)
    bundle_manifest.read_manifest(bundle)  # where there is no bundle, nothing is made beside it either
    with storage.storage_errors(bundle), runner_files.staging_folder(bundle) as new:
        old = bundle_manifest.verify_bundle(bundle)
        if keep:
            release_bundle.refuse_inside(bundle, keep, "--keep")
            runner_files.restore_place(keep)
            bundle_manifest.refuse_foreign(keep)
            _refuse_other_kept(keep, old)
        try:
            with _Archive(path) as file, zipfile.ZipFile(file) as archive:
                file.most = -1
                info = archive.getinfo(DELTA_FILE)
                if max(info.file_size, info.compress_size) > DELTA_BYTES:
                    raise ValueError(f"{DELTA_FILE} has more than {DELTA_BYTES:,} bytes")
                delta = documents.decode_document(archive.read(info), Delta, str(path), unique=True)
                if bundle_manifest.manifest_digest(bundle) == delta.new_manifest_sha256:
                    _verify_signer(bundle, old, key, path)
                    bundle_manifest.refuse_unproven(bundle, old)
                    opened.refuse_unopened(bundle, old)
                    app_fit.refuse_misfit(app, old, old, bundle)
                    return old.content_sha256, False
                if bundle_manifest.manifest_digest(bundle) != delta.old_manifest_sha256:
                    raise CheckFailed(
                        "this delta was made for another bundle",
                        where=str(bundle),
                        why=f"the sha256 of its {bundle_manifest.MANIFEST_FILE} is not {delta.old_manifest_sha256}",
                        remedy=f"get the whole new bundle (digest {delta.new_digest[:16]}), or a delta from this one",
                    )
                digests = _digests(bundle, old)
                make = partial(_make, archive, bundle, digests, new)
                manifest = _manifest(make, delta, new, path)
                _refuse_unsafe(bundle, old, new, manifest, key, path, allow)
                _make_rest(make, delta, manifest, bundle, new, None if key else path.stat().st_size)
        except (*untrusted_files.ZIP_ERRORS, zstandard.ZstdError, msgspec.DecodeError, KeyError) as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # zipfile seeks to odd places
                raise storage.os_error(error) from error
            raise _damaged(path, str(error)) from error
        _whole(new, path)
        opened.refuse_unopened(new, manifest)
        app_fit.refuse_misfit(app, old, manifest, new)
        if keep:  # a whole copy of the old bundle; what was kept there before goes
            storage.make_folder(keep.absolute().parent)
            with storage.storage_errors(keep), runner_files.staging_folder(keep) as copy:
                for source in bundle.rglob("*"):
                    if source.is_file():
                        storage.copy_file(source, copy / source.relative_to(bundle))
                runner_files.take_place(copy, keep)
        runner_files.take_place(new, bundle)
    return manifest.content_sha256, True


def _refuse_other_kept(keep: Path, old: bundle_manifest.Manifest) -> None:
    """Raise CheckFailed where the folder of `--keep` has a bundle of another product, which would be lost."""
    with contextlib.suppress(CheckFailed, FileNotFoundError):  # what cannot be read is no bundle to go back to
        name = bundle_manifest.read_manifest(keep).content.name if keep.exists() else old.content.name
        if name != old.content.name:
            raise ConfigError(
                "--keep has a bundle of another product, which would be lost",
                where=str(keep),
                why=f"its name is {name[: bundle_manifest.SHOWN]!r}, that of the one to keep "
                f"{old.content.name[: bundle_manifest.SHOWN]!r}",
                remedy="choose another folder with --keep",
            )


class _Archive(io.FileIO):
    """A delta of which at most `most` bytes are read at once: zipfile reads the list of members in one piece."""

    most = DELTA_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        """As of every file; raises BadZipFile for more, and our errors, since zipfile takes OSError for damage."""
        if 0 <= self.most < (size or 0):
            raise zipfile.BadZipFile(f"its list of members has more than {self.most:,} bytes")
        with storage.reading_errors(str(self.name)):
            return super().read(size)


def _verify_signer(folder: Path, manifest: bundle_manifest.Manifest, key: Path | None, shown: Path) -> None:
    """Raise CheckFailed that names `shown` unless the owner of `key` signed the bundle in `folder`."""
    try:
        if key:
            signature.verify_signed(folder, manifest, key)
    except CheckFailed as error:
        raise CheckFailed.of(error.problem, where=str(shown)) from error


def _refuse_other_product(old: bundle_manifest.Manifest, new: bundle_manifest.Manifest, shown: Path) -> None:
    """Raise CheckFailed that names `shown` where two bundles are not of one product: their names differ."""
    if old.content.name != new.content.name:
        raise CheckFailed(
            "the new bundle is another product's",
            where=str(shown),
            why=f"its name is {new.content.name[: bundle_manifest.SHOWN]!r}, that of the old one "
            f"{old.content.name[: bundle_manifest.SHOWN]!r}",
            remedy="take the old and the new bundle of one product; of one that was renamed, the whole new bundle",
        )


def _refuse_unsafe(
    bundle: Path,
    old: bundle_manifest.Manifest,
    folder: Path,
    new: bundle_manifest.Manifest,
    key: Path | None,
    shown: Path,
    allow: Container[Allowed],
) -> None:
    """Raise CheckFailed for a bundle that must not take the place of the old one, of which only the manifest is there.

    Where nobody checks the signature, one that is there says nothing: anybody can write a file of that name.
    """
    _refuse_other_product(old, new, shown)
    _verify_signer(folder, new, key, shown)
    if not key and "unsigned" not in allow and (bundle / bundle_manifest.SIGNATURE_FILE).is_file():
        raise CheckFailed(
            "nobody checks who signed the new bundle",
            where=str(shown),
            why="the old one is signed, and without --key any other takes its place",
            remedy="give the maker's public key with --key, or --allow-unsigned to take it as it is",
        )
    bundle_manifest.refuse_unproven(shown, new)
    bundle_manifest.refuse_future(shown, new)
    if "older" not in allow and new.made_at < old.made_at:
        raise CheckFailed(
            "the new bundle is older than the one that is here",
            where=str(shown),
            why=f"it was made at {new.made_at or 'an unknown time'}, the one that is here at {old.made_at}",
            remedy="get the newest delta from its maker, or give --allow-older to go back",
        )


def _manifest(make: Callable[[DeltaFile], None], delta: Delta, new: Path, path: Path) -> bundle_manifest.Manifest:
    """What the new bundle is: its manifest, seal and signatures are unpacked first, within bounds of their own."""
    if len({file.path for file in delta.files}) < len(delta.files):
        raise ValueError("it makes a file twice")
    for file in delta.files:
        if file.path in bundle_manifest.OWN_FILES:
            if file.size_bytes > bundle_manifest.OWN_FILES[file.path]:
                raise ValueError(f"{file.path} would have more than {bundle_manifest.OWN_FILES[file.path]:,} bytes")
            make(file)
    if not (new / bundle_manifest.MANIFEST_FILE).is_file():
        raise ValueError(f"it has no {bundle_manifest.MANIFEST_FILE}")
    manifest = _whole(new, path, bundle_manifest.read_manifest)
    named = (delta.new_manifest_sha256, delta.new_digest)
    if named != (bundle_manifest.manifest_digest(new), manifest.content_sha256):
        raise ValueError(f"{bundle_manifest.MANIFEST_FILE} is not the one that it names")
    return manifest


def _make_rest(
    make: Callable[[DeltaFile], None],
    delta: Delta,
    manifest: bundle_manifest.Manifest,
    bundle: Path,
    new: Path,
    packed: int | None,
) -> None:
    """Make every other file, each as large as the manifest says, after all were found to be what the manifest lists.

    `packed` is the size of the delta, None where somebody who is known signed the bundle: else it becomes no more than
    an honest one would.
    """
    files = [file for file in delta.files if file.path not in bundle_manifest.OWN_FILES]
    listed = {file.path: (file.size_bytes, file.sha256) for file in manifest.files}
    if {file.path: (file.size_bytes, file.sha256) for file in files} != listed:
        raise ValueError(f"its files are not those of {bundle_manifest.MANIFEST_FILE}")
    sizes = {path.relative_to(bundle).as_posix(): path.stat().st_size for path in bundle.rglob("*")}
    joined = [file for file in files if file.how in JOINED]
    if large := next((file for file in joined if file.size_bytes > LARGEST_BASE), None):
        raise ValueError(f"{large.path[:200]} would have more than {LARGEST_BASE:,} bytes")
    total = sum(file.size_bytes for file in files)
    if packed is not None:
        if total > UNSIGNED_GROWTH * (sum(sizes.values()) + packed) + UNSIGNED_BYTES:
            raise ValueError(f"it would become {total:,} bytes, {UNBELIEVED}")
        for file in joined:
            if file.size_bytes > UNSIGNED_GROWTH * (sizes.get(file.base, 0) + packed) + JOINED_BYTES:
                raise ValueError(f"{file.path[:200]} would become {file.size_bytes:,} bytes, {UNBELIEVED}")
    if total > shutil.disk_usage(new).free:
        raise storage.os_error(OSError(errno.ENOSPC, f"the new bundle has {total:,} bytes"), bundle)
    for file in files:
        make(file)


UNBELIEVED = "which is believed of a signed one only (--key)"


def _whole(
    new: Path, path: Path, read: Callable[[Path], bundle_manifest.Manifest] = bundle_manifest.verify_bundle
) -> bundle_manifest.Manifest:
    """The manifest of the new bundle; what is wrong with it is wrong with the delta."""
    try:
        return read(new)
    except CheckFailed as error:
        raise _damaged(path, error.why) from error
    except ConfigError as error:
        raise ConfigError.of(error.problem, where=str(path)) from error


def _digests(folder: Path, manifest: bundle_manifest.Manifest) -> dict[str, str]:
    """Every file of a verified bundle to its sha256."""
    digests = {file.path: file.sha256 for file in manifest.files}
    return digests | {
        name: storage.sha256_of(folder / name) for name in bundle_manifest.OWN_FILES if (folder / name).is_file()
    }


def _smallest(zstandard: ModuleType, file: Path, base: Path | None) -> tuple[Parts, tuple[Region, ...]]:
    """The form of a file that adds the fewest bytes: what is stored of it, by how, and the regions of its words.

    Without a base there is nothing that it could be made from.
    """
    content = untrusted_files.read_regular(file, LARGEST_FILE)
    alone = zstandard.ZstdCompressor(level=LEVEL)
    regions: tuple[Region, ...] = ()
    forms: list[Parts] = [{"zstd": alone.compress(content)}]
    size_before = base.stat().st_size if base else 0
    largest = min(LARGEST_BASE, UNSIGNED_GROWTH * size_before + JOINED_BYTES)
    if base and size_before <= LARGEST_BASE and len(content) <= largest:
        before = untrusted_files.read_regular(base, LARGEST_BASE)
        forms.append({"patch": _patch(zstandard, before, content)})
        if regions := regions_of(before, content):
            # What is between the regions in the old file is what the new file's is most likely alike.
            gaps = gaps_of(content, [(region.new, region.length) for region in regions])
            between = gaps_of(before, [(region.old, region.length) for region in regions])
            rest = _patch(zstandard, between, gaps) if gaps else b""
            forms.append({"words": alone.compress(words_of(before, content, regions)), "rest": rest})

    def size(parts: Parts) -> int:
        """What it adds to a delta, in bytes."""
        return sum(map(len, parts.values())) + len(msgspec.json.encode(regions if "words" in parts else ()))

    best = min(forms, key=size)
    best = best if size(best) <= WORTH * len(content) else {"whole": content}
    return best, regions if "words" in best else ()


def _patch(zstandard: ModuleType, before: bytes, content: bytes) -> bytes:
    window_log = _window_log(len(before) + len(content))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=window_log, enable_ldm=True, source_size=len(content)
    )
    dictionary = zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    patch: bytes = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(content)
    return patch


def _window_log(size: int) -> int:
    """The window of a patch has both files; zstd's has 1 KiB to 2 GiB."""
    return max(10, min(31, size.bit_length()))


def _make(archive: zipfile.ZipFile, old: Path, digests: Mapping[str, str], new: Path, file: DeltaFile) -> None:
    """Make a file in `new` of an archive's members and the files of an old bundle, whose digests are in `digests`.

    It is never larger than the delta says. Raises ValueError, and what reading the archive raises.
    """
    target = new / file.path
    if file.how == "kept" and digests.get(file.base) == file.sha256:
        storage.copy_file(old / file.base, target)
    elif file.how != "kept":
        if file.how in JOINED and file.base not in digests:
            raise ValueError(f"{file.base[:200]} is no file of the old bundle")
        with storage.replacing(target) as part, part.open("wb") as out:
            if file.how == "words":
                _write_joined(archive, old / file.base, file, out)
            else:
                before = _base(old / file.base) if file.how == "patch" else b""
                with _unpacked(archive, file.member, file.size_bytes, before, packed=file.how != "whole") as source:
                    copy_exactly(source, out, file.size_bytes)
                    if source.read(1):
                        raise ValueError(f"{file.member[:200]} would have another size than stated")
    with storage.reading_errors(target):
        finished = (
            target.is_file() and target.stat().st_size == file.size_bytes and storage.sha256_of(target) == file.sha256
        )
    if not finished:
        raise ValueError(f"{file.path[:200]} does not become what it should")


def _base(path: Path) -> bytes:
    with storage.reading_errors(path):
        return untrusted_files.read_regular(path, LARGEST_BASE)


def _write_joined(archive: zipfile.ZipFile, base: Path, file: DeltaFile, out: BinaryIO) -> None:
    """Write a file of words and what is between them. The words lie on the disk meanwhile, not in memory."""
    refuse_outside(file.regions, base.stat().st_size, file.size_bytes)
    inside = sum(region.length for region in file.regions)
    between = gaps_of(_base(base), [(region.old, region.length) for region in file.regions]) if file.rest else b""
    if file.rest:
        with _unpacked(archive, file.rest, file.size_bytes - inside, between) as source:
            write_gaps(source, file.regions, file.size_bytes, out)
    elif inside != file.size_bytes:
        raise ValueError("its regions do not make the file")
    with tempfile.TemporaryFile(dir=Path(out.name).parent) as words, untrusted_files.open_regular(base) as before:
        with _unpacked(archive, file.member, inside, b"") as source:
            copy_exactly(source, words, inside)
        words.flush()
        write_words(before, words, file.regions, out)


@contextlib.contextmanager
def _unpacked(
    archive: zipfile.ZipFile, name: str, size: int, before: bytes, *, packed: bool = True
) -> Iterator[BinaryIO]:
    """What a member was made of, by what was known before it, to be read in pieces: `size` bytes, if all is right."""
    with archive.open(_member(archive, name, size)) as stored:
        if not packed:
            yield cast(BinaryIO, stored)
            return
        zstandard = _zstandard(APPLY)
        dictionary = zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if before else None
        window = 1 << _window_log(len(before) + size) if before else LARGEST_WINDOW
        yield zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=window).stream_reader(stored)


def _member(archive: zipfile.ZipFile, name: str, most: int) -> zipfile.ZipInfo:
    """A member that is stored as it is and no larger than what is made of it, give or take a frame's head."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{name[:200]} is compressed by the archive")
    if info.file_size > most + FRAME_BYTES:
        raise ValueError(f"{name[:200]} is larger than what it is for")
    return info


def _damaged(path: Path, why: str) -> CheckFailed:
    return CheckFailed("the delta is damaged", where=str(path), why=why[:300], remedy="get it from its source again")


def _zstandard(command: str) -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise core_errors.missing_extra(EXTRA, "zstandard", command, error) from error
    module: ModuleType = zstandard
    return module
