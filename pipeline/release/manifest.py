"""The manifest of a bundle: what is in it, how it was made, what it was chosen for, what was measured; and its check.

`content` has a digest of its own and is a function of the inputs alone: the same inputs give the same bytes, in another
folder and at another time. `references` (what the original models computed on the computer that made the bundle),
`vectors` (what files that ship made there of an app's data) and `evidence` (what was measured and when) are not: they
differ from machine to machine and from run to run.
"""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from device_runner import result as run_result
from device_runner import safe_text, untrusted_files
from device_runner import spec as run_spec
from device_runner.spec import ElementType, RunOptions
from pipeline.check import library_proof
from pipeline.config import app_data
from pipeline.config import tables as config_tables
from pipeline.core import documents
from pipeline.core import files as storage
from pipeline.core import variant as core_variant
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.variant import Variant
from pipeline.model import signature
from pipeline.model.signature import TensorInfo
from pipeline.release.kept import BundledFile, KeptReference, KeptVector, KeptVectors

MANIFEST_VERSION = 1
MANIFEST_FILE = "manifest.json"
SEAL_FILE = "manifest.sha256"
SIGNATURE_FILE = "bundle.sig"
"""The signature, in bundles that have one: of all other files, the manifest and its seal among them."""
ATTESTATION_FILE = "evidence/test-result.intoto.jsonl"
"""What was tested, signed, in bundles that were signed and have test results."""
MANIFEST_BYTES = 32 << 20
"""Most that is read of a manifest; one of a hundred models and their evidence has some megabytes."""
OWN_FILES = {MANIFEST_FILE: MANIFEST_BYTES, SEAL_FILE: 1 << 10, SIGNATURE_FILE: 16 << 20, ATTESTATION_FILE: 16 << 20}
"""What a manifest does not list, itself and what is made of it, with the most bytes that are read of each."""
MOST_FILES = 10_000
"""Files of a bundle: a hundred models with their references have a thousand."""
CUSTOM_OPS = "custom_ops/"
"""The bundle's folder of libraries of custom operators, by system and ABI."""
MEASURED_FILE = "evidence/measured.md"
"""What was measured, for people."""


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """What ships to one target for one model, how the app must open it, and why this one."""

    target: documents.Name
    platform: documents.PlatformName
    model: documents.ModelName
    model_sha256: run_spec.Sha256
    variant: Variant
    file: documents.ModelFile
    weights: documents.OptionalModelFile = ""
    """The file beside it that has its weights and those of other sizes of the model; "" where they are in it."""
    semantic_digest: run_spec.Sha256
    aware_by: core_variant.AwareBy | None = None
    """What made a provider-aware file: a session with our claims, or that of a library by its sha256."""
    steps: tuple[run_spec.Text, ...] = ()
    """The passes that the model went through before conversion, as the command line writes them."""
    runs: Annotated[tuple[RunOptions, ...], Meta(min_length=1)]
    """Every way in which the config lets this artifact run there, the chosen one first."""
    ort_release: documents.AnyRelease
    min_api_level: int | None = None
    min_os_version: documents.OsVersion | None = None
    abis: tuple[documents.Abi, ...] = ()
    """The target's ABIs as its config names them; () where it names none."""
    library: documents.Line = ""
    """The library that the target names: its file's name, or a release as in android:1.29.0."""
    library_kind: documents.WordOrNone = ""
    """Whether the library is full, extended or minimal, as far as it is known."""
    loading: Literal["mapped", "path"] | None = None
    """How it was loaded when it was measured: its bytes mapped and read where they lie, or by its path; None where it
    was not measured on such a device."""
    basis: Literal["measured", "advised"]
    """Whether it was the best measured on such a device, or is what is advised; the evidence has the reason in full."""

    @property
    def files(self) -> tuple[str, ...]:
        """Its files in the bundle."""
        return (self.file, self.weights) if self.weights else (self.file,)


class SelectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """What devices of a class run of a model: `ships` is the index of it in the content's list.

    An app takes the first row of its target and model that fits: `soc` and `abi` are "" or its own, `min_api_level` is
    at most its own. The last row of each target and model fits every device.
    """

    target: documents.Name
    model: documents.ModelName
    soc: documents.Line = ""
    abi: documents.OptionalAbi = ""
    min_api_level: int = 0
    ships: Annotated[int, Meta(ge=0)]


class ShippedContext(msgspec.Struct, frozen=True, kw_only=True):
    """A model compiled for one chip's NPU, which phones with that chip open before what else ships of it.

    A phone that refuses it goes on with `selection`, or with the model's first in `ships`. `chip` is Android's
    Build.SOC_MODEL without the letters of a variant. `binary` lies beside `file`, which names it. `compatibility` is
    what the provider wrote of it; `qairt` is the version of the runtime that the app needs at least, and `plugin` that
    of the provider that belongs to it. `not_run` says why no computer has run it, "" where one has.
    """

    target: documents.Name
    model: documents.ModelName
    model_sha256: run_spec.Sha256
    variant: Variant
    chip: documents.Chip
    file: documents.ModelFile
    binary: documents.ModelFile
    compatibility: documents.Compatibility
    qairt: documents.QnnRelease
    plugin: documents.QnnRelease
    ort_release: documents.AnyRelease
    min_api_level: int
    steps: tuple[run_spec.Text, ...] = ()
    not_run: run_spec.Text = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Its files in the bundle."""
        return self.file, self.binary


class ModelSignature(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a model take and give. `dimensions` are those that the config fixed, by name, `guessed` those
    of them whose size nobody had confirmed.

    `preprocess` and `values` are how the config makes inputs of test data; the app must do the same.
    """

    model: documents.ModelName
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    dimensions: dict[run_spec.Text, int] = {}
    guessed: tuple[run_spec.Text, ...] = ()
    preprocess: config_tables.PreprocessConfig | None = None
    values: dict[run_spec.Text, config_tables.InputValue] = {}
    size_of: documents.OptionalModelName = ""
    """The model of open sizes that this is one size of; "" for others."""
    padding: dict[run_spec.Text, int | float] = {}
    """By input, what an app fills up inputs with that are smaller than a size."""
    license: documents.OptionalLicense = ""
    """As the config has it; "" where nobody said it."""
    optional_inputs: tuple[TensorInfo, ...] = ()
    """Inputs with a value in the file, which apps may leave out."""
    constant_inputs: tuple[run_spec.Text, ...] = ()
    """Optional inputs of the original model that are constants in the file: apps cannot set them."""
    image: app_data.ImageBytes | None = None
    """The bytes of an image, of any size, that its only input takes; None for one that takes tensors."""
    rate: int = 0
    """Samples of sound a second that `samples` takes, in steps or as a whole recording; 0 for others."""
    answer: app_data.AnswerKind | None = None
    """What its outputs are in place of tensors; None for one that gives tensors."""
    text: signature.TextTokens | None = None
    """How a text becomes its inputs; None for one that takes tensors."""
    state: dict[run_spec.Text, run_spec.Text] = {}
    """Outputs that become inputs of the next inference, which begin a stream with zeros, or what `values` has."""

    @property
    def takes_image(self) -> bool:
        """Whether its only input takes the bytes of an image, as `image` says."""
        shapes = [given.shape for given in self.inputs if given.dtype is ElementType.UINT8]
        shape = shapes[0] if len(shapes) == len(self.inputs) == 1 else None
        return bool(self.image and shape and len(shape) == 4 and shape[3] == self.image.channels)

    @property
    def takes_text(self) -> bool:
        """Whether all its inputs are made of a text, as `text` says."""
        return self.text is not None and {given.name for given in self.inputs} <= {*self.text.inputs.values()}

    def gives(self, answer: app_data.AnswerKind) -> bool:
        """Whether its outputs are what `answer` says, with the types that classes for apps read."""
        kinds = {output.name: output.dtype for output in self.outputs}
        wanted = app_data.OUTPUTS_OF[answer].items()
        return self.answer is answer and all(kinds.get(name) is kind for name, kind in wanted)

    def source_of(self, name: str) -> str | None:
        """The output that an input gets the value of the inference before from; None for one that is no state."""
        return next((output for output, state in self.state.items() if state == name), None)

    def first_value(self, name: str) -> str:
        """What the input of a state is at the start of a stream."""
        value = self.values.get(name)
        if value is None:
            return "zeros"
        if isinstance(value, config_tables.Range | tuple):
            return "the values that the README has"
        return f"{value} in each element"


