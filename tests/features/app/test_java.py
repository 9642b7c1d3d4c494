"""`ort-mobile app` on packages with Java classes of ONNX Runtime beside its native libraries."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.library.jni import PACKAGE, function_of
from tests.features.app.test_app import MANIFEST, inspected, package, rules, runtime
from tests.library.java_files import Methods, dex_file, jar
from tests.library.library_files import library

TENSOR, INFO, GENAI = f"{PACKAGE}/OnnxTensor", f"{PACKAGE}/TensorInfo", f"{PACKAGE}/genai/Model"
CLASSES: dict[str, Methods] = {
    TENSOR: [("<init>", f"(JL{INFO};)V", False), ("getArray", "(J)V", True), ("close", "(J)V", True)],
    INFO: [("<init>", "([J)V", False)],
}
OLD: dict[str, Methods] = {**CLASSES, TENSOR: [*CLASSES[TENSOR], ("getBoolArray", "(J)V", True)]}
TEXTS = f"(JL{INFO};)V\0([J)V\0{INFO}\0<init>\0".encode()
RUNTIME, JNI = "libonnxruntime.so", "libonnxruntime4j_jni.so"


def jni(*classes: str) -> bytes:
    functions = tuple(function_of(name, row) for name in classes or (TENSOR,) for row in ("getArray", "close"))
    return library("arm64-v8a", needed=RUNTIME, extra=TEXTS, functions=functions)


def aar(path: Path, classes: dict[str, Methods] | None = CLASSES, **libraries: bytes) -> Path:
    named = {f"jni/arm64-v8a/{name}.so": content for name, content in libraries.items()}
    members = {"AndroidManifest.xml": b"<manifest/>", **named}
    return package(path, members | ({} if classes is None else {"classes.jar": jar(classes)}))


def apk(path: Path, classes: dict[str, Methods] | None = CLASSES, **libraries: bytes) -> Path:
    named = {f"lib/arm64-v8a/{name}.so": content for name, content in libraries.items()}
    members = {"AndroidManifest.xml": MANIFEST, "resources.arsc": b"", **named}
    return package(path, members | ({} if classes is None else {"classes.dex": dex_file(classes)}))


WHOLE = {"libonnxruntime": runtime(), "libonnxruntime4j_jni": jni()}


def java(path: Path) -> list[tuple[str, str]]:
    return [row for row in rules(inspected(path)) if row[0] in ("duplicate-class", "java-classes", "shrunk-classes")]


@pytest.mark.parametrize("make", [aar, apk])
def test_classes_and_libraries_of_one_release_are_right(make: Any, tmp_path: Path) -> None:
    assert rules(inspected(make(tmp_path / f"x.{make.__name__}", **WHOLE))) == []


@pytest.mark.parametrize("make", [aar, apk])
def test_classes_of_another_release_are_an_error(make: Any, tmp_path: Path) -> None:
    (found,) = inspected(make(tmp_path / f"x.{make.__name__}", OLD, **WHOLE))["findings"]
    assert (found["rule"], found["severity"]) == ("java-classes", "error")
    assert found["where"].endswith(f"arm64-v8a/{JNI}")
    assert "no native library has a function for ai.onnxruntime.OnnxTensor.getBoolArray" in found["why"]


@pytest.mark.parametrize(
    ("make", "classes", "libraries", "severity", "what"),
    [
        (aar, CLASSES, ("libonnxruntime",), "error", f"of ai.onnxruntime are here without {JNI}"),
        (apk, CLASSES, ("libonnxruntime",), "error", f"of ai.onnxruntime are here without {JNI}"),
        (aar, CLASSES, (), "warning", f"of ai.onnxruntime are here without {JNI}"),
        (apk, {GENAI: [("get", "()V", True)]}, ("libonnxruntime",), "error", "without libonnxruntime-genai-jni.so"),
        (aar, None, tuple(WHOLE), "warning", "of ai.onnxruntime are not in this package"),
        (aar, {"com/a/B": []}, tuple(WHOLE), "warning", "of ai.onnxruntime are not in this package"),
        (apk, {"com/a/B": []}, tuple(WHOLE), "warning", "of ai.onnxruntime are not in this package"),
        (apk, None, tuple(WHOLE), "", ""),
    ],
)  # fmt: skip
def test_classes_and_their_library_come_together(
    make: Any, classes: Any, libraries: tuple[str, ...], severity: str, what: str, tmp_path: Path
) -> None:
    """A part of a split app without any dex gets its classes from another part."""
    path = make(tmp_path / f"x.{make.__name__}", classes, **{name: WHOLE[name] for name in libraries})
    found = [row for row in inspected(path)["findings"] if row["rule"] == "java-classes"]
    assert [row["severity"] for row in found] == ([severity] if severity else [])
    assert what in str(found)


@pytest.mark.parametrize(("abi", "machine", "severity"), [("armeabi-v7a", 40, "error"), ("x86_64", 62, "warning")])
def test_a_jni_library_that_an_abi_lacks_is_a_gap(abi: str, machine: int, severity: str, tmp_path: Path) -> None:
    """GenAI is published for two ABIs, and ONNX Runtime for four."""
    content = runtime()
    members = {f"lib/arm64-v8a/{file}.so": library for file, library in WHOLE.items()}
    members |= {"AndroidManifest.xml": MANIFEST, "classes.dex": dex_file(CLASSES),
                f"lib/{abi}/{RUNTIME}": content[:18] + bytes([machine]) + content[19:]}  # fmt: skip
    found = inspected(package(tmp_path / "x.apk", members))["findings"]
    assert [(row["rule"], row["severity"]) for row in found if row["rule"] != "damaged"] == [("abi-gap", severity)]
    assert f"libraries for {abi} get no libonnxruntime4j_jni.so" in str(found)


def test_native_libraries_alone_get_their_classes_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "jniLibs" / "arm64-v8a").mkdir(parents=True)
    for name, content in WHOLE.items():
        (tmp_path / "jniLibs" / "arm64-v8a" / f"{name}.so").write_bytes(content)
    assert java(tmp_path) == []


@pytest.mark.parametrize(
    ("classes", "why"),
    [
        ({TENSOR: CLASSES[TENSOR]}, "classes up by name that are not there (ai.onnxruntime.TensorInfo)"),
        ({TENSOR: CLASSES[TENSOR], INFO: []}, "constructors that are not there (ai.onnxruntime.TensorInfo)"),
    ],
)
def test_what_r8_took_is_named_with_the_rule_that_keeps_it(
    classes: dict[str, Methods], why: str, tmp_path: Path
) -> None:
    (found,) = inspected(apk(tmp_path / "x.apk", classes, **WHOLE))["findings"]
    assert (found["rule"], found["severity"]) == ("shrunk-classes", "error")
    assert why in found["why"]
    assert "-keep class ai.onnxruntime.** { *; }" in found["remedy"]


def test_native_methods_that_r8_took_since_nobody_calls_them_are_not_missed(tmp_path: Path) -> None:
    shrunk = {**CLASSES, TENSOR: [row for row in CLASSES[TENSOR] if row[0] != "getArray"]}
    assert java(apk(tmp_path / "x.apk", shrunk, **WHOLE)) == []


def test_the_jar_for_desktops_beside_the_aar_stops_gradle(tmp_path: Path) -> None:
    folder = tmp_path / "libs"
    folder.mkdir()
    aar(folder / "onnxruntime.aar", CLASSES, **WHOLE)
    (folder / "onnxruntime-1.29.0.jar").write_bytes(jar(CLASSES))
    (found,) = inspected(folder)["findings"]
    assert (found["rule"], found["severity"]) == ("duplicate-class", "error")
    assert found["where"] == "onnxruntime-1.29.0.jar, onnxruntime.aar/classes.jar"
    assert "Duplicate class ai.onnxruntime.OnnxTensor" in found["why"]


def test_classes_and_library_out_of_two_packages_of_one_folder_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "libs"
    folder.mkdir()
    aar(folder / "natives.aar", classes=None, **WHOLE)
    (folder / "classes.jar").write_bytes(jar(CLASSES))
    assert java(folder) == []


def test_java_that_cannot_be_read_is_damaged_and_costs_nothing_else(tmp_path: Path) -> None:
    members = {
        "AndroidManifest.xml": MANIFEST,
        "classes.dex": dex_file(CLASSES)[:150],
        "assets/a/classes.dex": b"x" * 99,
    }
    members |= {f"lib/arm64-v8a/{name}.so": content for name, content in WHOLE.items()}
    found = inspected(package(tmp_path / "x.apk", members))
    assert [(row["rule"], row["where"]) for row in found["findings"]][:1] == [("damaged", "classes.dex")]
    assert len(found["libraries"]) == 2
