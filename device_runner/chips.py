"""Snapdragon chips with a Hexagon NPU (HTP), as Qualcomm's compiler and Android name them."""

import difflib
import re
from dataclasses import dataclass

from device_runner.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A chip: `name` is Android's Build.SOC_MODEL without the letters of a variant, `title` what shops call it.

    `soc_model` is the compiler's number of it, `htp_arch` the generation of its NPU (75 is V75). `floats` says whether
    the NPU of a phone with it computes floats: that depends on the chip, not on the generation.
    """

    name: str
    title: str
    soc_model: int
    htp_arch: int
    floats: bool

    @property
    def options(self) -> dict[str, str]:
        """The provider's options that name the chip.

        Without a chip its library for computers computes in float32, which no phone does.
        """
        return {"soc_model": str(self.soc_model), "htp_arch": str(self.htp_arch)}


_ROWS = (
    Chip(name="SM8350", title="Snapdragon 888", soc_model=30, htp_arch=68, floats=False),
    Chip(name="SM8325", title="Snapdragon 888 without modem", soc_model=34, htp_arch=68, floats=False),
    Chip(name="SM7325", title="Snapdragon 778G", soc_model=35, htp_arch=68, floats=False),
    Chip(name="SM8450", title="Snapdragon 8 Gen 1", soc_model=36, htp_arch=69, floats=True),
    Chip(name="SM7450", title="Snapdragon 7 Gen 1", soc_model=41, htp_arch=69, floats=True),
    Chip(name="SM8475", title="Snapdragon 8+ Gen 1", soc_model=42, htp_arch=69, floats=True),
    Chip(name="SM8550", title="Snapdragon 8 Gen 2", soc_model=43, htp_arch=73, floats=True),
    Chip(name="SM8635", title="Snapdragon 8s Gen 3", soc_model=68, htp_arch=73, floats=False),
    Chip(name="SM7675", title="Snapdragon 7+ Gen 3", soc_model=70, htp_arch=73, floats=False),
    Chip(name="SM7635", title="Snapdragon 7s Gen 3", soc_model=73, htp_arch=73, floats=False),
    Chip(name="SM7750", title="Snapdragon 7 Gen 4", soc_model=86, htp_arch=73, floats=False),
    Chip(name="SM8650", title="Snapdragon 8 Gen 3", soc_model=57, htp_arch=75, floats=True),
    Chip(name="SM8750", title="Snapdragon 8 Elite", soc_model=69, htp_arch=79, floats=True),
    Chip(name="SM8850", title="Snapdragon 8 Elite Gen 5", soc_model=87, htp_arch=81, floats=True),
    Chip(name="SM8975", title="SM8975", soc_model=103, htp_arch=85, floats=True),
)

CHIPS: dict[str, Chip] = {row.name: row for row in _ROWS}
"""The chips by name, the oldest NPU first. Sources: the QNN provider's own table of chips (onnxruntime-qnn 2.7), and
one session of a float model for each number (docs/npu.md)."""


def chip_of_phone(soc_model: str) -> Chip | None:
    """The chip by a phone's Build.SOC_MODEL (ro.soc.model), such as SM8550-AC; None for one without a row."""
    name = re.match(r"[A-Z]+\d+", soc_model.strip().upper())
    return CHIPS.get(name[0]) if name else None


def chip_named(text: str) -> Chip:
    """The chip that a user names; SpecError for one without a row.

    The compiler takes a wrong number without a word, and then nothing of any model.
    """
    chip = chip_of_phone(text)
    if chip is None:
        close = difflib.get_close_matches(text.upper(), CHIPS, n=1, cutoff=0.8)
        known = ", ".join(f"{row.name} ({row.title})" if row.title != row.name else row.name for row in CHIPS.values())
        raise SpecError(
            f"no Snapdragon chip is called {text!r}",
            why="a chip is named by Android's Build.SOC_MODEL (adb shell getprop ro.soc.model)",
            remedy=f"did you mean {close[0]}?" if close else f"use one of {known}",
        )
    return chip
