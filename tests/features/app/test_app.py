"""`ort-mobile app` on packages with real libraries of a few lines of C, and on archives that are made to do harm."""

import io
import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_runner.probe.elf import parse_elf
from pipeline.features.app import RULE_NAMES
from pipeline.features.app.api_version import asked_api
from pipeline.features.app.inspection import extracts_libraries
from pipeline.features.app.judge import QNN_PLUGIN
from pipeline.features.app.members import DIRECTORY_BYTES
from tests.command import ROOT, ort_mobile
from tests.library.library_files import library, texts

RUNTIME = """
typedef struct { const void *(*GetApi)(unsigned); } Base;
static const void *get(unsigned version) { return (const void *)0; }
static const Base base = {get};
__attribute__((visibility("default"))) const Base *OrtGetApiBase(void) { return &base; }
__attribute__((visibility("default"))) const char mark[] = "ORT Build Info: \\0" "%s";
"""
CALLER = """
typedef struct { const void *(*GetApi)(unsigned); } Base;
extern const Base *OrtGetApiBase(void);
const void *api;
__attribute__((visibility("default"))) int JNI_OnLoad(void) { api = OrtGetApiBase()->GetApi(28); return 0; }
"""
TARGETS = {"arm64-v8a": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}
MANIFEST = b"\x03\x00\x08\x00" + bytes(60)
MNIST = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"


def compiled(folder: Path, abi: str, name: str, source: str, *flags: str) -> bytes:
    """A library of a few lines, by the compiler that the project brings."""
    (folder / f"{name}.c").write_text(source)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[abi], "-shared", "-nostdlib", "-O2", "-fPIC"]
    command += [f"{name}.c", "-o", name, f"-Wl,-soname,{name}", "-Wl,-z,max-page-size=16384", *flags]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / name).read_bytes()


def package(path: Path, members: dict[str, bytes], stored: bool = False) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def runtime(abi: str = "arm64-v8a", release: str = "1.28.0", extra: bytes = b"", alignment: int = 16384) -> bytes:
    return library(abi, extra=texts(release, "nnapi") + b"ORT Build Info: \0" + extra, alignment=alignment)


def inspected(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = ort_mobile("app", path, "--json", "-").document()
    assert {row["rule"] for row in document["findings"]} <= set(RULE_NAMES)
    return document


def rules(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["rule"], row["severity"]) for row in document["findings"]]


@pytest.mark.parametrize("abi", list(TARGETS))
def test_the_api_version_that_a_library_asks_for_is_read_from_its_code(abi: str, tmp_path: Path) -> None:
    compiled(tmp_path, abi, "libonnxruntime.so", RUNTIME % "1.20.0")
    caller = compiled(tmp_path, abi, "libuser.so", CALLER, "-L.", "-lonnxruntime")
    elf = parse_elf(caller)
    assert (elf.abi, elf.soname, asked_api(caller, elf)) == (abi, "libuser.so", 28)


def test_a_caller_of_a_newer_api_gets_null(tmp_path: Path) -> None:
    older = compiled(tmp_path, "arm64-v8a", "libonnxruntime.so", RUNTIME % "1.20.0")
    caller = compiled(tmp_path, "arm64-v8a", "libuser.so", CALLER, "-L.", "-lonnxruntime")
    members = {"lib/arm64-v8a/libonnxruntime.so": older, "lib/arm64-v8a/libuser.so": caller}
    members |= {"AndroidManifest.xml": MANIFEST, "classes.dex": b""}
    document = inspected(package(tmp_path / "app.apk", members))
    assert document["kind"] == "APK"
    assert document["served"] == {"lib/arm64-v8a/libuser.so": "lib/arm64-v8a/libonnxruntime.so"}
    assert rules(document) == [("null-api", "error")]
    assert "GetApi(28)" in document["findings"][0]["what"]
    assert "1.20.0, which has versions up to 20" in document["findings"][0]["why"]


