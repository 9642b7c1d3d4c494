"""Labels of samples: a CSV file beside test data."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner import untrusted_files
from pipeline.core.errors import ConfigError

if TYPE_CHECKING:
    pass


HEADS = frozenset({"file", "filename", "file_name", "name", "path", "sample", "image", "audio", "id"})
"""First words of a line that is a heading."""


LABEL_HEADS = ("label", "class", "text", "target")
"""Headings of the column with labels; without one of them it is the second."""


LIMIT_BYTES = 256 << 20


def read_labels(file: Path) -> dict[str, tuple[int, str]]:
    """The labels of a CSV file, in UTF-8, with or without a heading: line and label by what names a sample.

    ConfigError, with the line, for what is no such file, an empty label, and a name that stands twice.
    """

    def bad(line: int, why: str, remedy: str) -> ConfigError:
        return ConfigError("this is no line of labels", where=f"{file}:{line}", why=why, remedy=remedy)

    try:
        csv_rows = csv.reader(
            untrusted_files.read_regular(file, LIMIT_BYTES).decode("utf-8-sig").splitlines(), strict=True
        )
        rows = [(csv_rows.line_num, row) for row in csv_rows if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            "the labels cannot be read",
            where=str(file),
            why=str(error)[:300],
            remedy="give a CSV file in UTF-8 with a line `file,label` for each sample",
        ) from error
    if not rows:
        raise bad(1, "the file is empty", "write a line `file,label` for each sample")
    heads = [cell.strip().lower() for cell in rows[0][1]]
    headed = heads[0] in HEADS
    column = next((heads.index(head) for head in LABEL_HEADS if headed and head in heads), 1)
    labels: dict[str, tuple[int, str]] = {}
    for line, row in rows[headed:]:
        name, label = row[0].strip(), row[column].strip() if column < len(row) else ""
        if not name or not label:
            raise bad(line, f"it has {','.join(row)[:80]!r}", "write `file,label`")
        if name in labels:
            raise bad(line, f"{name!r} stands in line {labels[name][0]}, too", "keep one of the two")
        labels[name] = line, label
    return labels
