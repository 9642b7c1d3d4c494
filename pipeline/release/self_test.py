"""The self-test of a model that devices try session options with, and what the desk found of each of its ways."""

from enum import StrEnum

import msgspec


class DeskVerdict(StrEnum):
    """What the desk says of a way."""

    PASSES = "passes"
    MISSES = "misses"
    NOT_JUDGED = "not_judged"
    """It could not be run on this computer: that is no word for it."""


class JudgedWay(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a model with session options: what its outputs reached at the desk, and must reach, in decibels.

    `place` says what ran it. Without outputs, `why` says what kept it from being run.
    """

    file: str
    run: str
    verdict: DeskVerdict
    place: str = ""
    reached: float | None = None
    needed: float | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """For people, without the file."""
        if self.verdict is DeskVerdict.NOT_JUDGED:
            return f"{self.run} not judged: {self.why}"
        return f"{self.run} {self.verdict} in {self.place}: {self.reached:.1f} dB of {self.needed:.1f}"


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a model's self-test; without any, why. `ways` are what the desk found of the files that ship."""

    model: str
    data: bytes = b""
    none: str = ""
    ways: tuple[JudgedWay, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """That there is none, or what devices would refuse although it ships."""
        if self.none:
            return (f"self-test of {self.model}: none, {self.none}",)
        missed = (way for way in self.ways if way.verdict is DeskVerdict.MISSES)
        return tuple(f"self-test of {self.model}: devices would refuse {way.text}" for way in missed)

    @property
    def lines(self) -> tuple[str, ...]:
        """What the desk found, each way once: files of several sizes may say the same."""
        return tuple(dict.fromkeys(f"self-test  {self.model}: {way.text}" for way in self.ways))

    @property
    def document(self) -> dict[str, object]:
        """For programs."""
        return {
            "model": self.model,
            "size_bytes": len(self.data),
            "none": self.none,
            "ways": msgspec.to_builtins(self.ways),
        }
