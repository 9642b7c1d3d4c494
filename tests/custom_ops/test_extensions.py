"""ONNX Runtime Extensions as npm has it: its Linux library here, its Android library in Android's ONNX Runtime."""

import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from PIL import Image

from device_runner.custom_ops import fitting, read_libraries
from pipeline.config import Config, ModelConfig, Platform, Target
from pipeline.release.custom_ops import custom_findings, custom_libraries
from tests.android_host.conftest import NEWEST, fetch
from tests.command import ort_mobile
from tests.npm_packages import packed

pytestmark = [pytest.mark.network, pytest.mark.android_host]

PACKAGE = "com.github.asus4.onnxruntime-extensions@0.4.9"
INTEGRITY = "sha512-aAt/rcVooUfftROQXTrQg6cIxO0nI5PmOt0i1jO99xhIW4JoBZwzSKSl2nROnCKh5TkMNRD2WIC0WEzGVJUM6Q=="
IOS = "Plugins/iOS~/onnxruntime_extensions.xcframework/"
LINUX, ANDROID = "Plugins/Linux/x64/libortextensions.so", "Plugins/Android/onnxruntime-extensions.aar"
VISION = "com.microsoft.extensions"

CONFIG = """
name = "{name}"
custom_ops = {libraries}
devices = ["{device}"]
[[models]]
path = "{name}.onnx"
{data}
[[targets]]
name = "phone"
platform = "android"
abis = ["arm64-v8a", "x86_64"]
[variants]
levels = ["basic"]
styles = ["fixed"]
[[runs]]
provider = "cpu"
[measure]
rounds = 1
"""
VOCABULARY = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "hello", "world", "##s", "custom", "op", "##erator"]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The library for Linux, and the AAR."""
    folder = tmp_path_factory.mktemp("extensions")
    files = packed(PACKAGE, INTEGRITY)
    for name in (LINUX, ANDROID):
        (folder / Path(name).name).write_bytes(files[name])
    return tuple(str(folder / Path(name).name) for name in (LINUX, ANDROID))


def test_the_aar_has_a_library_for_each_abi_and_of_two_the_one_without_jni(libraries: tuple[str, ...]) -> None:
    rows = read_libraries(libraries[1])
    assert {(row.system, row.abi) for row in rows} == {
        ("android", abi) for abi in ("arm64-v8a", "armeabi-v7a", "x86", "x86_64")
    }
    assert {row.path.name for row in rows} == {"libortextensions.so"}
    assert [row.path.suffix for row in fitting(libraries, "linux", "x86_64")] == [".so"]


@pytest.mark.parametrize("device", ["local", f"android-host:{NEWEST}"])
def test_an_image_is_decoded_by_the_session(libraries: tuple[str, ...], tmp_path: Path, device: str) -> None:
    fetch(NEWEST)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    np.savez(tmp_path / "image.npz", bytes=np.frombuffer(file.getvalue(), np.uint8))
    graph = helper.make_graph(
        [helper.make_node("DecodeImage", ["bytes"], ["image"], domain=VISION)],
        "decode",
        [helper.make_tensor_value_info("bytes", TensorProto.UINT8, ["n"])],
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["h", "w", 3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(VISION, 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "decode.onnx")
    config = CONFIG.format(name="decode", libraries=list(libraries), device=device, data='test_data = "image.npz"')
    (tmp_path / "decode.toml").write_text(config)
    done = ort_mobile("run", "decode.toml", cwd=tmp_path)
    assert "ok 0" in done.out  # the same pixels as the original's
    names = {path.parent.name for path in (tmp_path / "output/decode/bundle/custom_ops/android").glob("*/*.so")}
    assert names == {"arm64-v8a", "x86_64"}
    assert 'registerCustomOpLibrary("libortextensions.so")' in (tmp_path / "output/decode/bundle/README.md").read_text()


@pytest.mark.parametrize("device", ["local", f"android-host:{NEWEST}"])
def test_a_tokenizer_runs_with_its_model(libraries: tuple[str, ...], tmp_path: Path, device: str) -> None:
    fetch(NEWEST)
    table = np.arange(4 * len(VOCABULARY), dtype=np.float32).reshape(-1, 4)
    nodes = [
        helper.make_node(
            "BertTokenizer", ["text"], ["ids", "types", "mask"], domain="ai.onnx.contrib",
            vocab_file="\n".join(VOCABULARY), do_lower_case=1,
        ),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "bert",
        [helper.make_tensor_value_info("text", TensorProto.STRING, [1])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["tokens", 4])],
        [numpy_helper.from_array(table, "table")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "bert.onnx")
    data = 'inputs = { text = "Hello custom operators" }'
    (tmp_path / "bert.toml").write_text(CONFIG.format(name="bert", libraries=list(libraries), device=device, data=data))
    assert "ok 0" in ort_mobile("run", "bert.toml", cwd=tmp_path).out
    kept = np.fromfile(tmp_path / "output/bert/bundle/evidence/reference/bert/output_0.bin", "<f4").reshape(-1, 4)
    ids = [VOCABULARY.index(word) for word in ("[CLS]", "hello", "custom", "op", "##erator", "##s", "[SEP]")]
    assert kept.tolist() == table[ids].tolist()


def test_an_app_for_phones_links_its_framework(libraries: tuple[str, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "extensions.xcframework.zip", "w") as archive:
        for name, content in packed(PACKAGE, INTEGRITY).items():
            if name.startswith(IOS):
                archive.writestr(name.removeprefix("Plugins/iOS~/"), content)
    rows = read_libraries(str(tmp_path / "extensions.xcframework.zip"))
    assert ("ios", "arm64-v8a") in {(row.system, row.abi) for row in rows}
    config = Config(name="x", custom_ops=(*libraries, str(rows[0].path)), models=(ModelConfig(path="x.onnx"),))
    target = Target(name="app", platform=Platform.IOS)
    assert [row.path.name for row in custom_libraries(config, target)] == ["extensions.xcframework.zip"]
    (warning,) = custom_findings(config, target)
    assert "static code in .framework folders" in warning.what
