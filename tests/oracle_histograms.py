"""Agreement with the ground truth: operators of the files that conversion writes, provider-aware ones and plain ones.

As a program: `python -m tests.oracle_histograms [--settings REGEX] [--every N] [ARCHIVE...]`; exit status 1 unless all
labels are met. The labels are of 1.23, and that release of onnxruntime must be installed.
"""

import argparse
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from unittest.mock import patch

from pipeline.convert import ConvertRequest, convert_model
from pipeline.convert.request import AwareSpec
from pipeline.convert.swallowed import Swallowed
from pipeline.core.variant import Level, Variant
from pipeline.model.sources import SourceModel
from tests.ground_truth import ORACLE
from tests.oracle_agreement import SETTING, Agreement, labels, request_for

RELEASE = "1.23"
LEVELS = ("none", "basic", "extended", "all")


def histogram_settings(oracle: Path, archive: str) -> list[str]:
    """Settings of an archive whose labels count operators."""
    found = labels(oracle, archive, RELEASE)
    counted = dict.fromkeys(setting for (setting, _), row in found.items() if "histogram" in row)
    return [name for name in counted if not name.startswith("xnnpack")]


def histograms(oracle: Path, archive: str, setting: str, *, every: int = 1) -> Agreement:
    """Convert an archive's models (each `every`-th) in one setting and compare their operators with the labels."""
    rows = [
        row
        for (name, _), row in labels(oracle, archive, RELEASE).items()
        if name == setting and row["error"] is None and "histogram" in row
    ]
    result = Agreement()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(oracle / f"{archive}.zip") as packed:
        for row in rows[::every]:
            path = Path(packed.extract(f"{row['id']}.onnx", folder))
            ours = _operators(path, setting, Path(folder) / "work")
            path.unlink()
            result.total += 1
            if ours != row["histogram"]:
                result.wrong.append((row["id"], row["histogram"], ours))
    return result


def _operators(path: Path, setting: str, folder: Path) -> dict[str, int] | str:
    """Operators of the file that conversion writes, or what it said."""
    name, _, level = setting.partition("@")
    source = SourceModel(path=str(path))
    aware = (request_for(source, name, RELEASE).settings,) if SETTING.fullmatch(name) else ()
    variant = Variant(level=Level(level), providers=tuple(settings.provider for settings in aware))
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        request = ConvertRequest(
            source=source, variants=(variant,), stem="model", output_folder=f"{work}/out", work_folder=f"{work}/work",
            release=RELEASE, aware=AwareSpec(providers=aware),
        )  # fmt: skip
        # The real sessions lose what fusions swallow, ours does not
        with patch("pipeline.convert.swallowed.swallowed", return_value=Swallowed()):
            result = convert_model(request)
    return result.artifacts[0].operators if result.artifacts else f"{result.failures[0].what}: {result.failures[0].why}"


def _difference(wanted: dict[str, int], ours: dict[str, int] | str) -> object:
    if isinstance(ours, str):
        return ours
    both = sorted(wanted.keys() | ours.keys())
    return {name: (wanted.get(name, 0), ours.get(name, 0)) for name in both if wanted.get(name) != ours.get(name)}


def main() -> int:
    """Print a line a setting, the labels that are not met with label and ours, and a total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="*", default=["real", "dags"])
    parser.add_argument("--settings", default=".*", help="a regular expression")
    parser.add_argument("--every", type=int, default=1, help="each so-many-th model")
    chosen = parser.parse_args()
    total = right = 0
    for archive in chosen.archives:
        for setting in histogram_settings(ORACLE, archive):
            if not re.fullmatch(chosen.settings, setting):
                continue
            result = histograms(ORACLE, archive, setting, every=chosen.every)
            total, right = total + result.total, right + result.total - len(result.wrong)
            print(f"{archive:5s} {setting:32s} {result.total - len(result.wrong):6d} of {result.total:6d}", flush=True)
            for name, wanted, ours in result.wrong:
                print(f"      {name} (label, ours) {_difference(wanted, ours)}")
    print(f"agreement {right} of {total}")
    return 0 if right == total > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