def test_a_caller_of_another_release_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "v.map").write_text("VERS_1.17.1 { global: *; };")
    compiled(tmp_path, "arm64-v8a", "libonnxruntime.so", RUNTIME % "1.17.1", "-Wl,--version-script=v.map")
    caller = compiled(tmp_path, "arm64-v8a", "libuser.so", CALLER, "-L.", "-lonnxruntime")
    (tmp_path / "app" / "jni" / "arm64-v8a").mkdir(parents=True)
    (tmp_path / "app" / "jni" / "arm64-v8a" / "libuser.so").write_bytes(caller)
    alone = inspected(tmp_path / "app")
    assert rules(alone) == [("no-runtime", "warning")]
    assert "needs ONNX Runtime 1.17.1" in alone["findings"][0]["what"]
    (tmp_path / "app" / "jni" / "arm64-v8a" / "libonnxruntime.so").write_bytes(runtime())
    document = inspected(tmp_path / "app")
    assert rules(document) == [("other-release", "error")]
    assert "is 1.28.0" in document["findings"][0]["why"]


def test_small_pages_count_on_64_bits_only_and_not_for_the_dsp(tmp_path: Path) -> None:
    dsp = bytearray(runtime(alignment=4096))
    struct.pack_into("<H", dsp, 18, 164)
    members = {
        "jni/arm64-v8a/libonnxruntime.so": runtime(alignment=4096),
        "jni/x86_64/libonnxruntime.so": runtime("x86_64"),
        "jni/arm64-v8a/libQnnHtpV75Skel.so": bytes(dsp),
    }
    found = inspected(package(tmp_path / "app.aar", members))["findings"]
    assert [(row["rule"], row["where"]) for row in found] == [("pages", "jni/arm64-v8a/libonnxruntime.so")]


@pytest.mark.parametrize(
    ("release", "code", "remedy"),
    [
        ("1.24.3", True, "ship 1.24.4 or later"), ("1.24.4", True, None), ("1.24.3", False, None),
        ("1.27.0", True, "ship 1.28 or later"), ("1.28.0", True, None),
    ],
)  # fmt: skip
def test_processors_that_an_onnx_runtime_fails_on(release: str, code: bool, remedy: str | None, tmp_path: Path) -> None:
    smstart = b"".join(struct.pack("<Ix", 0xD503477F) for _ in range(4)) if code else b""  # one of the four is aligned
    document = inspected(
        package(tmp_path / "app.aar", {"jni/arm64-v8a/libonnxruntime.so": runtime(release=release, extra=smstart)})
    )
    extensions = [part["extension"] for part in document["libraries"][0]["arm_code"]["extensions"]]
    assert extensions == (["sme"] if code else [])
    found = [(row["rule"], row["remedy"].partition(",")[0]) for row in document["findings"]]
    assert found == ([("processors", remedy)] if remedy else [])
    assert ("; code for sme" in ort_mobile("app", tmp_path / "app.aar").out) is code


def binary_manifest(extract: int) -> bytes:
    """A binary AndroidManifest.xml with one element that has android:extractNativeLibs."""
    ids = struct.pack("<HHI2I", 0x0180, 8, 16, 0x01010003, 0x010104EA)
    row = struct.pack("<IIIHBBI", 0xFFFFFFFF, 1, 0xFFFFFFFF, 8, 0, 0x12, extract)
    element = struct.pack("<HHIIIIIHHHHHH", 0x0102, 16, 36 + 20, 1, 0xFFFFFFFF, 0xFFFFFFFF, 2, 20, 20, 1, 0, 0, 0)
    body = ids + element + row
    return struct.pack("<HHI", 3, 8, 8 + len(body)) + body


def test_libraries_that_are_loaded_from_the_apk_lie_at_pages(tmp_path: Path) -> None:
    members = {"classes.dex": b"", "lib/arm64-v8a/libonnxruntime.so": runtime()}
    unpacked = {"AndroidManifest.xml": binary_manifest(0xFFFFFFFF), **members}
    in_place = {"AndroidManifest.xml": binary_manifest(0), **members}
    assert (extracts_libraries(binary_manifest(0)), extracts_libraries(b"<manifest/>")) == (False, None)
    assert rules(inspected(package(tmp_path / "a.apk", unpacked, stored=True))) == []
    assert rules(inspected(package(tmp_path / "b.apk", in_place, stored=True))) == [("zip-alignment", "error")]
    assert rules(inspected(package(tmp_path / "c.apk", in_place))) == [("packed-library", "error")]


def test_two_runtimes_and_two_files_for_one_place(tmp_path: Path) -> None:
    inner = package(tmp_path / "x.aar", {"jni/arm64-v8a/libonnxruntime.so": runtime(release="1.17.1")}).read_bytes()
    members = {"libs/x.aar": inner, "jniLibs/arm64-v8a/libonnxruntime.so": runtime(),
               "jniLibs/arm64-v8a/libsdk.so": runtime(release="1.20.0")}  # fmt: skip
    document = inspected(package(tmp_path / "sdk.zip", members))
    assert rules(document) == [("same-path", "error"), ("two-runtimes", "warning")]
    assert "libs/x.aar/jni/arm64-v8a/libonnxruntime.so" in document["findings"][0]["where"]


