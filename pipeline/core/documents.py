r"""Documents of ours that are read again, and what texts in them may be.

Each carries its version, and those of earlier releases are read for ever. Each type of text has the pattern that it is
held to when it is read: a bundle's manifest may come from anybody, and its texts go into the source code of apps. Names
that a model's file decides, and sentences, are `Text` of device_runner.spec: they may be anything, and what writes them
escapes them. `$(?!\n)` is the very end: `$` alone lets a line end behind it. Numbers are ASCII, which `\d` is not.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from device_runner import untrusted_files
from pipeline.core.errors import ConfigError

END = r"$(?!\n)"

Name = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,63}}{END}")]
"""What a config calls a campaign, a model or a target."""
ModelName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9._-]{{0,199}}{END}")]
"""Of a model: as a config has it or made of a file's name, with a size or a number behind."""
OptionalModelName = Annotated[str, Meta(pattern=rf"^([A-Za-z0-9_][A-Za-z0-9._-]{{0,199}})?{END}")]
ReferenceName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9._@-]{{0,299}}{END}")]
"""Of a model's reference: as in mnist, and in another precision as in mnist@u8s8pc."""
Line = Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f\u2028\u2029]{{0,1000}}{END}")]
"""One line of any characters that are seen: the name of a user's file, a chip as the phone calls it."""
License = Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f\u2028\u2029]{{1,200}}{END}")]
OptionalLicense = Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f\u2028\u2029]{{0,200}}{END}")]
Release = Annotated[str, Meta(pattern=rf"^1\.[0-9]{{1,2}}(\.[0-9]{{1,2}})?{END}")]
"""Of ONNX Runtime, exact or a line, as configs write it."""
RELEASE = r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}"
AnyRelease = Annotated[str, Meta(pattern=rf"^{RELEASE}{END}")]
"""Of ONNX Runtime or another product: numbers with dots, also of lines that no config knows yet."""
OsVersion = Annotated[str, Meta(pattern=rf"^[0-9]{{1,9}}(\.[0-9]{{1,9}}){{0,9}}{END}")]
BuildName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9.+_-]{{0,128}}{END}")]
"""A version as wheels have it (1.32.0.dev20261101+cpu), or ""."""
PlatformName = Annotated[str, Meta(pattern=rf"^(android|ios|linux|macos){END}")]
Abi = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,31}}{END}")]
OptionalAbi = Annotated[str, Meta(pattern=rf"^([A-Za-z0-9][A-Za-z0-9._-]{{0,31}})?{END}")]
Precision = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_.]{{0,64}}{END}")]
"""A name of pipeline.passes.precisions, or ""."""
Chip = Annotated[str, Meta(pattern=rf"^[A-Z]{{2,3}}[0-9]{{3,5}}[A-Z]?{END}")]
"""Android's Build.SOC_MODEL without the letters of a variant."""
OptionalChip = Annotated[str, Meta(pattern=rf"^([A-Z]{{2,3}}[0-9]{{3,5}}[A-Z]?)?{END}")]
Compatibility = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_:.,-]{{0,500}}{END}")]
"""What a plugin writes of a context."""
QnnRelease = Annotated[str, Meta(pattern=rf"^[0-9][A-Za-z0-9._-]{{0,63}}{END}")]
"""Of a plugin, as its wheel has it."""
OptionalSha256 = Annotated[str, Meta(pattern=rf"^([0-9a-f]{{64}})?{END}")]
WordOrNone = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]{{0,64}}{END}")]
FILE_PATH = rf"^(?!/)(?!.*(^|/)\.\.(/|$))[^\x00-\x1f\x7f\"'`\\$*?<>|:;{{}}\u2028\u2029]+{END}"
FilePath = Annotated[str, Meta(pattern=FILE_PATH)]
"""Of a file in a bundle: relative, with `/`, never out of it, and nothing that a shell or a language reads as its own.
"""
ModelFile = Annotated[str, Meta(pattern=rf"^(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._+@/-]{{0,999}}{END}")]
"""Of a model's file or of its weights in a bundle, made of the names of model and variant."""
OptionalModelFile = Annotated[str, Meta(pattern=rf"^(?!.*\.\.)([A-Za-z0-9_][A-Za-z0-9._+@/-]{{0,999}})?{END}")]

T = TypeVar("T")
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes a document of one version one of the next."""


class _Versioned(msgspec.Struct):
    version: int


def decode_document(
    content: bytes, kind: type[T], where: str, upgrades: Sequence[Upgrade] = (), *, unique: bool = False
) -> T:
    """A document of this release's version, or of an earlier one; the first of `upgrades` makes version 2 of version 1.

    Raises as `decode_json`, whose `unique` this is, and ConfigError for a version that this release does not know.
    """
    newest = len(upgrades) + 1
    version = untrusted_files.decode_json(content, _Versioned).version
    if not 1 <= version <= newest:
        raise ConfigError(
            f"this document has version {version}",
            where=where,
            why=f"this release of ort-mobile reads {f'versions 1 to {newest}' if upgrades else 'version 1'}",
            remedy="update ort-mobile if a later release wrote it, or write it again: those of before 1.0 are not read",
        )
    if version == newest:
        return untrusted_files.decode_json(content, kind, unique=unique)
    document = untrusted_files.decode_json(content, dict[str, Any], unique=unique)
    for upgrade in upgrades[version - 1 :]:
        document = upgrade(document)
    return msgspec.convert(document, kind)
