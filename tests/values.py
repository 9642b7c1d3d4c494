"""Values that may be missing elsewhere, and must not be in a test."""

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """The value, which must be there."""
    assert value is not None
    return value
