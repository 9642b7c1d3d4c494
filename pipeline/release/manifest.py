"""The manifest of a bundle: what is in it, how it was made, what it was chosen for, what was measured.

Two parts with a digest each. `content` is a function of the inputs alone: the same inputs give the same bytes, in
another folder and at another time. `evidence` is what was measured and when, and differs from run to run.
"""

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pipeline.variant import Variant

MANIFEST_VERSION = 1
MANIFEST_FILE = "manifest.json"
SEAL_FILE = "manifest.sha256"


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """An unchanging value of the manifest."""


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
    provider: str
    provider_options: dict[str, str] = {}
    flags: tuple[str, ...] = ()
    session_config: dict[str, str] = {}
    ort_release: str
    min_api_level: int | None = None
    min_os_version: str | None = None
    basis: Literal["measured", "advised"]
    """Whether it was the best measured on such a device, or is what is advised; the evidence has the reason in full."""


class Content(Struct, frozen=True, kw_only=True):
    """Everything that the inputs decide."""

    name: str
    made_with: dict[str, str]
    files: tuple[BundledFile, ...]
    ships: tuple[Shipped, ...]


class Manifest(Struct, frozen=True, kw_only=True):
    """A bundle's manifest.json."""

    version: int = MANIFEST_VERSION
    content: Content
    content_sha256: str
    evidence: dict[str, Any] = {}


def content_digest(content: Content) -> str:
    """sha256 of the canonical JSON of `content`: sorted keys, no spaces. This is the digest of the bundle."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def encode_manifest(content: Content, evidence: dict[str, Any]) -> bytes:
    """The bytes of manifest.json."""
    manifest = Manifest(content=content, content_sha256=content_digest(content), evidence=evidence)
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2) + b"\n"
