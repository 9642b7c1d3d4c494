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
from pipeline.release.manifest import Manifest, ModelSignature, SelectionRow, Shipped
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
    return java_sources(manifest(ships, models, name=HOSTILE), "phone", "com.example.models", "assets")


def compiled(found: dict[str, str], folder: Path) -> str:
    """What the compiler says of files by their names, with every warning on; "" for nothing."""
    for name, text in found.items():
        (folder / name).parent.mkdir(exist_ok=True)
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
    kinds = [one for one in ElementType if one not in ("uint16", "uint32", "uint64")]
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
    assert "@NonNull String[] stringIn, @NonNull long[] stringInShape" in found["All.java"]


def in_package(package: str, table: Manifest, ships: tuple[Shipped, ...], *, guard: bool = True) -> dict[str, str]:
    """The sources of a manifest that ships these, in a folder and package of their own."""
    content = msgspec.structs.replace(table.content, ships=ships)
    table = msgspec.structs.replace(table, content=content)
    found = java_sources(table, "phone", f"com.example.{package}", "assets", guard=guard)
    return {f"{package}/{name}": text for name, text in found.items()}


def test_models_for_the_gpu_compile_and_warm_up(tmp_path: Path) -> None:
    """Of one file each, and of rows, in a package each: a compiler takes a second to start."""
    needs_java()
    odd = tuple(tensor(name, "n") for name in ("error", "firstRun", "skipped", "thread"))
    models = (signature(), signature("odd", inputs=odd), signature("untyped", inputs=(tensor("s", dtype=None),)))
    tables = {"rows": selecting(*models), "files": manifest([shipped(one.model) for one in models], models)}
    found: dict[str, str] = {}
    for package, table in tables.items():
        ships = tuple(msgspec.structs.replace(one, runs=(WEBGPU, CPU)) for one in table.content.ships)
        for guard in (True, False):
            found |= in_package(f"{package}_{guard}".lower(), table, ships, guard=guard)
    assert compiled(found, tmp_path) == ""
    for package in tables:
        warm = ["Thread warmUp(" in found[f"{package}_false/{name}.java"] for name in ("M", "Odd", "Untyped")]
        assert warm == [True, True, False]
    assert "warmUp" not in sources(signature())["M.java"]


@pytest.mark.long
def test_no_name_of_a_model_hides_a_class_that_the_sources_use(tmp_path: Path) -> None:
    needs_java()
    every = tuple(tensor(f"t{kind}", 1, dtype=kind) for kind in BUFFERS)
    one = signature("m", inputs=every, outputs=every)
    texts = java_sources(selecting(one), "phone", "com.example.models", "assets", telemetry=False).values()
    used = {name for text in texts for name in re.findall(r"\b[A-Z]\w*[a-z]\w*", NOT_CODE.sub("", text))} - {"M"}
    assert {"Result", "DeviceClass", "Os", "OrtException", "ByteBuffer"} <= used
    models = [msgspec.structs.replace(one, model=name) for name in sorted(used)]
    found = java_sources(selecting(*models), "phone", "com.example.models", "assets", telemetry=False)
    assert compiled(found, tmp_path) == ""


def test_the_only_output_is_called_so_where_its_name_says_nothing() -> None:
    def outputs(*names: str) -> list[str]:
        found = sources(signature(outputs=tuple(tensor(name, 1) for name in names)))["M.java"]
        return re.findall(r"public FloatBuffer (\w+)\(\)", found)

    assert outputs("4195") == ["output"]
    assert outputs("logits") == ["logits"]
    assert outputs("4195", "4196") == ["tensor4195", "tensor4196"]


def test_rows_of_devices_compile(tmp_path: Path) -> None:
    needs_java()
    table = selecting(signature())
    found: dict[str, str] = {}
    for package, release in (("older", "1.19.2"), ("newer", "1.28.0")):
        ships = tuple(msgspec.structs.replace(one, ort_release=release) for one in table.content.ships)
        found |= in_package(package, table, ships, guard=False)
        found |= in_package(f"guarded_{package}", table, ships)
    assert compiled(found, tmp_path) == ""
    found = {name: text for name, text in found.items() if not name.startswith("guarded_")}
    names = ("M.java", "ModelFile.java", "DeviceClass.java")
    assert set(found) == {f"{package}/{name}" for package in ("older", "newer") for name in names}


def test_a_release_without_sessions_from_bytes_opens_files() -> None:
    table = manifest([shipped(ort_release="1.19.2")], [signature()])
    found = java_sources(table, "phone", "com.example.models", "assets", guard=False)["M.java"]
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


def test_the_java_of_the_documents_compiles(tmp_path: Path) -> None:
    needs_java()
    blocks = []
    for page in ("guide.md", "android-release.md"):
        blocks += re.findall(r"```java\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)
        assert blocks, page
    methods = [METHOD.format(number=number, code=code) for number, code in enumerate(blocks)]
    ends = {"inputs": (tensor("pixels", 1, 1, 28, 28),), "outputs": (tensor("logits", 1, 10),)}
    models = sources(signature("mnist", **ends))
    models |= java_sources(selecting(signature("segmenter", **ends)), "phone", "com.example.models", "assets")
    assert compiled({**models, "Use.java": USE.format(methods="\n".join(methods))}, tmp_path) == ""


@pytest.mark.parametrize(("loading", "mapped"), [("mapped", "true"), ("path", "false")])
def test_a_model_is_loaded_as_it_was_measured(loading: str, mapped: str) -> None:
    found = sources(signature(), loading=loading)["M.java"]
    assert f'"{"2" * 64}", {mapped}, 0, 1)' in found


def test_a_provider_without_a_java_call_is_refused() -> None:
    with pytest.raises(ConfigError, match="no call for the provider zeta"):
        sources(signature(), runs=(RunOptions(provider="zeta"),))
