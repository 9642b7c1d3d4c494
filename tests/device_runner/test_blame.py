"""Which part is to blame, what is denied where, and what a log says of coverage."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.adb.device import tombstone
from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from device_runner.options import Denied, add_denied, class_of, denial, parts, read_denied, smallest_failing, without
from device_runner.profile import Coverage, fell_back, measured_coverage
from device_runner.result import FailureKind, utc_now
from device_runner.spec import ExecutionMode, NnapiFlag, RunOptions

FULL = RunOptions(
    provider="nnapi", flags=tuple(NnapiFlag), intra_op_threads=4, execution_mode=ExecutionMode.PARALLEL,
    cpu_arena=False, session_config={"a": "1", "b": "2"},
)  # fmt: skip
PHONE = DeviceFacts(name="adb:1", platform="android", soc="QTI SM8150", api_level=29)


@given(st.sets(st.sampled_from(parts(FULL))))
def test_the_smallest_failing_options_are_exactly_the_guilty(guilty: set[tuple[str, str]]) -> None:
    runs = []

    def fails(options: RunOptions) -> bool:
        runs.append(options)
        return guilty <= set(parts(options))

    smallest = smallest_failing(FULL, fails)
    assert set(parts(smallest)) == guilty
    assert smallest.provider == "nnapi"
    assert len(runs) == len({repr(options) for options in runs}) <= 60


def test_each_part_can_be_left_out() -> None:
    assert len(parts(FULL)) == 9
    for part in parts(FULL):
        assert set(parts(FULL)) - set(parts(without(FULL, part))) == {part}
    assert parts(RunOptions(provider="xnnpack")) == []


def entry(options: RunOptions) -> Denied:
    return Denied(
        devices=class_of(PHONE), options=options, ort_version="1.31.1", kind=FailureKind.CRASH, message="SIGSEGV",
        seen_at=utc_now(),
    )  # fmt: skip


def test_what_is_denied_and_what_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lists" / "deny.json"
    assert read_denied(path) == []
    bad = RunOptions(provider="nnapi", flags=(NnapiFlag.USE_NCHW,), session_config={"a": "1"})
    add_denied(path, entry(bad))
    entries = add_denied(path, entry(bad))
    assert len(entries) == len(read_denied(path)) == 1
    found = denial(PHONE, FULL, entries)
    assert found
    assert found.code is FailureKind.DENIED
    assert "SIGSEGV" in found.what
    others = [
        RunOptions(provider="nnapi", flags=(NnapiFlag.USE_NCHW,)),
        RunOptions(provider="nnapi", flags=(NnapiFlag.USE_NCHW,), session_config={"a": "2"}),
        RunOptions(provider="xnnpack", session_config={"a": "1"}),
    ]
    assert [denial(PHONE, options, entries) for options in others] == [None] * 3
    other_chip = DeviceFacts(name="adb:2", platform="android", soc="Exynos 9820", api_level=29)
    assert denial(other_chip, FULL, entries) is None


def test_a_deny_list_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "deny.json").write_text('{"a": 1}')
    with pytest.raises(RunnerError) as caught:
        add_denied(tmp_path / "deny.json", entry(FULL))
    assert caught.value.where == str(tmp_path / "deny.json")
    assert (tmp_path / "deny.json").read_text() == '{"a": 1}'


SAID = (
    "W onnxruntime: NnapiExecutionProvider::GetCapability, number of partitions supported by NNAPI: 3"
    " number of nodes in the graph: 9 number of nodes supported by NNAPI: 4"
)


def test_coverage_from_the_log() -> None:
    log = ["I onnxruntime: something else", SAID]
    assert measured_coverage(log) == Coverage(provider="nnapi", partitions=3, nodes=9, claimed_nodes=4)
    assert fell_back(log)
    assert not fell_back([SAID.replace("by NNAPI: 4", "by NNAPI: 9")])
    assert fell_back(["W x: Some nodes were not assigned to the preferred execution providers which may"])
    assert measured_coverage(["nothing"]) is None


def test_the_last_crash_of_ours_is_taken() -> None:
    head = "11-21 F DEBUG   : *** *** *** *** ***\n"
    log = (
        f"--------- beginning of crash\n{head}11-21 F DEBUG   : Cmdline: /system/bin/other\n"
        f"{head}11-21 F DEBUG   : #01 pc 0c /data/local/tmp/ort-mobile/store/ab.so\n"
        f"{head}11-21 F DEBUG   : later, other\n"
    )
    lines = tombstone(log, "/data/local/tmp/ort-mobile")
    assert len(lines) == 2
    assert "store/ab.so" in lines[1]
    assert tombstone("", "/data/local/tmp/ort-mobile") == ()
