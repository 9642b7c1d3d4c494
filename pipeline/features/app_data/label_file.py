"""The names of what a model tells apart: labels and characters, of a file or of the model's own metadata."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from device_runner import untrusted_files
from pipeline.config import app_data
from pipeline.core.errors import ConfigError

MOST_BYTES = 16 << 20
MOST_NAMES = 1_000_000

CHARACTERS = "character"
"""The key of a model's metadata under which PaddleOCR and RapidOCR keep characters, one a line."""


def names_of(gives: app_data.Gives) -> list[str]:
    """The names of the file of `gives`, one a line; [] where it has none. ConfigError for none, too many and no text.

    Characters are divided by line feeds alone: other ends of lines may be among them.
    """
    file = gives.file
    if not file:
        return []
    try:
        text = untrusted_files.read_regular(Path(file), MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the labels cannot be read",
            where=file,
            why=str(error),
            remedy=f"give a text file in UTF-8 with a label a line as `gives.{gives.answer}`",
        ) from error
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if gives.text else text.splitlines()
    if not text or len(lines) > MOST_NAMES:
        raise ConfigError(
            f"a file of {len(lines) if text else 0:,} labels",
            where=file,
            why=f"there must be one for each class of the model, {MOST_NAMES:,} at most",
            remedy=f"give a text file with a label a line as `gives.{gives.answer}`",
        )
    return lines


def digest_of(names: Sequence[str]) -> str:
    """What is cached is of these names; "" for none."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else ""