class AppRule(msgspec.Struct, frozen=True, kw_only=True):
    """What an app needs for what ships to a target: a newer bundle is for it only where all of this holds.

    The release of its ONNX Runtime is `lowest_release` or later and below `below_release`, reads `format_version` of
    the ORT format, and has the providers and the custom operator domains. A reduced library was built from the operator
    config of this digest, or has what it lists. `signature_sha256` is of the inputs and outputs of the models: with
    another one the app's code does not fit.
    """

    target: documents.Name
    lowest_release: documents.AnyRelease
    below_release: documents.AnyRelease
    format_version: int
    providers: tuple[run_spec.Provider, ...]
    custom_domains: tuple[run_spec.Text, ...] = ()
    operators_sha256: documents.OptionalSha256 = ""
    signature_sha256: run_spec.Sha256
    library_license: documents.OptionalLicense = ""


class Fallback(StrEnum):
    """What an app goes on with where a bundle fails: a session that is not made, or outputs beyond the tolerance."""

    RUN = "run"
    """The next of the artifact's `runs`."""
    PREVIOUS = "previous"
    """The bundle before this one, kept until this one has passed its reference on the device."""
    PACKAGED = "packaged"
    """The bundle in the app's own package, which is never deleted."""


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the inputs decide."""

    name: documents.Line
    made_with: dict[documents.Line, documents.Line]
    files: tuple[BundledFile, ...]
    ships: tuple[Shipped, ...]
    models: tuple[ModelSignature, ...] = ()
    """Each model that ships, once."""
    selection: tuple[SelectionRow, ...] = ()
    """What which devices run, where a search told them apart; () where each model ships in one way only."""
    contexts: tuple[ShippedContext, ...] = ()
    """What phones with a Snapdragon try first."""
    requires: tuple[AppRule, ...] = ()
    """What an app needs, for each target."""
    rollback: tuple[Fallback, ...] = ()
    """The order in which an app falls back."""
    do_not_ship: tuple[run_spec.Text, ...] = ()
    """Why it must not ship, where a library that it ships with refused it: a part of the content, so that nobody can
    take it out and leave the digest as it was."""

    def signature(self, model: str) -> ModelSignature:
        """What a model takes and gives; ConfigError where the manifest does not say it."""
        signature = next((known for known in self.models if known.model == model), None)
        if signature is None:
            raise ConfigError(
                f"the bundle does not say what the model {model} takes and gives",
                where="the bundle's manifest",
                why="it lists no such model",
                remedy="make the bundle again: `ort-mobile bundle rebuild FOLDER`",
            )
        return signature


INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$"
"""As `utc_now` writes it: the order of the texts is that of the instants."""
CLOCKS_MS = 600_000
"""What the clocks of two computers may differ by. A bundle of a clock that is ahead by more would refuse the updates of
all that time as older ones."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's manifest.json."""

    version: int = MANIFEST_VERSION
    content: Content
    content_sha256: run_spec.Sha256
    references: tuple[KeptReference, ...] = ()
    vectors: tuple[KeptVectors, ...] = ()
    evidence: dict[documents.Line, Any] = {}
    reports: tuple[BundledFile, ...] = ()
    """The evidence for people: files that differ from run to run, as it does."""
    made_at: Annotated[str, Meta(pattern=INSTANT)]
    """When it was made, by the clock of the computer that made it: an update goes from earlier to later."""

    @property
    def files(self) -> tuple[BundledFile, ...]:
        """Every file of the bundle beside the manifest and its seal."""
        vectors = [vector for of_file in self.vectors for vector in of_file.vectors]
        parts: list[KeptReference | KeptVector] = [*self.references, *vectors]
        kept = [tensor for part in parts for tensor in (*part.inputs, *part.outputs)]
        return (*self.content.files, *kept, *self.reports)

    def verified(self, folder: Path, path: str) -> storage.VerifiedFile:
        """A file of the bundle in a folder, to be copied as it was verified; ConfigError where none is listed."""
        listed = next((file for file in self.files if file.path == path), None)
        if listed is None:
            raise ConfigError(
                f"the bundle does not list the file {path[:SHOWN]}",
                where=str(folder),
                why="it was added after the bundle was verified",
                remedy="get the bundle from its source again, or make it again",
            )
        return storage.VerifiedFile(path=folder / path, sha256=listed.sha256)

    @property
    def proofs(self) -> tuple[library_proof.LibraryProof, ...]:
        """What came of the libraries that ship, by the evidence; msgspec.ValidationError where it is no such thing."""
        return msgspec.convert(self.evidence.get(library_proof.PROOFS, ()), tuple[library_proof.LibraryProof, ...])


