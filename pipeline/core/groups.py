"""Values by a key."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values by their keys, both in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def counted(count: int, noun: str) -> str:
    """As in `1 model` and `2 models`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


MOST_NAMED = 5
"""Things that a message names: a lab has thousands."""


def few(texts: Sequence[str], between: str = ", ", most: int = MOST_NAMED) -> str:
    """The first of them, and how many more there are."""
    more = len(texts) - most
    return between.join(texts[:most]) + (f"{between}and {more:,} more" if more > 0 else "")
