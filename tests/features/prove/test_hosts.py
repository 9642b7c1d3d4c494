"""Computers that cannot run an Android library, and files that are none: one clear error, and a job goes on without."""

import platform
import shutil
import zipfile
from pathlib import Path

import pytest

from device_runner.android_host import build
from device_runner.device import open_device
from device_runner.errors import SpecError, UnavailableError, pip_install
from device_runner.local import wheel_library
from pipeline.core.progress import NoProgress
from pipeline.features.prove import ProofOrder, prove_bundle
from pipeline.features.prove.run import attested
from tests.android_host.bundles import bundle_of
from tests.ort_models import parsed

HOSTS = {
    "musl": ("Linux", "x86_64", "", "without glibc"),
    "riscv": ("Linux", "riscv64", "glibc", "riscv64"),
    "macOS": ("Darwin", "arm64", "", "Darwin"),
    "Windows": ("Windows", "AMD64", "", "Windows"),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("hosts"), parsed("g (float[2] x) => (float[2] y) { y = Relu (x) }"))


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is tested is the same on every computer, with empty caches and no emulator."""
    play(monkeypatch, "Linux", "x86_64", "glibc")
    monkeypatch.setenv("ORT_MOBILE_QEMU", str(tmp_path / "none"))
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))


def play(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))


@pytest.mark.parametrize("host", HOSTS)
def test_other_computers_are_refused_by_name_and_the_job_goes_on(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    system, machine, libc, told = HOSTS[host]
    play(monkeypatch, system, machine, libc)
    for use in (
        lambda: prove_bundle(bundle, ProofOrder(library="android:1.29.0"), NoProgress()),
        lambda: open_device("android-host:android:1.29.0"),
    ):
        with pytest.raises(UnavailableError, match="does not run on this computer") as caught:
            use()
        assert told in caught.value.where
        assert "`local`" in caught.value.remedy
    (proof,) = attested({"app.aar": ("phone",)}, NoProgress(), bundle)["library_proofs"]
    assert "does not run on this computer" in proof["not_run"]
    assert proof["library"]["file"] == "app.aar"
    assert not proof["rows"]


def _library(folder: Path, kind: str) -> str:
    path = folder / kind
    if kind == "truncated.so":
        path.write_bytes(wheel_library().read_bytes()[:100_000])
    elif kind == "text.so":
        path.write_text("hello")
    elif kind == "linux.so":
        shutil.copy(wheel_library(), path)
    elif kind in ("arm64.aar", "other.aar"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("jni/arm64-v8a/libonnxruntime.so" if kind == "arm64.aar" else "classes.jar", b"x")
    return str(path)


FILES = {
    "nosuch.aar": "no such file",
    "truncated.so": "ends before byte",
    "text.so": "ELF",
    "linux.so": "not built for Android",
    "arm64.aar": "apt-get install qemu-user libc6-arm64-cross",
    "other.aar": "no package of ONNX Runtime",
}


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize("kind", FILES)
def test_files_that_cannot_be_run_are_told_with_the_remedy(bundle: Path, tmp_path: Path, kind: str) -> None:
    library = _library(tmp_path, kind)
    abi = "?abi=arm64-v8a" if kind == "arm64.aar" else ""
    for use in (
        lambda: prove_bundle(bundle, ProofOrder(library=library), NoProgress()),
        lambda: open_device(f"android-host:{library}{abi}"),
    ):
        with pytest.raises((UnavailableError, SpecError)) as caught:
            use()
        assert FILES[kind] in caught.value.text
        assert caught.value.remedy
    (document,) = attested({library: ("phone",)}, NoProgress(), bundle)["library_proofs"]
    assert FILES[kind] in f"{document['not_run']}; {document['remedy']}"


@pytest.mark.usefixtures("linux")
def test_an_archive_without_the_abi_that_is_asked_for_names_those_that_it_has(bundle: Path, tmp_path: Path) -> None:
    library = _library(tmp_path, "arm64.aar")
    for use in (
        lambda: prove_bundle(bundle, ProofOrder(library=library, abis=("x86_64",)), NoProgress()),
        lambda: open_device(f"android-host:{library}"),
    ):
        with pytest.raises(UnavailableError, match="for x86_64") as caught:
            use()
        assert "it has arm64-v8a" in caught.value.why


@pytest.mark.usefixtures("linux")
def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("device_runner.build.zig_command", tuple)
    with pytest.raises(UnavailableError, match="no C compiler") as caught:
        build.build_host()
    assert pip_install("ziglang") in caught.value.remedy
    assert "`local`" in caught.value.remedy