def content_digest(content: Content | dict[str, Any]) -> str:
    """sha256 of the canonical JSON of `content`: sorted keys, no spaces. This is the digest of the bundle.

    What was read is given as it was written: another release's may have other keys.
    """
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2) + b"\n"


def sealed(manifest: bytes) -> bytes:
    """The bytes of manifest.sha256 for those of manifest.json, as `sha256sum` writes them."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST_FILE}\n".encode()


SHOWN = 200
"""Characters of a path or a reason that a finding shows."""
LONGEST_PATH, LONGEST_PART = 1000, 255
"""Of a path in a bundle in characters, and of a name in it in bytes: what macOS and Linux can hold."""
MOST_FINDINGS = 20
"""Findings that an error names; it says how many there are."""


def verify_bundle(folder: Path, expected: str = "") -> Manifest:
    """The manifest of a bundle of which every byte matches it.

    `expected` is the digest that the bundle's maker names, of its content or of its manifest, "" for none. Raises
    CheckFailed that names each file that was changed, is missing, was added (symbolic links count as added: a bundle
    has none) or cannot be looked at, also as `refuse_future`, and ConfigError where there is no bundle at all.
    """
    manifest = read_manifest(folder)
    findings = []
    for file in manifest.files:
        path = folder / file.path
        try:
            if path.is_symlink() or not path.is_file():
                findings.append(f"missing: {file.path[:SHOWN]}")
            elif (size := path.stat().st_size) != file.size_bytes:
                findings.append(f"changed: {file.path} ({size} bytes instead of {file.size_bytes})")
            elif storage.sha256_of(path) != file.sha256:
                findings.append(f"changed: {file.path}")
        except OSError as error:
            findings.append(_unreadable(file.path, error))
    # Every file and link below it by its path inside; empty folders count as files, with a slash behind their name
    present: set[str] = set()
    unreadable: list[str] = []
    waiting = [folder]
    while waiting:
        directory = waiting.pop()
        inside = directory.relative_to(folder)
        try:
            with os.scandir(directory) as scanned:
                entries = list(scanned)
            folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            unreadable.append(_unreadable(inside.as_posix(), error))
            continue
        waiting += [Path(subfolder.path) for subfolder in folders]
        present |= {(inside / entry.name).as_posix() for entry in entries if entry not in folders}
        if not entries and directory != folder:
            present.add(f"{inside.as_posix()}/")
    listed = {file.path for file in manifest.files}
    listed |= {path for path in OWN_FILES if not (folder / path).is_symlink()}
    findings += [f"added: {path[:SHOWN]}" for path in sorted(present - listed)]
    findings += sorted(unreadable)
    if findings:
        raise _refusal(folder, findings)
    digests = (manifest.content_sha256, manifest_digest(folder))
    if expected and expected.strip().lower() not in digests:
        raise CheckFailed(
            "this is another bundle than the expected one",
            where=str(folder),
            why=f"its digest is {digests[0]}, that of its manifest {digests[1]}, expected is {expected}",
            remedy="get the bundle from its source again, and ask its maker for the digest",
        )
    refuse_future(folder, manifest)
    return manifest


def refuse_future(folder: Path, manifest: Manifest) -> None:
    """Raise CheckFailed for a bundle that was made later than this computer's clock says it is now."""
    made, now = run_result.epoch_ms(manifest.made_at), run_result.utc_now()
    if made is not None and made > (run_result.epoch_ms(now) or 0) + CLOCKS_MS:
        raise CheckFailed(
            "this bundle was made at a time that has not come yet",
            where=str(folder),
            why=f"it says that it was made at {manifest.made_at}, and this computer's clock says {now}",
            remedy="set the clock of this computer, or where that is right, that of the bundle's maker, and make the "
            "bundle again there: `ort-mobile bundle rebuild FOLDER`",
        )


