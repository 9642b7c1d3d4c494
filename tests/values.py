"""Values that must be there in a test, and the files of a folder."""

from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """The value, which must be there."""
    assert value is not None
    return value


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its path inside it."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
