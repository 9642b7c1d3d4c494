"""Which contexts ship, and what speaks against them in a target."""

import msgspec
import pytest

from pipeline.check.compare import OutputCheck
from pipeline.compat.contexts import NpuContext
from pipeline.config import BuildKind, Platform, Target
from pipeline.core.errors import Severity
from pipeline.core.variant import Level, Variant
from pipeline.release.chip_contexts import (
    chosen_contexts,
    context_findings,
    gradle_notations,
    other_phones,
    shipped_context,
)

PHONE = Target(name="phone", platform=Platform.ANDROID, abis=("arm64-v8a",))


def context(chip: str = "SM8650", precision: str = "", qairt: str = "2.51.0") -> NpuContext:
    variant = Variant(level=Level.BASIC, providers=("qnn",), precision=precision, chip=chip)
    return NpuContext(
        model="m", variant=variant, file=f"m.{variant.name}.onnx", size_bytes=1, sha256="0" * 64,
        binary=f"m.{variant.name}_qnn.bin", binary_bytes=9, binary_sha256="1" * 64, plugin="2.7.0",
        compatibility=f"v2:6:{qairt}:5.51.0:75:57:0:0", onnxruntime="1.32.0", npu_nodes=1, partitions=1, cpu_nodes=0,
        seconds=0.5, memory_bytes=1,
    )  # fmt: skip


def test_the_first_precision_whose_outputs_are_right_ships_to_each_chip() -> None:
    right, wrong = (OutputCheck(output="y", passed=True),), (OutputCheck(output="y", passed=False),)
    rows = [context("SM8650"), context("SM8750"), context("SM8650", "u8s8pc"), context("SM8750", "u8s8pc")]
    checks = {"m": {row.variant.name: right for row in rows} | {"qnn-SM8750": wrong}}
    assert [row.variant.name for row in chosen_contexts(rows, checks)] == ["qnn-SM8650", "qnn-SM8750-u8s8pc"]
    assert chosen_contexts(rows, {}) == (), "what was compared with nothing does not ship"


@pytest.mark.parametrize(
    ("kind", "release", "runtime", "what"),
    [
        (BuildKind.FULL, "1.29.0", None, ""),
        (BuildKind.FULL, "1.29.0", "2.52.0", ""),
        (BuildKind.FULL, "1.29.0", "2.50.0", "phones will refuse qnn-SM8650"),
        (BuildKind.FULL, "1.25", None, "needs ONNX Runtime 1.27 or later"),
        (BuildKind.EXTENDED, "1.29.0", None, "cannot be opened by this library"),
    ],
)
def test_a_target_that_cannot_open_contexts_is_told_why(
    kind: BuildKind, release: str, runtime: str | None, what: str
) -> None:
    target = Target(name="phone", platform=Platform.ANDROID, qnn_runtime=runtime)
    found = [finding.what for finding in context_findings([context()], target, kind, release)]
    assert [what in text for text in found] == ([True] if what else [])


def test_a_plugin_that_finds_no_npu_in_apps_does_not_ship() -> None:
    made = msgspec.structs.replace(context(), plugin="2.4.0")
    (found,) = context_findings([made], PHONE, BuildKind.FULL, "1.29.0")
    assert (found.severity, found.what) == (Severity.ERROR, "phones find no NPU for qnn-SM8650")


@pytest.mark.parametrize(
    "target",
    [
        Target(name="old", platform=Platform.ANDROID, abis=("armeabi-v7a",)),
        Target(name="phone", platform=Platform.IOS),
    ],
)
def test_nothing_speaks_against_contexts_where_none_ships(target: Target) -> None:
    assert list(context_findings([context()], target, BuildKind.MINIMAL, "1.20")) == []


def test_an_app_gets_the_newest_plugin_by_number() -> None:
    ships = shipped_context(context(), PHONE, "2" * 64, "models/", "1.29")
    newer = msgspec.structs.replace(ships, plugin="2.10.0", qairt="2.52.0.260501")
    plugin, runtime = gradle_notations([newer, ships])
    assert (plugin.rpartition(":")[2], runtime.rpartition(":")[2]) == ("2.10.0", "2.52.0.260501")


def test_an_app_gets_the_pair_and_knows_which_other_phones_would_load_it() -> None:
    ships = shipped_context(context(), PHONE, "2" * 64, "models/", "1.29")
    assert gradle_notations([ships]) == (
        "com.qualcomm.qti:onnxruntime-android-qnn:2.7.0", "com.qualcomm.qti:qnn-runtime:2.51.0",
    )  # fmt: skip
    assert other_phones(ships) == {
        "optimal": ("SM8650",),
        "supported": ("SM8750", "SM8850", "SM8975"),
        "refused": (
            "SM8350", "SM8325", "SM7325", "SM8450", "SM7450", "SM8475", "SM8550", "SM8635", "SM7675", "SM7635",
            "SM7750",
        ),
    }  # fmt: skip
