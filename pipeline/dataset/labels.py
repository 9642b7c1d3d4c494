"""Labels in a CSV file, one line `file,label` for each sample: held against the samples in both directions."""

import csv
from dataclasses import dataclass, field
from pathlib import Path

from device_runner.reading import read_regular
from pipeline.core.errors import ConfigError

HEADS = frozenset({"file", "filename", "file_name", "name", "path", "sample", "image", "audio", "id"})
"""First words of a line that is a heading."""
LABEL_HEADS = ("label", "class", "text", "target")
"""Headings of the column with labels; without one of them it is the second."""
LIMIT_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class LabelTable:
    """Labels by what names a sample, with their lines; `used` are the names that samples have asked for."""

    file: Path
    labels: dict[str, str]
    lines: dict[str, int]
    used: set[str] = field(default_factory=set)

    def label_of(self, sample: str, names: tuple[str, ...]) -> str:
        """The label of a sample by the first of its names that has one.

        ConfigError for a sample without label, and for one whose label another sample has already.
        """
        found = next((name for name in names if name in self.labels), None)
        if found is None:
            raise ConfigError(
                "no label for this sample", where=sample,
                why=f"{self.file} has {len(self.labels)} labels, none for {' or '.join(map(repr, names))}",
                remedy="add a line, or remove the sample",
            )  # fmt: skip
        if found in self.used:
            raise ConfigError(
                "two samples have the same label line", where=f"{self.file}:{self.lines[found]}",
                why=f"{found!r} names {sample}, and another one before it",
                remedy="name files with their folders, as in `a/1.jpg,3`",
            )  # fmt: skip
        self.used.add(found)
        return self.labels[found]

    def check_all_used(self) -> None:
        """ConfigError for the first label that belongs to no sample."""
        unused = [name for name in self.labels if name not in self.used]
        if unused:
            raise ConfigError(
                "a label without a sample", where=f"{self.file}:{self.lines[unused[0]]}",
                why=f"there is no sample {unused[0]!r}; {len(unused)} of {len(self.labels)} labels have none",
                remedy="remove the line, or add the sample; names are relative to the folder of `test_data`",
            )  # fmt: skip


def read_labels(file: Path) -> LabelTable:
    """The labels of a CSV file, in UTF-8, with or without a heading.

    ConfigError, with the line, for what is no such file, an empty label, and a name that stands twice.
    """
    rows = _rows(file)
    (_, first) = rows[0]
    headed = first[0].strip().lower() in HEADS
    heads = [cell.strip().lower() for cell in first] if headed else []
    column = next((heads.index(head) for head in LABEL_HEADS if head in heads), 1)
    table = LabelTable(file=file, labels={}, lines={})
    for line, row in rows[headed:]:
        name, label = row[0].strip(), row[column].strip() if column < len(row) else ""
        if not name or not label:
            raise _bad(file, line, f"it has {','.join(row)[:80]!r}", "write `file,label`")
        if name in table.labels:
            raise _bad(file, line, f"{name!r} stands in line {table.lines[name]}, too", "keep one of the two")
        table.labels[name], table.lines[name] = label, line
    return table


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """Lines with anything in them, with their numbers; at least one."""
    try:
        reader = csv.reader(read_regular(file, LIMIT_BYTES).decode("utf-8-sig").splitlines(), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            "the labels cannot be read", where=str(file), why=str(error)[:300],
            remedy="give a CSV file in UTF-8 with a line `file,label` for each sample",
        ) from error  # fmt: skip
    if not rows:
        raise _bad(file, 1, "the file is empty", "write a line `file,label` for each sample")
    return rows


def _bad(file: Path, line: int, why: str, remedy: str) -> ConfigError:
    return ConfigError("this is no line of labels", where=f"{file}:{line}", why=why, remedy=remedy)
