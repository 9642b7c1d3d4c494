"""`ort-mobile partition --reference` as a user calls it, with genuine libraries."""

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from device_runner.android_host.device import Driver, DriverProfile, DriverStage, Fault, FaultKind, Phone
from device_runner.android_host.inspection import HANG, Session, ask
from device_runner.library import LibraryFacts
from pipeline.partition import answer
from tests.android_host.conftest import NEWEST, OLDEST, fetch
from tests.command import Done, ort_mobile

pytestmark = pytest.mark.android_host


def call(tmp_path: Path, *arguments: str) -> tuple[Done, dict[str, Any]]:
    result = ort_mobile("partition", *arguments, "--json", tmp_path / "answer.json", code=None)
    return result, json.loads((tmp_path / "answer.json").read_bytes())


def f16(path: Path) -> Path:
    """One fp16 MaxPool, which XNNPACK takes on ARM only."""
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 3, 8, 8]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 3, 7, 7])]  # fmt: skip
    graph = helper.make_graph([node], "f16", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), path)
    return path


@pytest.mark.parametrize("optimize", ["none", "basic"])
@pytest.mark.parametrize("release", [NEWEST, "1.28.0"])
def test_claims_beside_the_librarys_do_not_differ(mnist: Path, tmp_path: Path, release: str, optimize: str) -> None:
    library = fetch(release)
    for level in ("27", "31"):
        result, document = call(
            tmp_path, str(mnist), "--ep", "nnapi", "--reference", release, "--api-level", level, "--optimize", optimize
        )
        assert result.code == 0, result.text
        assert f"(sha256 {library.sha256[:12]}): 0 different" in result.text
        assert (document["reference"]["rules"], document["reference"]["different"]) == (True, 0)
        (one,) = document["reference"]["models"]
        assert one["same"]
        assert {node["output"] for node in one["nodes"]} == {
            decision["outputs"][0] for decision in document["models"][0]["decisions"]
        }
        refused = [node for node in one["nodes"] if not node["ours"]["claimed"]]
        assert level == "31" or any(node["ours"]["reason"] and node["library"]["reason"] for node in refused)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.sweep)])
def test_real_models_after_level_basic_do_not_differ(
    library: LibraryFacts, real_models: list[Path], tmp_path: Path, every: int
) -> None:
    """The graph that ships by the documentation's first recipe, which the library is shown as it is."""
    models = real_models[::every]
    asked = ("--ep", "nnapi", "--reference", library.release, "--optimize", "basic")
    result, document = call(tmp_path, *map(str, models), *asked)
    reference = document["reference"]
    assert (reference["different"], len(reference["models"])) == (0, len(models))
    assert [one["path"] for one in reference["models"] if one["error"] or not one["same"]] == []
    assert result.code == 0


def test_half_precision_is_refused_as_androids_x86_library_does(tmp_path: Path) -> None:
    fetch(NEWEST)
    result, document = call(tmp_path, str(f16(tmp_path / "f16.onnx")), "--ep", "xnnpack", "--reference", NEWEST)
    (one,) = document["reference"]["models"]
    (node,) = one["nodes"]
    assert (one["same"], node["ours"]["claimed"], node["library"]["claimed"]) == (True, False, False)
    assert "XNNPACK without half precision" in node["ours"]["reason"]
    assert result.code == 0


def test_a_difference_is_shown_and_ends_with_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our rules are asked what a desktop's library claims, which has half precision on x86."""

    def of_a_desktop(*arguments: Any, **named: Any) -> answer.Settings:
        return msgspec.structs.replace(made(*arguments, **named), android=False)

    fetch(NEWEST)
    made = answer.make_settings
    monkeypatch.setattr(answer, "make_settings", of_a_desktop)
    result, document = call(tmp_path, str(f16(tmp_path / "f16.onnx")), "--ep", "xnnpack", "--reference", NEWEST)
    assert result.code == 4
    assert "1 node differs" in result.text
    (one,) = document["reference"]["models"]
    (node,) = one["nodes"]
    assert (node["different"], node["ours"]["claimed"], node["library"]["claimed"]) == (True, True, False)
    assert any("arm64" in note for note in one["notes"])
    assert "1 different" in result.text