def bundled_libraries(bundle: Path) -> tuple[str, ...]:
    """The libraries of custom operators in a bundle."""
    return tuple(str(path.resolve()) for path in sorted((bundle / CUSTOM_OPS).glob("*/*/*")))


def failures(proofs: Iterable[library_proof.LibraryProof]) -> tuple[str, ...]:
    """Why a bundle must not ship, each with the library that it failed in; () where it passed."""
    failed = [proof for proof in proofs if proof.failed]
    return tuple(
        f"{proof.library.file}: {text}"[:SHOWN] for proof in failed for text in proof.objections or ("failed",)
    )


def refuse_unproven(folder: Path, manifest: Manifest) -> None:
    """Raise CheckFailed for a bundle that failed in a library that ships: whole as it is, it must not ship."""
    try:
        reasons = manifest.content.do_not_ship or failures(manifest.proofs)
    except msgspec.ValidationError as error:
        raise _refusal(folder, [f"unreadable: the proofs in {MANIFEST_FILE} ({str(error)[:SHOWN]})"]) from error
    if reasons:
        raise CheckFailed(
            "do not ship this bundle: it failed in the library that ships",
            where=str(folder),
            why="; ".join(reasons),
            remedy="fix what the proof names (report.md has each cause and remedy), and make the bundle again",
        )


