"""The manifest of a bundle: what is in it, how it was made, what it was chosen for, what was measured.

`content` has a digest of its own and is a function of the inputs alone: the same inputs give the same bytes, in another
folder and at another time. `references` (what the original models computed on the computer that made the bundle) and
`evidence` (what was measured and when) are not: they differ from machine to machine and from run to run.

Version 1 had neither `references` nor `runs`, version 2 neither `models` nor `reports`; they are read as ones that have
none.
"""

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from device_runner.result import Struct
from device_runner.spec import ElementType, RunOptions
from pipeline.check.compare import Tolerance
from pipeline.check.library_proof import PROOFS, LibraryProof
from pipeline.config.tables import InputValue, PreprocessConfig
from pipeline.core.variant import AwareBy, Variant

MANIFEST_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
MANIFEST_FILE = "manifest.json"
SEAL_FILE = "manifest.sha256"
MEASURED_FILE = "evidence/measured.md"
"""What was measured, for people."""


class BundledFile(Struct, frozen=True, kw_only=True):
    """A file of the bundle by its path inside it."""

    path: Annotated[str, Meta(pattern=r"^(?!/)(?!.*(^|/)\.\.(/|$)).+$")]
    """Relative, with `/`, and never out of the bundle: a manifest may come from anywhere."""
    size_bytes: int
    sha256: str


class Shipped(Struct, frozen=True, kw_only=True):
    """What ships to one target for one model, how the app must open it, and why this one."""

    target: str
    platform: str
    model: str
    model_sha256: str
    variant: Variant
    file: str
    semantic_digest: str
    aware_by: AwareBy | None = None
    """What made a provider-aware file: our splice, or the session of a library by its sha256."""
    steps: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The passes that the model went through before conversion, as the command line writes them; unset for none."""
    provider: str
    provider_options: dict[str, str] = {}
    flags: tuple[str, ...] = ()
    session_config: dict[str, str] = {}
    runs: tuple[RunOptions, ...] = ()
    """Every way in which the config lets this artifact run there, the chosen one first; () in version 1."""
    ort_release: str
    min_api_level: int | None = None
    min_os_version: str | None = None
    library: str = ""
    """The library that the target names: its file's name, or a release as in android:1.29.0."""
    library_kind: str = ""
    """Whether the library is full, extended or minimal, as far as it is known; "" before version 3."""
    basis: Literal["measured", "advised"]
    """Whether it was the best measured on such a device, or is what is advised; the evidence has the reason in full."""


class TensorSignature(Struct, frozen=True, kw_only=True):
    """An input or output of a model file: `dtype` is None for what is no tensor (sequences, maps).

    An axis of `shape` is a size, the name of a dynamic dimension, or None; `shape` is None for an unknown rank.
    """

    name: str
    dtype: ElementType | None
    shape: tuple[int | str | None, ...] | None


class ModelSignature(Struct, frozen=True, kw_only=True):
    """What the files of a model take and give. `dimensions` are those that the config fixed, by name.

    `preprocess` and `values` are how the config makes inputs of test data; the app must do the same.
    """

    model: str
    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    dimensions: dict[str, int] = {}
    preprocess: PreprocessConfig | None = None
    values: dict[str, InputValue] = {}


class KeptTensor(BundledFile, frozen=True, kw_only=True):
    """A tensor in a file of the bundle: raw little-endian elements in C order."""

    name: str
    dtype: ElementType
    shape: tuple[Annotated[int, Meta(ge=0)], ...]


class KeptReference(Struct, frozen=True, kw_only=True):
    """What the original of a model made of some inputs, and how far artifacts may be from that.

    Tensors that are large are not kept: `inputs` or `outputs` are then empty. `tolerance` has everything that decides
    whether an output passes; None in bundles that were made before it was kept, of which `max_relative_error` says it.
    """

    model: str
    """The name of the model; of one in another precision with that behind, as in mnist@u8s8pc."""
    inputs: tuple[KeptTensor, ...] = ()
    outputs: tuple[KeptTensor, ...] = ()
    max_relative_error: float
    tolerance: Tolerance | None = None


class Content(Struct, frozen=True, kw_only=True):
    """Everything that the inputs decide."""

    name: str
    made_with: dict[str, str]
    files: tuple[BundledFile, ...]
    ships: tuple[Shipped, ...]
    models: tuple[ModelSignature, ...] = ()
    """Each model that ships, once; () before version 3."""


class Manifest(Struct, frozen=True, kw_only=True):
    """A bundle's manifest.json."""

    version: int = MANIFEST_VERSION
    content: Content
    content_sha256: str
    references: tuple[KeptReference, ...] = ()
    evidence: dict[str, Any] = {}
    reports: tuple[BundledFile, ...] = ()
    """The evidence for people: files that differ from run to run, as it does."""

    @property
    def files(self) -> tuple[BundledFile, ...]:
        """Every file of the bundle beside the manifest and its seal."""
        kept = [tensor for reference in self.references for tensor in (*reference.inputs, *reference.outputs)]
        return (*self.content.files, *kept, *self.reports)

    @property
    def proofs(self) -> tuple[LibraryProof, ...]:
        """What came of the libraries that ship, by the evidence; msgspec.ValidationError where it is no such thing."""
        return msgspec.convert(self.evidence.get(PROOFS, ()), tuple[LibraryProof, ...])


def content_digest(content: Content | dict[str, Any]) -> str:
    """sha256 of the canonical JSON of `content`: sorted keys, no spaces. This is the digest of the bundle.

    What was read is given as it was written: an older manifest lacks keys that `Content` has today.
    """
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2) + b"\n"


def sealed(manifest: bytes) -> bytes:
    """The bytes of manifest.sha256 for those of manifest.json, as `sha256sum` writes them."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST_FILE}\n".encode()
