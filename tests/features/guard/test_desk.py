"""What the desk finds of a self-test that ships: ways that pass, ways that miss it, and ways that cannot run here."""

from pathlib import Path

import msgspec
import pytest

from device_runner.spec import RunOptions
from pipeline.features.guard import bundle as guard_bundle
from pipeline.features.guard import sample as guard_sample
from pipeline.features.guard.selftest import made
from pipeline.release.self_test import DeskVerdict, JudgedWay, SelfTest
from tests.features.android.samples import CPU, NNAPI
from tests.features.apple.samples import COREML
from tests.features.guard.models import Desk, desk

pytestmark = pytest.mark.long


def by_provider(test: SelfTest) -> dict[str, JudgedWay]:
    return {way.run.partition("+")[0]: way for way in test.ways}


def judged(found: Desk, **more: object) -> dict[str, JudgedWay]:
    """The verdicts by provider on a self-test, with what is changed in the order."""
    return by_provider(guard_bundle.with_verdicts(msgspec.structs.replace(found.order, **more), found.test))


def test_the_cpu_passes_and_what_this_library_lacks_is_not_judged_by_name(tmp_path: Path) -> None:
    ways = judged(desk(tmp_path, (NNAPI, COREML, CPU)))
    assert ways["cpu"].verdict is DeskVerdict.PASSES
    assert ways["cpu"].place == "local"
    assert ways["cpu"].reached is not None
    assert ways["cpu"].reached > 100
    for provider in ("nnapi", "coreml"):
        assert ways[provider].verdict is DeskVerdict.NOT_JUDGED
        assert ways[provider].reached is None
        assert ways[provider].why


def test_a_seed_gives_the_desk_the_inputs_that_devices_draw(tmp_path: Path) -> None:
    found = desk(tmp_path, (NNAPI, CPU), scale=0.0, random=True)
    assert not guard_sample.decoded(found.test.data).inputs[0].content
    assert judged(found)["cpu"].verdict is DeskVerdict.PASSES


def test_a_file_that_computes_something_else_misses_it(tmp_path: Path) -> None:
    """The data of a model whose outputs are ten times as far from nought, as of another file."""
    found = desk(tmp_path, (NNAPI, CPU))
    sample = guard_sample.decoded(found.test.data)
    scaled = [
        msgspec.structs.replace(found.test, data=guard_sample.encoded(other))
        for other in (sample, _with_other_sums(sample))
    ]
    verdicts = [by_provider(guard_bundle.with_verdicts(found.order, test))["cpu"].verdict for test in scaled]
    assert verdicts == [DeskVerdict.PASSES, DeskVerdict.MISSES]


def _with_other_sums(sample: guard_sample.TrialSample) -> guard_sample.TrialSample:
    from dataclasses import replace

    outputs = (
        replace(output, sketch=replace(output.sketch, sums=tuple(2 * value for value in output.sketch.sums)))
        for output in sample.outputs
    )
    return replace(sample, outputs=tuple(outputs))


def test_a_way_that_misses_it_is_a_warning(tmp_path: Path) -> None:
    way = JudgedWay(
        file="m.ort", run="nnapi", verdict=DeskVerdict.MISSES, place="android-host", reached=3.0, needed=20.0
    )
    (warning,) = SelfTest(model="m", data=b"data", ways=(way,)).warnings
    assert warning == "self-test of m: devices would refuse nnapi misses in android-host: 3.0 dB of 20.0"


def test_data_is_read_as_it_was_written(tmp_path: Path) -> None:
    data = made(desk(tmp_path, (NNAPI, CPU)).order).data
    assert guard_sample.encoded(guard_sample.decoded(data)) == data


def test_time_that_is_over_leaves_the_rest_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = desk(tmp_path, (CPU, RunOptions(intra_op_threads=2)))
    monkeypatch.setattr("pipeline.features.guard.desk.MODEL_SECONDS", 0.0)
    assert {way.verdict for way in judged(found).values()} == {DeskVerdict.NOT_JUDGED}


def test_a_model_for_which_there_is_no_memory_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = desk(tmp_path, (CPU,))
    monkeypatch.setattr("pipeline.core.workers.memory_budget", lambda: 1 << 20)
    (way,) = judged(found).values()
    assert way.verdict is DeskVerdict.NOT_JUDGED
    assert "MiB of memory are free" in way.why
