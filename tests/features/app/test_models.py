"""`ort-mobile app` on models that are none, that lack their weights, or that the library beside them cannot open."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.model.wire import encode_field
from tests.command import ort_mobile
from tests.features.app.test_app import MANIFEST, MNIST, compiled, inspected, package, runtime

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a2146" * 8 + b"\nsize 132735034\n"
PAGE = b"<!DOCTYPE html><html><head><title>404</title></head><body>Not found</body></html>"
BINARY = bytes(range(256))[3:]


def found(folder: Path, members: dict[str, bytes], name: str = "a.apk") -> list[dict[str, Any]]:
    """What `app` says of an app with these files."""
    app = {"AndroidManifest.xml": MANIFEST, "classes.dex": b""} if name.endswith(".apk") else {}
    rows: list[dict[str, Any]] = inspected(package(folder / name, app | members))["findings"]
    return rows


@pytest.mark.parametrize("place", ["assets/m.onnx", "assets/m.ort", "res/raw/m.ort", "lib/arm64-v8a/libm.so"])
@pytest.mark.parametrize(
    ("content", "why", "remedy"),
    [
        (LFS, "it is a git LFS pointer, not the file itself", "run `git lfs pull`, and build the package again"),
        (PAGE, "HTML or XML", "download it again"),
        (b"\xef\xbb\xbf\n" + PAGE, "HTML or XML", "download it again"),
        (b"", "the file is empty", "download or export it again"),
        (b"Entry not found", "it is a text file", "download it again"),
        (b'{"message": "Not Found"}', "it is JSON text", "download it again"),
    ],
)
def test_what_has_the_name_of_a_model_and_is_none(
    place: str, content: bytes, why: str, remedy: str, tmp_path: Path
) -> None:
    (row,) = found(tmp_path, {place: content})
    assert (row["rule"], row["severity"], row["where"]) == ("damaged", "error", place)
    assert why in row["why"]
    assert row["remedy"].startswith(remedy)


@pytest.mark.parametrize("name", ["m.onnx.data", "words.bin", "m.tflite"])
def test_a_pointer_is_told_under_any_name(name: str, tmp_path: Path) -> None:
    (row,) = found(tmp_path, {f"assets/{name}": LFS})
    assert (row["rule"], row["where"]) == ("damaged", f"assets/{name}")


def test_files_of_other_kinds_are_not_taken_for_models(tmp_path: Path) -> None:
    members = {"assets/page.xml": PAGE, "assets/a.json": b"{}", "assets/empty": b"", "assets/words.bin": PAGE,
               "__MACOSX/assets/._m.onnx": b"\0\5\x16\7" + bytes(200), "lib/libc.so": b"/* GNU ld */ INPUT(libc.so.6)",
               "assets/README.md": LFS}  # fmt: skip
    assert found(tmp_path, members) == []


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08" + BINARY, b"PK\x03\x04" + BINARY, BINARY, MNIST.read_bytes()])
def test_an_ort_file_that_the_app_may_unpack_or_decrypt_is_a_warning(content: bytes, tmp_path: Path) -> None:
    (row,) = found(tmp_path, {"assets/m.ort": content})
    assert (row["rule"], row["severity"]) == ("damaged", "warning")


def external(location: str, length: bool = True, **kinds: Any) -> tuple[bytes, bytes]:
    """A model of one product whose weight lies in another file, and that file."""
    weight = numpy_helper.from_array(np.arange(4096, dtype=np.float32).reshape(64, 64), "w")
    content = weight.raw_data
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", str(len(content)))) if length else (("location", location),):
        weight.external_data.add(key=key, value=value)
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, [1, 64])] for name in "xy")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if kinds.pop("constant", False):
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    constants = [weight] if len(nodes) == 1 else []
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid(domain, version) for domain, version in kinds.pop("opsets", {"": 17}).items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=kinds.pop("ir", 8))
    return model.SerializeToString(), content


@pytest.mark.parametrize("form", [{}, {"length": False}, {"constant": True}])
def test_weights_in_another_file_that_are_missing_elsewhere_or_cut(form: dict[str, bool], tmp_path: Path) -> None:
    model, data = external("m.onnx.data", **form)
    rows = [
        found(tmp_path, {"Payload/A.app/a/m.onnx": model} | beside, f"{number}.ipa")
        for number, beside in enumerate((
            {}, {"Payload/A.app/b/m.onnx.data": data}, {"Payload/A.app/a/m.onnx.data": data[:-1]},
            {"Payload/A.app/a/m.onnx.data": data},
        ))
    ]  # fmt: skip
    told = [(row["severity"], row["rule"], row["what"].removeprefix("data of this model are "))
            for part in rows for row in part]  # fmt: skip
    assert told == [("error", "external-data", what) for what in ("missing", "not where it looks for them", "cut off")]
    assert "w lies in m.onnx.data" in rows[0][0]["why"]
    assert rows[1][0]["remedy"] == "move it to Payload/A.app/a/m.onnx.data"
    assert "needs at least 16,384 bytes; Payload/A.app/a/m.onnx.data has 16,383" in rows[2][0]["why"]


def test_a_model_with_weights_beside_it_has_no_path_as_an_asset(tmp_path: Path) -> None:
    model, data = external("m.data")
    (row,) = found(tmp_path, {"assets/m.onnx": model, "assets/m.data": data})
    assert (row["rule"], row["severity"], row["where"]) == ("external-data", "warning", "assets/m.onnx")
    assert "open the model's path" in row["remedy"]
    copied = {"assets/ort_mobile/g.a/m.onnx": model, "assets/ort_mobile/g.a/m.data": data}
    assert found(tmp_path, copied, "copied.apk") == []


@pytest.mark.parametrize(
    ("name", "severity"), [("a.apk", "error"), ("A.IPA", "error"), ("a.aar", "warning"), ("a.zip", "warning")]
)
def test_a_package_without_the_files_of_its_kind_is_what_its_name_says(
    name: str, severity: str, tmp_path: Path
) -> None:
    (row,) = inspected(package(tmp_path / name, {"m.onnx": external("m.data")[0]}))["findings"]
    assert (row["rule"], row["severity"]) == ("external-data", severity)


def test_parts_of_an_app_have_one_folder_of_assets(tmp_path: Path) -> None:
    model, data = external("m.data")
    members = {
        "BundleConfig.pb": b"",
        "base/assets/ort_mobile/g/m.onnx": model,
        "pack/assets/ort_mobile/g/m.data": data,
    }
    assert found(tmp_path, members, "a.aab") == []
    (row,) = found(tmp_path, members | {"pack/assets/ort_mobile/g/m.data": data[:9]}, "b.aab")
    assert "pack/assets/ort_mobile/g/m.data has 9" in row["why"]


def test_a_package_that_others_are_added_to_may_get_the_weights_from_them(tmp_path: Path) -> None:
    (row,) = found(
        tmp_path, {"jni/empty": b"", "AndroidManifest.xml": b"<m/>", "assets/m.onnx": external("m.data")[0]}, "a.aar"
    )
    assert (row["rule"], row["severity"]) == ("external-data", "warning")


def test_the_binary_of_a_context_is_such_a_file(tmp_path: Path) -> None:
    def context(**attributes: Any) -> bytes:
        node = helper.make_node("EPContext", ["x"], ["y"], name="ctx", domain="com.microsoft", **attributes)
        return MNIST.read_bytes() + encode_field(7, encode_field(1, node.SerializeToString()))

    inside, outside = context(embed_mode=1, ep_cache_context="c.bin"), context(embed_mode=0, ep_cache_context="c.bin")
    assert found(tmp_path, {"m.onnx": inside}, "inside.zip") == []
    (row,) = found(tmp_path, {"m.onnx": outside}, "outside.zip")
    assert (row["rule"], row["why"]) == ("external-data", "ctx lies in c.bin, and no file of the package has that name")
    assert found(tmp_path, {"m.onnx": outside, "c.bin": b"1"}, "whole.zip") == []


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ({"ir": 10}, "does not read ONNX files of IR version 10"),
        ({"opsets": {"": 17, "ai.onnx.ml": 5}}, "does not take opset 5 of ai.onnx.ml"),
        ({"opsets": {"": 22}}, "does not take opset 22"),
    ],
)
def test_models_that_the_release_beside_them_refuses(form: dict[str, Any], what: str, tmp_path: Path) -> None:
    model, data = external("m.data", **form)
    lists = [
        found(
            tmp_path, {"m.onnx": model, "m.data": data, "libonnxruntime.so": runtime(release=release)}, f"{release}.zip"
        )
        for release in ("1.17.1", "1.24.4")
    ]
    told = [[(row["rule"], row["severity"]) for row in rows] for rows in lists]
    assert told == [[("model", "error")], []]
    assert what in lists[0][0]["what"]


PLUGIN = '__attribute__((visibility("default"))) const char *CreateEpFactories(void) { return "%s"; }'


def test_a_plugin_that_finds_no_npu_in_apps(tmp_path: Path) -> None:
    name = "lib/arm64-v8a/libonnxruntime_providers_qnn.so"
    lists = []
    for option in ("enable_framework_op_trace", "skip_backend_op_validation"):
        plugin = compiled(tmp_path, "arm64-v8a", "libonnxruntime_providers_qnn.so", PLUGIN % option)
        lists.append([row for row in found(tmp_path, {name: plugin}, f"{option}.apk") if row["rule"] == "qnn-release"])
    (row,), later = lists
    assert (row["severity"], row["what"]) == ("error", "plugin 2.4.0 finds no NPU in an Android app")
    assert "onnxruntime-android-qnn:2.5.0 with qnn-runtime:2.49.0" in row["remedy"]
    assert later == []


def test_contexts_for_v68_may_not_run(tmp_path: Path) -> None:
    def context(arch: int) -> bytes:
        text = f"v2:6:2.51.0:5.51.0:{arch}:30:0:0".encode()
        entry = encode_field(1, b"ep_compatibility_info.QNN") + encode_field(2, text)
        return MNIST.read_bytes() + encode_field(14, entry)

    rows = found(tmp_path, {f"V{arch}.onnx": context(arch) for arch in (68, 69, 75)}, "a.zip")
    assert [(row["rule"], row["severity"], row["where"]) for row in rows] == [("qnn-context", "warning", "V68.onnx")]


@pytest.mark.long
def test_remedies_work_when_they_are_followed(tmp_path: Path) -> None:
    """`convert` makes one file of a model and its weights, which opens from memory."""
    model, data = external("m.data")
    (tmp_path / "m.onnx").write_bytes(model)
    (tmp_path / "m.data").write_bytes(data)
    ort_mobile("convert", tmp_path / "m.onnx", "--output", tmp_path / "out")
    (artifact, *_) = sorted((tmp_path / "out").rglob("*.ort"))
    assert found(tmp_path, {"assets/m.ort": artifact.read_bytes()}) == []
