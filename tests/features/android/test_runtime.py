"""What cannot replace the published runtime is refused before anything is written."""

import zipfile
from pathlib import Path

import pytest

from tests.features.android.samples import bundle, needs_java, shipped
from tests.features.android.test_maven import released

ELF = b"\x7fELF\x02\x01" + bytes(58)
PARTS = {"AndroidManifest.xml": b"<manifest/>", "classes.jar": b"", "jni/arm64-v8a/libonnxruntime.so": ELF}
JNI = "libonnxruntime4j_jni.so"


@pytest.mark.parametrize(
    ("members", "why"),
    [
        (None, "libonnxruntime.so alone lacks the Java classes and libonnxruntime4j_jni.so"),
        ({}, "it has no classes.jar, no AndroidManifest.xml"),
        ({name: text for name, text in PARTS.items() if not name.startswith("jni")}, "it has no library for any ABI"),
        (PARTS, f"it has no {JNI} for arm64-v8a"),
        ({**PARTS, f"jni/arm64-v8a/{JNI}": ELF, f"jni/x86_64/{JNI}": ELF}, "it has no libonnxruntime.so for x86_64"),
        ({**PARTS, f"jni/arm64-v8a/{JNI}": ELF}, "it has nothing for x86, for which the models were released"),
    ],
)
def test_what_is_no_whole_runtime_is_refused(tmp_path: Path, members: dict[str, bytes] | None, why: str) -> None:
    needs_java()
    bundle(tmp_path, ships=(shipped(abis=("arm64-v8a", "x86")),))
    given = tmp_path / "given.aar"
    given.write_bytes(ELF)
    if members is not None:
        with zipfile.ZipFile(given, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
    result = released(tmp_path, "--runtime", str(given), code=2)
    assert why in result.err
    assert not (tmp_path / "repo").exists()