def test_a_crash_that_was_foreseen_costs_no_model(op_models: Path, mnist: Path, tmp_path: Path) -> None:
    fetch(NEWEST)
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(mnist, folder / "a.onnx")
    shutil.copy(op_models / "qlinearadd" / "no_y_zp.onnx", folder / "b.onnx")
    shutil.copy(mnist, folder / "c.onnx")
    result, document = call(tmp_path, str(folder), "--ep", "nnapi", "--reference", NEWEST)
    assert result.code == 0
    found = document["reference"]["models"]
    assert [one["same"] for one in found] == [True, True, True], "our rules foresee the crash"
    assert any("SIGSEGV" in note for note in found[1]["notes"])
    assert document["models"][1]["error"] is None, "our answer stands"
    assert "3 models checked against" in result.text


def test_hostile_models_get_an_answer_or_an_error(oracle: Path, tmp_path: Path) -> None:
    fetch(NEWEST)
    result, document = call(tmp_path, str(oracle / "hostile.zip"), "--ep", "nnapi", "--reference", NEWEST)
    with zipfile.ZipFile(oracle / "hostile.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith((".onnx", ".ort"))]
    reference = document["reference"]
    assert len(reference["models"]) == len(names)
    assert (reference["different"], result.code) == (0, 1)
    for ours, one in zip(document["models"], reference["models"], strict=True):
        assert one["asked"] == (ours["error"] is None), ours["path"]
        assert not one["asked"] or one["same"] or one["error"], ours["path"]


def test_a_release_before_our_rules_is_answered_by_its_library(mnist: Path, tmp_path: Path) -> None:
    fetch(OLDEST)
    result, document = call(tmp_path, str(mnist), "--ep", "nnapi", "--reference", OLDEST, "--api-level", "27")
    assert result.code == 0
    assert "no rules for this release, the claims are those of libonnxruntime 1.17.1" in result.text
    assert "the library claims 6 of 12 nodes, 3 partitions" in result.text
    (answer,) = document["models"]
    assert (answer["ort_release"], answer["claimed"]) == (OLDEST, 6)
    assert answer["warnings"] == [f"no rules for {OLDEST}: these are the claims of its own library"]
    conv = next(decision for decision in answer["decisions"] if decision["op_type"] == "Conv")
    assert "only supported on API >28" in conv["reason"]
    basic, _ = call(tmp_path, str(mnist), "--ep", "nnapi", "--reference", OLDEST, "--optimize", "basic")
    assert "the library claims 8 of 8 nodes, 1 partition" in basic.text


def test_what_cannot_be_asked_is_said_first(mnist: Path, tmp_path: Path) -> None:
    fetch(OLDEST)
    wrong = (
        ("coreml-nn", OLDEST, (), "CoreML is in Apple's libraries only"),
        ("xnnpack", OLDEST, (), "that came with release 1.24"),
        ("nnapi", OLDEST, ("--ort-release", "1.2"), "rules of the same"),
        ("nnapi", OLDEST, ("--advise",), "no rules for 1.17.1"),
    )
    for provider, library, more, why in wrong:
        done = ort_mobile("partition", mnist, "--ep", provider, "--reference", library, *more, code=2)
        assert re.search(rf"^why: .*{re.escape(why)}", done.err, re.MULTILINE)
        assert "\nremedy: " in done.err


def test_a_hang_ends_at_the_time_limit(library: LibraryFacts, mnist: Path) -> None:
    """A driver that never comes back from compiling; the next model is asked about all the same."""
    fault = Fault(stage=DriverStage.COMPILE, kind=FaultKind.HANG)
    driver = DriverProfile(devices=(Driver(name="npu", feature_level=30),), faults=(fault,))
    questions = [(str(number), mnist, None) for number in range(2)]
    answers = list(ask(library, questions, Session(phone=Phone(driver=driver)), limit_seconds=4))
    assert [(answer.id, answer.signal) for answer in answers] == [("0", HANG), ("1", HANG)]