def aars(folder: Path, **members: dict[str, bytes]) -> Path:
    """A folder with an AAR of each of these members."""
    folder.mkdir()
    for name, files in members.items():
        package(folder / f"{name}.aar", {"AndroidManifest.xml": b"<manifest/>", **files})
    return folder


@pytest.mark.parametrize("name", ["libonnxruntime.so", "libonnxruntime4j_jni.so", "libsdk.so", "libQnnHtpV75Skel.so"])
def test_a_library_of_two_packages_stops_gradle_where_it_differs(name: str, tmp_path: Path) -> None:
    place = f"jni/arm64-v8a/{name}"
    one, other = (library("arm64-v8a", extra=text, functions=("f",)) for text in (b"1", b"2"))
    differ = inspected(aars(tmp_path / "differ", a={place: one}, b={place: other}))
    equal = inspected(aars(tmp_path / "equal", a={place: one}, b={place: one}))
    assert (rules(differ), rules(equal)) == ([("same-path", "error")], [("same-path", "warning")])
    assert differ["findings"][0]["where"] == f"a.aar/{place}, b.aar/{place}"
    assert f"2 packages bring lib/arm64-v8a/{name}" in differ["findings"][0]["what"]


def test_paths_that_two_packages_share_are_one_finding(tmp_path: Path) -> None:
    names = [f"jni/{abi}/lib{number}.so" for abi in TARGETS for number in range(4)]
    one, other = ({name: library("arm64-v8a", extra=text, functions=("f",)) for name in names} for text in (b"1", b"2"))
    (found,) = inspected(aars(tmp_path / "libs", a=one, b=other))["findings"]
    assert "lib/x86_64/lib0.so and 3 more" in found["what"]


def test_of_assets_of_one_path_gradle_takes_one_without_a_word(tmp_path: Path) -> None:
    model, other = MNIST.read_bytes(), MNIST.read_bytes() + b"\x2a\x00"
    (found,) = inspected(aars(tmp_path / "x", a={"assets/m.onnx": model}, b={"assets/m.onnx": other}))["findings"]
    assert (found["rule"], found["severity"]) == ("same-path", "error")
    assert found["where"] == "a.aar/assets/m.onnx, b.aar/assets/m.onnx"
    assert "without a word" in found["why"]
    equal = {"assets/m.onnx": model, "assets/own/a.onnx": model}
    assert rules(inspected(aars(tmp_path / "y", a=equal, b={"assets/m.onnx": model, "assets/a.onnx": other}))) == []


def test_an_asset_that_an_app_has_twice_is_an_error(tmp_path: Path) -> None:
    path = package(tmp_path / "app.apk", {"AndroidManifest.xml": MANIFEST, "classes.dex": b"", "assets/a.json": b"{}"})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("assets/a.json", "[]")
    assert rules(inspected(path)) == [("same-path", "error")]


@pytest.mark.parametrize(
    ("has", "lacks", "severity"),
    [("arm64-v8a", "armeabi-v7a", "error"), ("armeabi-v7a", "arm64-v8a", "error"), ("arm64-v8a", "x86_64", "warning")],
)
def test_an_abi_without_onnx_runtime_beside_one_that_has_it(
    has: str, lacks: str, severity: str, tmp_path: Path
) -> None:
    machines = {"arm64-v8a": 183, "armeabi-v7a": 40, "x86_64": 62}

    def of(abi: str, content: bytes) -> bytes:
        return content[:18] + struct.pack("<H", machines[abi]) + content[20:]

    camera = library("arm64-v8a", functions=("f",))
    members = {"AndroidManifest.xml": MANIFEST, "classes.dex": b"", f"lib/{has}/libonnxruntime.so": of(has, runtime()),
               f"lib/{lacks}/libcamera.so": of(lacks, camera)}  # fmt: skip
    (found,) = [row for row in inspected(package(tmp_path / "a.apk", members))["findings"] if row["rule"] == "abi-gap"]
    assert (found["severity"], found["where"]) == (severity, f"lib/{lacks}/libcamera.so")
    assert f"ONNX Runtime is there for {has} only" in found["why"]
    members[f"lib/{lacks}/libonnxruntime.so"] = of(lacks, runtime())
    assert "abi-gap" not in str(inspected(package(tmp_path / "b.apk", members)))
    del members[f"lib/{has}/libonnxruntime.so"], members[f"lib/{lacks}/libonnxruntime.so"]
    assert "abi-gap" not in str(inspected(package(tmp_path / "c.apk", members)))


