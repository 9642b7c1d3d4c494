"""The generated Java: names that Java allows, hostile texts, and what the Java API cannot do."""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from device_runner.spec import ElementType, RunOptions
from pipeline.core.errors import ConfigError
from pipeline.features.android.package import SIGNATURES, java_class, java_sources
from pipeline.release.app_code import BUFFERS
from pipeline.release.manifest import Manifest, ModelSignature, SelectionRow
from tests.features.android.samples import CPU, JAVAC, NNAPI, WEBGPU, manifest, needs_java, shipped, signature, tensor

ROOT = Path(__file__).parents[3]
HOSTILE = 'a"; } \\u002a/ */ \n ${x} {{ y }}'
NOT_CODE = re.compile(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def selecting(*models: ModelSignature) -> Manifest:
    """Each model ships in two ways, the second to a class of devices."""
    ships = tuple(shipped(one.model, runs=runs) for one in models for runs in ((NNAPI, CPU), (CPU,)))
    rows = tuple(
        row
        for number, one in enumerate(models)
        for row in (
            SelectionRow(
                target="phone", model=one.model, soc=HOSTILE, abi="x86", min_api_level=31, ships=2 * number + 1
            ),
            SelectionRow(target="phone", model=one.model, ships=2 * number),
        )
    )
    return manifest(ships, models, name=HOSTILE, selection=rows)


def sources(*models: ModelSignature, **more: object) -> dict[str, str]:
    ships = tuple(shipped(model.model, **more) for model in models)
    return java_sources(manifest(ships, models, name=HOSTILE), "phone", "com.example.models")


def compiled(found: dict[str, str], folder: Path) -> str:
    """What the compiler says, with every warning on; "" for nothing."""
    for name, text in found.items():
        (folder / name).write_text(text, "utf-8")
    command = [*JAVAC, "--release", "8", "-Xlint:all,-options,-serial", "-encoding", "UTF-8", "-implicit:none"]
    files = [str(folder / name) for name in found]
    done = subprocess.run(
        [*command, "-sourcepath", str(SIGNATURES), "-d", str(folder), *files],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("mnist", "Mnist"), ("ppocr-v4.det", "PpocrV4Det"), ("2d", "Model2d"), ("file", "FileModel"),
        ("ort_session", "OrtSessionModel"), ("模型", "Model"), ("map", "MapModel"),
    ],
)  # fmt: skip
def test_classes_are_named_after_models(model: str, name: str) -> None:
    assert java_class(model) == name


def test_every_type_shape_and_way_to_run_compiles_without_a_warning(tmp_path: Path) -> None:
    needs_java()
    options = {"a": HOSTILE, "b": "2"}
    ways = [RunOptions(provider=name, provider_options=options) for name in ("xnnpack", "qnn", "webgpu")]
    kinds = [one for one in ElementType if one not in ("string", "uint16", "uint32", "uint64")]
    tensors = tuple(tensor(f"{kind}-in", 1, "n", dtype=kind) for kind in kinds)
    odd = (
        tensor("class", 1),
        tensor("class", 2),
        tensor("session"),
        tensor("1st"),
        tensor("", None),
        tensor("結果", 1),
    )
    found = sources(
        signature("all", inputs=tensors, outputs=tensors),
        signature("odd", inputs=odd, outputs=odd),
        signature("untyped", inputs=(tensor("s", dtype=None),), outputs=(tensor("t", dtype=ElementType.UINT16),)),
        signature(HOSTILE, inputs=(tensor(HOSTILE, HOSTILE),), outputs=(tensor(HOSTILE, HOSTILE),)),
        runs=(*ways, RunOptions(session_config={HOSTILE: HOSTILE}), RunOptions(provider="nnapi")),
    )
    assert compiled(found, tmp_path) == ""
    assert "public Result run(" not in found["Untyped.java"]
    assert "@NonNull ShortBuffer float16In, @NonNull long[] float16InShape" in found["All.java"]


