"""Documents of ours that are read again: each carries its version, and those of earlier releases are read for ever."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from device_runner.reading import decode_json
from pipeline.core.errors import ConfigError

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
    version = decode_json(content, _Versioned).version
    if not 1 <= version <= newest:
        raise ConfigError(
            f"this document has version {version}", where=where,
            why=f"this release of ort-mobile reads {f'versions 1 to {newest}' if upgrades else 'version 1'}",
            remedy="update ort-mobile if a later release wrote it, or write it again: those of before 1.0 are not read",
        )  # fmt: skip
    if version == newest:
        return decode_json(content, kind, unique=unique)
    document = decode_json(content, dict[str, Any], unique=unique)
    for upgrade in upgrades[version - 1 :]:
        document = upgrade(document)
    return msgspec.convert(document, kind)
