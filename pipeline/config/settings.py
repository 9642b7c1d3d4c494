"""What a key of `[[runs]]` sets in a session.

Each key of `RunConfig` that is a session setting says it in its annotation; options of commands, names of runs, the
search of `tune` and its defaults are made from that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_type_hints

import msgspec


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field of `RunOptions`."""

    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One session config entry, whose value is the key's own as text."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSwitch:
    """Session config entries of a key that is on or off; none where ONNX Runtime's default is what is asked for.

    `on_word` and `off_word` are what stands in names of runs for such entries; "" for KEY=on and KEY=off.
    """

    on: Mapping[str, str]
    off: Mapping[str, str]
    on_word: str = ""
    off_word: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of `[[runs]]` with what it sets, and its value where the key is not given (None: nothing is set)."""

    key: str
    sets: OptionField | ConfigEntry | ConfigSwitch
    default: Any

    def entries(self, value: Any) -> dict[str, str]:
        """The session config entries that a value means; None means none."""
        if value is None or isinstance(self.sets, OptionField):
            return {}
        if isinstance(self.sets, ConfigEntry):
            return {self.sets.key: str(value)}
        return dict(self.sets.on if value else self.sets.off)

    @property
    def words(self) -> dict[str, dict[str, str]]:
        """What stands in names of runs for which session config entries."""
        if not isinstance(self.sets, ConfigSwitch):
            return {}
        on, off = self.sets.on_word or f"{self.key}=on", self.sets.off_word or f"{self.key}=off"
        return {word: dict(entries) for word, entries in ((off, self.sets.off), (on, self.sets.on)) if entries}


def settings_of(table: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """The session settings among the keys of a table, in its order."""
    hints = get_type_hints(table, include_extras=True)
    return tuple(
        Setting(key=field.name, sets=sets, default=field.default)
        for field in msgspec.structs.fields(table)
        for sets in getattr(hints[field.name], "__metadata__", ())
        if isinstance(sets, OptionField | ConfigEntry | ConfigSwitch)
    )


def setting_text(value: object) -> str:
    """A value as names of runs and tables show it; "" for None."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)