@pytest.mark.parametrize("rows", [False, True], ids=["one file", "rows"])
def test_a_model_for_the_gpu_compiles_and_warms_up(tmp_path: Path, rows: bool) -> None:
    needs_java()
    odd = tuple(tensor(name, "n") for name in ("error", "firstRun", "skipped", "thread"))
    models = (signature(), signature("odd", inputs=odd), signature("untyped", inputs=(tensor("s", dtype=None),)))
    table = selecting(*models) if rows else manifest([shipped(one.model) for one in models], models)
    ships = tuple(msgspec.structs.replace(one, runs=(WEBGPU, CPU)) for one in table.content.ships)
    content = msgspec.structs.replace(table.content, ships=ships)
    found = java_sources(msgspec.structs.replace(table, content=content), "phone", "com.example.models")
    assert compiled(found, tmp_path) == ""
    assert ["Thread warmUp(" in found[f"{name}.java"] for name in ("M", "Odd", "Untyped")] == [True, True, False]
    assert "warmUp" not in sources(signature())["M.java"]


@pytest.mark.long
def test_no_name_of_a_model_hides_a_class_that_the_sources_use(tmp_path: Path) -> None:
    needs_java()
    every = tuple(tensor(f"t{kind}", 1, dtype=kind) for kind in BUFFERS)
    one = signature("m", inputs=every, outputs=every)
    texts = java_sources(selecting(one), "phone", "com.example.models", telemetry=False).values()
    used = {name for text in texts for name in re.findall(r"\b[A-Z]\w*[a-z]\w*", NOT_CODE.sub("", text))} - {"M"}
    assert {"Result", "DeviceClass", "Os", "OrtException", "ByteBuffer"} <= used
    models = [msgspec.structs.replace(one, model=name) for name in sorted(used)]
    found = java_sources(selecting(*models), "phone", "com.example.models", telemetry=False)
    assert compiled(found, tmp_path) == ""


def test_the_only_output_is_called_so_where_its_name_says_nothing() -> None:
    def outputs(*names: str) -> list[str]:
        found = sources(signature(outputs=tuple(tensor(name, 1) for name in names)))["M.java"]
        return re.findall(r"public FloatBuffer (\w+)\(\)", found)

    assert outputs("4195") == ["output"]
    assert outputs("logits") == ["logits"]
    assert outputs("4195", "4196") == ["tensor4195", "tensor4196"]


@pytest.mark.parametrize("release", ["1.19.2", "1.28.0"])
def test_rows_of_devices_compile(tmp_path: Path, release: str) -> None:
    needs_java()
    table = selecting(signature())
    ships = tuple(msgspec.structs.replace(one, ort_release=release) for one in table.content.ships)
    content = msgspec.structs.replace(table.content, ships=ships)
    found = java_sources(msgspec.structs.replace(table, content=content), "phone", "com.example.models")
    assert compiled(found, tmp_path) == ""
    assert set(found) == {"M.java", "ModelFile.java", "DeviceClass.java"}


def test_a_release_without_sessions_from_bytes_opens_files() -> None:
    found = sources(signature(), ort_release="1.19.2")["M.java"]
    assert "ByteBuffer model" not in found
    assert "return open(file, file.copy(context, COPIES));" in found


USE = """
import com.example.models.*;
import android.content.Context;
import java.io.File;
import java.nio.FloatBuffer;
import java.util.Arrays;

class Use {{
{methods}
}}
"""
METHOD = "void use{number}(Context context, FloatBuffer pixels) throws Exception {{\n{code}}}"


@pytest.mark.parametrize("page", ["guide.md", "android-release.md"])
def test_the_java_of_the_documents_compiles(tmp_path: Path, page: str) -> None:
    needs_java()
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = re.findall(r"```java\n(.*?)```", text, re.DOTALL)
    assert blocks
    methods = [METHOD.format(number=number, code=code) for number, code in enumerate(blocks)]
    ends = {"inputs": (tensor("pixels", 1, 1, 28, 28),), "outputs": (tensor("logits", 1, 10),)}
    models = sources(signature("mnist", **ends))
    models |= java_sources(selecting(signature("segmenter", **ends)), "phone", "com.example.models")
    assert compiled({**models, "Use.java": USE.format(methods="\n".join(methods))}, tmp_path) == ""


@pytest.mark.parametrize(("loading", "mapped"), [("mapped", "true"), ("path", "false")])
def test_a_model_is_loaded_as_it_was_measured(loading: str, mapped: str) -> None:
    found = sources(signature(), loading=loading)["M.java"]
    assert f'"{"2" * 64}", {mapped}, 0, 1)' in found


def test_a_provider_without_a_java_call_is_refused() -> None:
    with pytest.raises(ConfigError, match="no call for the provider zeta"):
        sources(signature(), runs=(RunOptions(provider="zeta"),))