LOOP = """
typedef struct { const void *(*GetApi)(unsigned); } Base;
extern void *dlopen(const char *, int);
extern void *dlsym(void *, const char *);
extern int printf(const char *, ...);
extern int log_at(int, const char *, const char *, ...);
const void *api;
__attribute__((visibility("default"))) int start(void) {
    const Base *base = ((const Base *(*)(void))dlsym(dlopen("libonnxruntime.so", 2), "OrtGetApiBase"))();
    for (int version = 26; version >= 18; --version) if ((api = base->GetApi(version))) return 0;
    %s;
    return 1;
}
"""
SAYS = '"The loaded library did not have an ORT API version between %d and %d.", 26, 18)'


@pytest.mark.parametrize("call", [f"printf({SAYS}", f'log_at(5, "GenAI", {SAYS}'])
@pytest.mark.parametrize("abi", list(TARGETS))
def test_a_library_that_tries_several_versions_of_the_api_needs_the_oldest(abi: str, call: str, tmp_path: Path) -> None:
    genai = compiled(tmp_path, abi, "libgenai.so", LOOP.replace("%s", call, 1), "-Wl,-z,undefs")
    older, fitting = runtime(abi, "1.17.1"), runtime(abi, "1.18.0")
    place = f"lib/{abi}/libgenai.so"
    documents = [
        inspected(package(tmp_path / f"{number}.zip", {place: genai, f"lib/{abi}/libonnxruntime.so": content}))
        for number, content in enumerate((older, fitting))
    ]
    (row,) = (row for row in documents[0]["libraries"] if row["path"] == place)
    assert (row["least_api"], row["api"]) == (18, 26)
    assert [rules(document) for document in documents] == [[("null-api", "error")], []]
    assert "for 26 and each down to 18" in documents[0]["findings"][0]["what"]
    assert "uses ONNX Runtime (API 18 to 26)" in ort_mobile("app", tmp_path / "0.zip").out


def test_models_are_judged_by_the_library_beside_them(tmp_path: Path) -> None:
    from pipeline.model.wire import encode_field

    minimal = runtime(extra=b"ONNX format model is not supported in this build.\0")
    newer = MNIST.read_bytes() + encode_field(8, b"\x0a\x00\x10\x1a")  # opset 26 of ai.onnx
    custom = MNIST.read_bytes() + encode_field(
        7, encode_field(1, encode_field(4, b"Tokens") + encode_field(7, b"mine"))
    )
    kinds = {}
    for name, code in (("full", runtime(release="1.20.0")), ("minimal", minimal)):
        models = {"assets/ok.onnx": MNIST.read_bytes(), "assets/newer.onnx": newer, "assets/custom.onnx": custom}
        members = {"lib/arm64-v8a/libonnxruntime.so": code, **models, "assets/cut.onnx": MNIST.read_bytes()[:900]}
        kinds[name] = inspected(package(tmp_path / f"{name}.zip", members))
    found = {(row["rule"], row["where"]) for row in kinds["full"]["findings"]}
    assert found == {("damaged", "assets/cut.onnx"), ("model", "assets/newer.onnx"),
                     ("custom-operators", "assets/custom.onnx")}  # fmt: skip
    assert [row["opset"] for row in kinds["full"]["models"]] == [13, 26, 13]
    refused = [row["where"] for row in kinds["minimal"]["findings"] if row["rule"] == "model"]
    assert refused == ["assets/ok.onnx", "assets/newer.onnx", "assets/custom.onnx"]


def context_for_v79(qairt: str = "2.51.0") -> bytes:
    from pipeline.model.wire import encode_field

    node = encode_field(4, b"EPContext") + encode_field(7, b"com.microsoft")
    entry = encode_field(1, b"ep_compatibility_info.QNN") + encode_field(2, f"v2:6:{qairt}:5.51.0:79:69:0:0".encode())
    return MNIST.read_bytes() + encode_field(7, encode_field(1, node)) + encode_field(14, entry)


