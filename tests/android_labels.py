"""Labels of a genuine Android library: what it claims of the ground truth's models, where another release's differ.

As a program: `python -m tests.android_labels [--library android:1.26.0] [ARCHIVE...]` asks the x86_64 library and
writes `tests/ground_truth/ARCHIVE.android-LINE.jsonl.gz`: first a line that says what was asked of which library, then
the labels that differ from those of `BASE`, with `error` where the library makes no session. Real models and random
graphs are asked about in all of `SETTINGS`, the 5,200 models of one operator in `USUAL`. A library before 1.24
says nothing of XNNPACK, and of NNAPI which `nodes` it claims, not in which groups. Where functions are
inlined (`inlined`), `claim` has the library's second answer behind the first (pipeline.partition.reference).
"""

import argparse
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from device_runner.library import LibraryFacts, resolve
from pipeline.core.abis import X86_64
from pipeline.core.releases import line_of, rules_of
from pipeline.partition.answer import Settings, make_settings
from pipeline.partition.library_claims import same_claims
from pipeline.partition.reference import claims_of_named, tells_claims
from tests.arm64_agreement import unpacked
from tests.ground_truth import ORACLE
from tests.oracle_agreement import labels

USUAL = ("nnapi27", "nnapi30", "xnnpack")
SETTINGS = (*USUAL, "nnapi28", "nnapi29", "nnapi31", "nnapi28-nchw", "nnapi30-nchw")
NEAREST = {
    "nnapi28": "nnapi30", "nnapi29": "nnapi30", "nnapi31": "nnapi30", "nnapi28-nchw": "nnapi30-nchw",
}  # fmt: skip
"""Where the base has no labels of a setting, as of real models, those of this setting are read below."""
BASE = "1.28"
"""The release whose labels are read below those that differ: the nearest with labels of its own."""
ARCHIVES = ("real", "dags", "ops")


def file_of(archive: str, line: str) -> Path:
    """Where the labels of a release lie."""
    return ORACLE / f"{archive}.android-{line}.jsonl.gz"


def claimed(row: dict[str, Any]) -> list[list[str]]:
    """What a label says is claimed, in the graph and in bodies of its nodes."""
    return [*row["claim"], *(group for body in row.get("sub") or () for group in body["claim"])]


def android_settings(setting: str, line: str) -> Settings:
    """What a setting's name stands for in the x86_64 library for Android."""
    name, _, layout = setting.partition("-")
    provider, level = ("nnapi", int(name[5:])) if name.startswith("nnapi") else (name, 31)
    return make_settings(
        provider, release=str(rules_of(line_of(line))), abi=X86_64, android=True, api_level=level,
        nnapi_flags=("USE_NCHW",) if layout == "nchw" else (),
    )  # fmt: skip


def base_labels(archive: str, base: str, setting: str) -> dict[str, dict[str, Any]]:
    """Labels of the base by model, in a setting or the nearest one that it has."""
    rows = labels(ORACLE, archive, base)
    recorded = setting if any(name == setting for name, _ in rows) else NEAREST[setting]
    return {model: row for (name, model), row in rows.items() if name == recorded}


def android_labels(archive: str, line: str) -> dict[tuple[str, str], dict[str, Any]]:
    """All labels of the settings that were asked, by (setting, id): those that differ before the others."""
    with gzip.open(file_of(archive, line), "rt") as lines:
        head, *differ = map(json.loads, lines)
    shared = {
        (setting, model): row
        for setting in head["settings"]
        for model, row in base_labels(archive, head["base"], setting).items()
    }
    return shared | {(row["set"], row["id"]): row for row in differ}


def settings_of(archive: str, library: LibraryFacts) -> tuple[str, ...]:
    """What a library is asked about an archive's models."""
    settings = USUAL if archive == "ops" else SETTINGS
    return settings if tells_claims(library) else tuple(name for name in settings if name.startswith("nnapi"))


def asked(archive: str, library: LibraryFacts) -> Iterator[dict[str, Any]]:
    """Labels by a library that differ from the base's."""
    for setting in settings_of(archive, library):
        base = base_labels(archive, BASE, setting)
        settings = android_settings(setting, str(line_of(library.release)))
        with tempfile.TemporaryDirectory() as folder:
            paths = list(unpacked([(archive, f"{name}.onnx") for name in base], Path(folder)))
            answers = claims_of_named(paths, library, settings, reasons=True)
            for (name, row), answer in zip(base.items(), answers, strict=True):
                row_of = {"id": name, "set": setting}
                if answer.error is not None:
                    if row["error"] is None:
                        yield row_of | {"error": str(answer.error).replace(f"{folder}/", "")[:200]}
                elif row["error"] is None and same_claims(answer, claimed(row)):
                    continue
                elif answer.partitions is None:
                    yield row_of | {"error": None, "nodes": sorted(answer.nodes), "inlined": answer.inlined}
                else:
                    yield row_of | {"error": None, "claim": answer.partitions, "inlined": answer.inlined}


def main() -> None:
    """Write the labels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=ARCHIVES)
    parser.add_argument("--library", default="android:1.26.0")
    chosen = parser.parse_args()
    library = resolve(chosen.library, X86_64).android()
    line = str(line_of(library.release))
    for archive in chosen.archives:
        head = {"library": f"android:{library.release}", "sha256": library.sha256, "base": BASE,
                "settings": settings_of(archive, library)}  # fmt: skip
        rows = [head, *asked(archive, library)]
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        file_of(archive, line).write_bytes(gzip.compress(content, mtime=0))
        print(f"{archive}: {len(rows) - 1} labels differ from those of {BASE}", flush=True)


if __name__ == "__main__":
    main()