def manifest_digest(folder: Path) -> str:
    """The sha256 of a bundle's manifest.json, which lists every file: the digest of all of it."""
    return storage.sha256_of(folder / MANIFEST_FILE)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, after its own seal was checked; the files that it lists are not looked at.

    Raises as `verify_bundle`, also for names that no bundle of ours has.
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
        text = untrusted_files.read_regular(path, MANIFEST_BYTES)
        seal_text = sealed(text)
        if seal.stat().st_size != len(seal_text) or untrusted_files.read_regular(seal) != seal_text:
            raise _refusal(folder, [f"changed: {MANIFEST_FILE} or {SEAL_FILE}"])
    except OSError as error:
        raise _refusal(folder, [_unreadable(Path(error.filename or path).name, error)]) from error
    try:
        manifest = documents.decode_document(text, Manifest, str(path), unique=True)
        digest = content_digest(untrusted_files.decode_json(text, dict[str, Any])["content"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(folder, [f"unreadable: {MANIFEST_FILE} ({str(error)[:SHOWN]})"]) from error
    if manifest.content_sha256 != digest:
        raise _refusal(folder, [f"changed: the content part of {MANIFEST_FILE}"])
    if findings := _contradictions(manifest):
        raise _refusal(folder, findings)
    return manifest


def _contradictions(manifest: Manifest) -> list[str]:
    """What a manifest says that no bundle of ours does: a file listed twice, or shipped and not listed."""
    paths = Counter(file.path for file in manifest.files)
    content = {file.path for file in manifest.content.files}
    shipping: list[Shipped | ShippedContext] = [*manifest.content.ships, *manifest.content.contexts]
    odd = [
        path
        for path in paths
        if PurePosixPath(path).as_posix() != path
        or path in OWN_FILES
        or not (
            safe_text.INVISIBLE.search(path) is None
            and len(path) <= LONGEST_PATH
            and all(len(part.encode()) <= LONGEST_PART for part in path.split("/"))
        )
    ]
    if len(paths) > MOST_FILES:
        return [f"{len(paths):,} files: a bundle has at most {MOST_FILES:,}"]
    # Names that are one file on macOS or Android: equal but for case or Unicode form, or a file and a folder
    places: dict[str, tuple[str, bool]] = {}
    clashes = []
    for path in sorted({*paths, *OWN_FILES}):
        for parent in (*PurePosixPath(path).parents, PurePosixPath(path)):
            name = parent.as_posix()
            key = unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())
            spelling = (name, name == path)
            if places.setdefault(key, spelling) != spelling:
                clashes.append(f"one name on some file systems: {places[key][0][:SHOWN]} and {name[:SHOWN]}")
    return [
        *clashes,
        *([f"no moment: made_at is {manifest.made_at!r}"] if run_result.epoch_ms(manifest.made_at) is None else []),
        *(f"not a plain path: {path[:SHOWN]}" for path in odd),
        *(f"listed {count} times: {path[:SHOWN]}" for path, count in paths.items() if count > 1),
        *(
            f"selects what does not ship: row {number}"
            for number, selected in enumerate(manifest.content.selection)
            if selected.ships >= len(manifest.content.ships)
        ),
        *(
            f"ships, but is not listed: {path[:SHOWN]}"
            for ships in shipping
            for path in ships.files
            if path not in content
        ),
        *(
            f"vectors of what does not ship: {kept.file[:SHOWN]} for {kept.target}"
            for kept in manifest.vectors
            if not any(
                (kept.target, kept.model, kept.file) == (shipped.target, shipped.model, shipped.file)
                for shipped in manifest.content.ships
            )
        ),
        *(
            f"not beside its model: {shipped.weights[:SHOWN]}"
            for shipped in manifest.content.ships
            if len({PurePosixPath(path).parent for path in shipped.files}) > 1
        ),
    ]


def _unreadable(path: str, error: OSError) -> str:
    return f"cannot be read: {path[:SHOWN]} ({error.strerror or error})"


def _refusal(folder: Path, findings: list[str]) -> CheckFailed:
    more = len(findings) - MOST_FINDINGS
    return CheckFailed(
        f"the bundle does not match its manifest ({len(findings)} {'finding' if len(findings) == 1 else 'findings'})",
        where=str(folder),
        why="; ".join(findings[:MOST_FINDINGS]) + (f"; and {more:,} more" if more > 0 else ""),
        remedy="get the bundle from its source again, or make it again",
    )


def refuse_foreign(folder: Path) -> None:
    """Raise ConfigError when `folder` holds something that is no bundle, or is a link: what is there would be lost."""
    if folder.is_symlink():
        raise ConfigError(
            "the bundle's folder is a symbolic link",
            where=str(folder),
            why="making the bundle would replace what it points to: "
            f"{safe_text.visible(str(folder.readlink()))[:SHOWN]}",
            remedy="remove the link, which leaves what it points to as it is, or choose another folder",
        )
    if not folder.exists() or (folder / MANIFEST_FILE).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise ConfigError(
            "this folder is no bundle of ours",
            where=str(folder),
            why=f"it is not empty and has no {MANIFEST_FILE}; making the bundle would delete what is there",
            remedy="move it away, or choose another folder with --output",
        )