def test_contexts_in_an_app_without_their_provider_are_an_error(tmp_path: Path) -> None:
    """Or with that of a wheel for Linux on ARM, whose files have the same names."""
    members = {"AndroidManifest.xml": MANIFEST, "classes.dex": b"dex", "lib/arm64-v8a/libonnxruntime.so": runtime(),
               "assets/m.onnx": context_for_v79()}  # fmt: skip
    assert ("provider-files", "error") in rules(inspected(package(tmp_path / "none.apk", members)))
    members["lib/arm64-v8a/libonnxruntime_providers_qnn.so"] = library("arm64-v8a", needed="libc.so.6")
    document = inspected(package(tmp_path / "linux.apk", members))
    assert "this library is for Linux and does not load on Android" in str(document["findings"])
    assert ("other-system", "error") in rules(document)


@pytest.mark.parametrize(
    ("parts", "context", "why"),
    [
        ("V75Stub V79Stub V79Skel", False, "libQnnHtpV75Skel.so, libQnnHtp.so"),
        ("V75Stub V75Skel", True, "libQnnHtpV79Stub.so and libQnnHtpV79Skel.so, which contexts in it are for"),
    ],
)
def test_qnn_needs_its_backend_and_the_files_of_each_npu(parts: str, context: bool, why: str, tmp_path: Path) -> None:
    names = [QNN_PLUGIN, *(f"libQnnHtp{part}.so" for part in parts.split())]
    names += ["libQnnHtp.so", "libQnnSystem.so"] if context else []
    members = {f"lib/arm64-v8a/{name}": runtime() for name in names}
    members |= {"assets/m.onnx": context_for_v79()} if context else {}
    (missing,) = (row for row in inspected(package(tmp_path / "q.zip", members))["findings"]
                  if row["rule"] == "provider-files")  # fmt: skip
    assert missing["why"] == f"missing: {why}"


PLUGIN = """
const char options[] = "%s";
__attribute__((visibility("default"))) const char *CreateEpFactories(void) { return options; }
"""


def test_releases_of_qnn_that_do_not_belong_together_are_named(tmp_path: Path) -> None:
    """A plugin of 2.6 belongs to QAIRT 2.50: its runtime refuses the context of 2.51. One of 2.7 takes it."""
    findings = {}
    for option in ("enable_htp_graph_splitting", "htp_reused_io_limit_mb"):
        plugin = compiled(tmp_path, "arm64-v8a", "libonnxruntime_providers_qnn.so", PLUGIN % option)
        members = {"lib/arm64-v8a/libonnxruntime_providers_qnn.so": plugin, "assets/m.onnx": context_for_v79(),
                   "lib/arm64-v8a/libonnxruntime.so": runtime(release="1.26.0")}  # fmt: skip
        document = inspected(package(tmp_path / f"{option}.zip", members))
        findings[option] = [
            (row["severity"], row["why"]) for row in document["findings"] if row["rule"] == "qnn-release"
        ]
    old = "1.27 or later; lib/arm64-v8a/libonnxruntime.so is 1.26.0"
    assert findings == {
        "enable_htp_graph_splitting": [
            ("error", "it is plugin 2.6.0, of QAIRT 2.50.0; assets/m.onnx was compiled by 2.51.0"),
            ("warning", f"it is plugin 2.6.0, for {old}"),
        ],
        "htp_reused_io_limit_mb": [("warning", f"it is plugin 2.7.0, for {old}")],
    }


def test_a_context_of_a_qairt_that_no_known_plugin_belongs_to(tmp_path: Path) -> None:
    plugin = compiled(tmp_path, "arm64-v8a", "libonnxruntime_providers_qnn.so", PLUGIN % "enable_htp_graph_splitting")
    members = {"lib/arm64-v8a/libonnxruntime_providers_qnn.so": plugin, "assets/m.onnx": context_for_v79("2.60.0")}
    findings = inspected(package(tmp_path / "later.zip", members))["findings"]
    (row,) = (row for row in findings if row["rule"] == "qnn-release")
    assert "ship com.qualcomm.qti:qnn-runtime:2.60.0 with the plugin that belongs to it, or" in row["remedy"]


@pytest.mark.npu
def test_the_release_of_the_installed_plugin_is_told(tmp_path: Path) -> None:
    qnn = pytest.importorskip("onnxruntime_qnn", reason="without the package onnxruntime-qnn")
    content = Path(qnn.get_library_path()).read_bytes()
    (row,) = inspected(package(tmp_path / "q.apk", {f"lib/x86_64/{QNN_PLUGIN}": content}))["libraries"]
    assert row["plugin"] == qnn.__version__


