"""Where features join the engine: a place says what it asks for, a table of pipeline.features says who answers.

The engine imports no feature: whoever takes a feature's folder and its rows of that table away has all else.
"""

import importlib
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Place(Generic[T]):
    """A place of the engine where features may join in; iterating imports their functions, in the table's order."""

    def __init__(self, name: str) -> None:
        """The name stands in `pipeline.features.OFFERS`."""
        self.name = name

    def __iter__(self) -> Iterator[T]:
        """What features offer for this place; nothing where the features that do are not installed."""
        offers: dict[str, tuple[str, ...]] = importlib.import_module("pipeline.features").OFFERS
        for offer in offers.get(self.name, ()):
            module, _, attribute = offer.partition(":")
            yield getattr(importlib.import_module(f"pipeline.features.{module}"), attribute)

    def features(self) -> frozenset[str]:
        """The names of the features that offer something for this place; nothing is imported."""
        offers: dict[str, tuple[str, ...]] = importlib.import_module("pipeline.features").OFFERS
        return frozenset(offer.partition(".")[0] for offer in offers.get(self.name, ()))