def test_a_library_that_is_linked_with_a_provider_needs_it_beside_it(tmp_path: Path) -> None:
    name = "libonnxruntime_providers_dnnl.so"
    named = runtime(extra=name.encode() + b"\0")
    linked = library("arm64-v8a", needed=name, extra=texts("1.28.0") + b"ORT Build Info: \0")
    members = {"jni/arm64-v8a/libonnxruntime.so": named}
    assert inspected(package(tmp_path / "named.aar", members))["findings"] == []
    members = {"jni/arm64-v8a/libonnxruntime.so": linked}
    (missing,) = inspected(package(tmp_path / "linked.aar", members))["findings"]
    assert (missing["rule"], missing["severity"], missing["why"]) == (
        "provider-files", "error", f"{name} is not beside it"
    )  # fmt: skip
    members[f"jni/arm64-v8a/{name}"] = library("arm64-v8a")
    beside = inspected(package(tmp_path / "whole.aar", members))["findings"]
    assert "provider-files" not in {row["rule"] for row in beside}


def test_conditions_decide_on_the_exit_code(tmp_path: Path) -> None:
    path = package(tmp_path / "app.aar", {"jni/arm64-v8a/libonnxruntime.so": runtime(alignment=4096)})
    assert "pages" in ort_mobile("app", path, "--fail-on", "finding:telemetry", "--sarif", tmp_path / "s").out
    done = ort_mobile("app", path, "--fail-on", "finding:pages", code=4)
    assert "--fail-on finding:pages: " in done.err
    assert ort_mobile("app", path, "--fail-on", "error", "--quiet", code=4).out == ""
    assert "did you mean finding:pages?" in ort_mobile("app", path, "--fail-on", "finding:page", code=2).err
    assert "did you mean error?" in ort_mobile("app", path, "--fail-on", "eror", code=2).err


LIBRARY = "lib/arm64-v8a/liba.so"


def nested(members: int, depth: int, size_bytes: int) -> bytes:
    """An archive of archives, in each of the last a member of zeros, which packs to a thousandth."""
    content = bytes(size_bytes)
    for level in range(depth + 1):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for row in range(members if level else 1):
                archive.writestr(f"{row}.zip" if level else LIBRARY, content)
        content = packed.getvalue()
    return content


def changed(content: bytes, *, local: tuple[int, str, int] | None = None, listed: tuple[int, str, int]) -> bytes:
    """An archive of one member with numbers of its headers changed: (offset, format, number)."""
    data = bytearray(content)
    for begin, change in ((data.rindex(b"PK\1\2"), listed), (0, local)):
        if change:
            struct.pack_into(change[1], data, begin + change[0], change[2])
    return bytes(data)


def with_zip64(content: bytes, size_bytes: int) -> bytes:
    """An archive of one member whose size in the directory is a 64-bit number."""
    place, end = content.rindex(b"PK\1\2"), content.rindex(b"PK\5\6")
    listed = bytearray(content[place:end] + struct.pack("<HHQQ", 1, 16, size_bytes, size_bytes))
    struct.pack_into("<IIHH", listed, 20, 0xFFFFFFFF, 0xFFFFFFFF, len(LIBRARY), 20)
    tail = bytearray(content[end:])
    struct.pack_into("<I", tail, 12, len(listed))
    return content[:place] + bytes(listed + tail)


def overlapping(content: bytes, members: int) -> bytes:
    """An archive whose directory lists the bytes of its one member many times."""
    place, end = content.rindex(b"PK\1\2"), content.rindex(b"PK\5\6")
    tail = bytearray(content[end:])
    struct.pack_into(
        "<HHI", tail, 8, members & 0xFFFF, members & 0xFFFF, (end - place) * members
    )  # readers go by the bytes
    return content[:place] + content[place:end] * members + bytes(tail)


def zipped(name: str = LIBRARY, content: bytes = bytes(5000), method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr(name, content)
    return packed.getvalue()


def nameless() -> bytes:
    """An archive whose member has an empty name: what is behind a zero byte does not count."""
    return zipped("#a.so").replace(b"#a.so", b"\0a.so")


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (bytes, "neither an archive"),
    "text": (lambda: b"<html>404 Not Found</html>" * 9, "neither an archive"),
    "leads up": (lambda: zipped("../slip.so"), "leads out of it"),
    "absolute": (lambda: zipped("/etc/slip.so"), "leads out of it"),
    "of another system": (lambda: zipped("..\\slip.so"), "leads out of it"),
    "cut": (lambda: zipped(content=random.Random(1).randbytes(5000))[:3000], "not a zip file"),
    "damaged": (lambda: zipped()[:60] + b"\xff\xff\xff" + zipped()[63:], ""),
    "encrypted": (lambda: changed(zipped(), listed=(8, "<H", 1)), "encrypted"),
    "of an unknown method": (lambda: changed(zipped(), local=(8, "<H", 97), listed=(10, "<H", 97)), "by method 97"),
    "unpacked at once": (lambda: zipped(content=bytes(9 << 20), method=zipfile.ZIP_BZIP2), "by method 12"),
    "of 4 GB of dictionary": (
        lambda: changed(zipped(method=zipfile.ZIP_LZMA), local=(56, "<I", 0xFFFFFFFF), listed=(8, "<H", 0)),
        "by method 14",
    ),
    "without a name": (nameless, "leads out of it"),
    "without a name in an archive": (lambda: zipped("x.aar", nameless()), "leads out of it"),
    "named with a zero byte": (lambda: zipped("liba.so|").replace(b"so|", b"so\0"), "leads out of it"),
    "damaged in an archive": (lambda: zipped("x.aar", zipped("a.so")[:-40]), "app.apk/x.aar"),
    "encrypted in an archive": (lambda: zipped("x.aar", changed(zipped(), listed=(8, "<H", 1))), "is encrypted"),
    "says 3 GB": (lambda: changed(zipped(), listed=(24, "<I", 3 << 30)), "would become 3,221,225,472 bytes"),
    "says 100 bytes": (lambda: changed(zipped(), listed=(24, "<I", 100)), "Bad CRC-32"),
    "says an exabyte": (lambda: with_zip64(zipped(), 1 << 60), "would become 1,152,921,504,606,846,976 bytes"),
    "points behind its end": (lambda: changed(zipped(), listed=(42, "<I", 1 << 30)), ""),
    "lists a member often": (lambda: overlapping(zipped(content=bytes(9 << 20)), 1000), "become over 8,589,934,592"),
    "of archives of archives": (lambda: nested(10, 2, 90 << 20), "become over 8,589,934,592"),
    "of too many members": (lambda: overlapping(zipped(), 200_001), "it has 200,001 members"),
    "of a long directory": (lambda: overlapping(zipped(), 600_000), "its directory has "),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_a_hostile_archive_is_one_error(kind: str, tmp_path: Path) -> None:
    make, why = HOSTILE[kind]
    path = tmp_path / "app.apk"
    path.write_bytes(make())
    done = ort_mobile("app", path, code=2)
    assert done.err.count("error:") == 1
    assert why in done.err
    assert "Traceback" not in done.text
    assert list(tmp_path.iterdir()) == [path]


def elf(*segments: tuple[int, int], content: bytes = b"") -> bytes:
    """An arm64 library of segments of the whole file, each by its type and alignment, and then of `content`."""
    begin = 64 + 56 * len(segments)
    size = begin + len(content)
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    for kind, step in segments:
        place, length = (0, size) if kind == 1 else (begin, len(content))
        head += struct.pack("<IIQQQQQQ", kind, 5, place, 0, 0, length, size, step)
    return head + content


def many_attributes() -> bytes:
    """A manifest of half a million elements, each of which says that 65,535 attributes follow."""
    elements = struct.pack("<HHI", 0x0102, 0, 8) + struct.pack("<HHI", 0x0102, 0, 8)
    ids = struct.pack("<HHII", 0x0180, 8, 12, 0x010104EA)
    return struct.pack("<HHI", 3, 8, 8) + ids + elements * (2 << 17)


def names_over_each_other() -> bytes:
    """A library of a million symbols, whose names all are one long string."""
    dynamic = ((5, 176 + 96), (6, 176 + 96 + 32000), (0x6FFFFEF5, 176 + 96 + 32000 - 64), (10, 32000), (0, 0))
    count = 1 << 20
    table = struct.pack("<IIII", 0, count, 0, 0).ljust(64, b"\0")
    text = (b"x" * 31000 + b"\0").ljust(32000 - 64, b"\0")
    body = b"".join(struct.pack("<QQ", *row) for row in dynamic).ljust(96, b"\0") + text + table + bytes(24) * count
    return elf((1, 16384), (2, 8), content=body)


HEAVY: dict[str, Callable[[], dict[str, bytes]]] = {
    "manifest": lambda: {"AndroidManifest.xml": many_attributes()},
    "symbols": lambda: {LIBRARY: names_over_each_other()},
    "segments": lambda: {LIBRARY: elf(*[(1, 16384)] * 900, content=runtime() + bytes(60 << 20))},
    "notes": lambda: {LIBRARY: elf((1, 16384), *[(4, 4)] * 900, content=bytes(60 << 20))},
    "tables": lambda: {LIBRARY: elf((1, 16384), *[(2, 8)] * 900, content=b"\1" * (60 << 20))},
    "libraries": lambda: {f"lib/arm64-v8a/lib{number}.so": runtime() for number in range(4001)},
}


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.nightly] * (kind in ("notes", "tables"))) for kind in HEAVY]
)
def test_a_package_that_is_much_to_read_is_read_within_bounds(kind: str, tmp_path: Path) -> None:
    path = package(tmp_path / "app.apk", HEAVY[kind]())
    limits = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
    limits += "resource.setrlimit(resource.RLIMIT_CPU, (20, 20)); from pipeline.cli.main import main; main()"
    words = [sys.executable, "-c", limits, "app", str(path), "--fail-on", "error"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert "Internal error" not in done.stderr


def test_a_stored_member_may_be_larger_than_a_directory(tmp_path: Path) -> None:
    large = runtime(extra=bytes(DIRECTORY_BYTES))
    document = inspected(package(tmp_path / "app.aar", {"jni/arm64-v8a/libonnxruntime.so": large}, stored=True))
    assert [row["size_bytes"] for row in document["libraries"]] == [len(large)]


def test_a_universal_file_counts_for_each_of_its_architectures(tmp_path: Path) -> None:
    machines, build = (0x0100000C, 0x01000007), struct.pack("<6I", 0x32, 24, 7, 15 << 16, 0, 0)
    images = [
        struct.pack("<8I", 0xFEEDFACF, machine, 0, 6, 1, len(build), 0, 0) + build + b"_OrtGetApiBase\0" + bytes(200)
        for machine in machines
    ]
    places = (1000, 2000)
    table = b"".join(
        struct.pack(">5I", machine, 0, place, len(image), 0)
        for machine, place, image in zip(machines, places, images, strict=True)
    )
    universal = struct.pack(">2I", 0xCAFEBABE, 2) + table
    for place, image in zip(places, images, strict=True):
        universal = universal.ljust(place, b"\0") + image
    framework = tmp_path / "own.xcframework/ios-arm64_x86_64-simulator/own.framework"
    framework.mkdir(parents=True)
    (framework / "own").write_bytes(universal)
    parts = {row["part"]: (row["files"], row["size_bytes"]) for row in inspected(tmp_path)["parts"]}
    assert {name: row for name, row in parts.items() if ", " in name} == {
        f"native libraries, {name}": (1, len(images[0])) for name in ("arm64", "x86_64")
    }


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no such file" in ort_mobile("app", tmp_path / "app.apk", code=2).err


def test_a_link_in_an_archive_is_not_followed_and_archives_are_opened_three_deep(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("lib/arm64-v8a/libonnxruntime.so")
    link.external_attr = 0o120777 << 16
    path = tmp_path / "app.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/bin/sh")
        archive.writestr("three.zip", nested(1, 2, 100))
        archive.writestr("four.zip", nested(1, 3, 100))
    document = inspected(path)
    assert document["libraries"] == []
    assert [(part["part"], part["files"]) for part in document["parts"]] == [("everything else", 3)]


def test_a_file_whose_name_is_no_text_is_shown_in_all_forms(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"lib\xff.so")).write_bytes(b"\x7fELF" + bytes(100))
    (row,) = inspected(tmp_path)["findings"]
    assert (row["rule"], row["where"]) == ("damaged", "lib\\xff.so")
    ort_mobile("app", tmp_path, "--sarif", tmp_path / "app.sarif")


def test_a_name_that_an_archive_has_twice_is_an_error(tmp_path: Path) -> None:
    members = {"AndroidManifest.xml": MANIFEST, "classes.dex": b"", "lib/arm64-v8a/libonnxruntime.so": runtime()}
    path = package(tmp_path / "app.apk", members)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("lib/arm64-v8a/libonnxruntime.so", runtime(extra=bytes(64)))
    assert rules(inspected(path)) == [("same-path", "error")]
