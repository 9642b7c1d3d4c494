"""Which processor runs an ABI's code here, and one clear error with the remedy for each one that cannot."""

import os
import platform
from pathlib import Path

import pytest

from device_runner.device import open_device
from device_runner.errors import SpecError, UnavailableError
from device_runner.host_device import CPUS, CPUS_32, Processor, check_host, cpu_files, find_processor

VERSION = "qemu-aarch64 version {} (Debian)"


@pytest.fixture(autouse=True)
def computer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An x86-64 computer with an emulator and a C library for arm64 that are named by variables."""
    play(monkeypatch, "x86_64")
    loader = tmp_path / "root" / "usr" / "aarch64-linux-gnu" / "lib" / "ld-linux-aarch64.so.1"
    loader.parent.mkdir(parents=True)
    loader.touch()
    monkeypatch.setenv("ORT_MOBILE_QEMU", str(emulator(tmp_path / "bin")))
    monkeypatch.setenv("ORT_MOBILE_SYSROOT", str(tmp_path / "root"))
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))


def play(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", ""))


def emulator(folder: Path, release: str = "7.2.22", cores: str = "cortex-a53 cortex-a76 max") -> Path:
    """A folder with a program that says of itself what qemu-aarch64 says."""
    folder.mkdir(exist_ok=True)
    program = folder / "qemu-aarch64"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{VERSION.format(release)}" || echo "Available CPUs: {cores}"\n'
    )
    program.chmod(0o755)
    return folder


def test_another_processors_code_is_emulated_with_the_usual_cpu(tmp_path: Path) -> None:
    found = find_processor("arm64-v8a")
    root = str(tmp_path / "root" / "usr" / "aarch64-linux-gnu")
    command = (str(tmp_path / "bin" / "qemu-aarch64"), "-cpu", "cortex-a76", "-L", root)
    assert found == Processor(abi="arm64-v8a", cpu="cortex-a76", command=command)
    assert find_processor("arm64-v8a", "i8mm").command[2] == "max,sve=off,sme=off"
    assert find_processor("x86_64") == Processor(abi="x86_64")


def test_an_arm64_computer_needs_no_emulator_unless_a_cpu_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, "aarch64")
    assert find_processor("arm64-v8a", "cortex-a53").emulated
    monkeypatch.setenv("ORT_MOBILE_QEMU", str(tmp_path))
    assert find_processor("arm64-v8a") == Processor(abi="arm64-v8a")
    assert find_processor("arm64-v8a").environment(tmp_path) == {}
    check_host()
    with pytest.raises(UnavailableError, match="does not run on this computer") as caught:
        find_processor("x86_64")
    assert "Linux aarch64" in caught.value.where


def refusal(abi: str = "arm64-v8a", cpu: str = "") -> str:
    """All that the error says; the device says the same before it looks for a library."""
    with pytest.raises((UnavailableError, SpecError)) as caught:
        find_processor(abi, cpu)
    with pytest.raises((UnavailableError, SpecError)) as other:
        open_device(f"android-host:1.29.0?abi={abi}" + (f"&cpu={cpu}" if cpu else ""))
    assert other.value.lines() == caught.value.lines()
    assert caught.value.remedy
    return " ".join(text for _, text in caught.value.lines())


@pytest.mark.parametrize("variable", ["ORT_MOBILE_QEMU", "ORT_MOBILE_SYSROOT"])
def test_what_is_missing_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "nothing here"))
    said = refusal()
    assert "apt-get install qemu-user libc6-arm64-cross" in said
    assert variable in said
    assert "nothing here" in said


def test_without_an_emulator_on_the_path_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_MOBILE_QEMU")
    monkeypatch.setenv("PATH", "")
    assert "no qemu-aarch64" in refusal()
    assert "apt-get install qemu-user" in refusal()


OTHERS = {
    "old": ({"release": "5.2.0"}, "it is QEMU 5.2", ""),
    "without the core": ({}, "QEMU 7.2 has cortex-a53, cortex-a55, cortex-a76, i8mm", "cortex-a710"),
    "another program": ({"release": "\nhello"}, "this is no qemu-user", ""),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_emulators_that_cannot_do_it_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    facts, told, cpu = OTHERS[kind]
    folder = emulator(tmp_path / "other", **facts)
    monkeypatch.setenv("ORT_MOBILE_QEMU", str(folder / "qemu-aarch64"))
    assert told in refusal(cpu=cpu)


def test_an_emulator_that_hangs_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = emulator(tmp_path / "hanging") / "qemu-aarch64"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setenv("ORT_MOBILE_QEMU", str(program))
    monkeypatch.setattr("device_runner.host_device.ANSWER_SECONDS", 0.1)
    assert "does not print its version within 0.1 seconds" in refusal()


@pytest.mark.parametrize(
    ("abi", "cpu", "told"),
    [
        ("arm64-v8a", "cortex-a999", "no CPU 'cortex-a999'"),
        ("x86_64", "cortex-a53", "for ARM's ABIs only name an ABI of ARM too"),
        ("armeabi-v7a", "i8mm", "no CPU 'i8mm' for armeabi-v7a"),
        ("riscv64", "", "does not run libraries for riscv64"),
        ("x86", "", "does not run libraries for x86"),
    ],
)
def test_abis_and_cpus_that_do_not_exist_are_refused(abi: str, cpu: str, told: str) -> None:
    assert told in refusal(abi, cpu)


def test_code_of_32_bits_has_an_emulator_and_a_c_library_of_its_own(tmp_path: Path) -> None:
    """They lie beside those for arm64, in the same folders."""
    assert "apt-get install qemu-user libc6-armel-cross" in refusal("armeabi-v7a")
    assert "no qemu-arm" in refusal("armeabi-v7a")
    program = emulator(tmp_path / "bin", cores="cortex-a7 max") / "qemu-aarch64"
    program.rename(program.with_name("qemu-arm"))
    assert "no lib/ld-linux.so.3" in refusal("armeabi-v7a")
    loader = tmp_path / "root" / "usr" / "arm-linux-gnueabi" / "lib" / "ld-linux.so.3"
    loader.parent.mkdir(parents=True)
    loader.touch()
    found = find_processor("armeabi-v7a", "cortex-a7")
    assert found.command == (str(tmp_path / "bin" / "qemu-arm"), "-cpu", "cortex-a7", "-L", str(loader.parents[1]))
    text = dict(cpu_files(CPUS_32["cortex-a7"], 1))["proc/cpuinfo"]
    assert ("CPU architecture: 7" in text, "0xc07" in text, "neon" in text) == (True, True, True)


def test_a_root_for_linux_has_the_c_library_and_the_files_of_the_cpu(tmp_path: Path) -> None:
    found = find_processor("arm64-v8a", "cortex-a53")
    root = tmp_path / "own"
    rooted = found.rooted(root)
    assert rooted.command == (*found.command[:-1], str(root))
    assert (root / "lib" / "ld-linux-aarch64.so.1").is_file()
    assert "0xd03" in (root / "proc" / "cpuinfo").read_text()
    assert Processor(abi="x86_64").rooted(tmp_path / "none") == Processor(abi="x86_64")


@pytest.mark.parametrize("name", CPUS)
def test_a_cpu_is_described_as_linux_describes_it(name: str, tmp_path: Path) -> None:
    files = dict(cpu_files(CPUS[name], 2))
    text = files["proc/cpuinfo"]
    assert text.count("processor\t: ") == text.count("\n\n") == 2
    assert ("asimddp" in text) == (name != "cortex-a53")
    assert ("i8mm" in text) == (name in ("cortex-a710", "i8mm", "sme", "sme-traps"))
    assert files["sys/devices/system/cpu/possible"] == "0-1\n"
    emulated = Processor(abi="arm64-v8a", cpu=name, command=("qemu",))
    folder = Path(emulated.environment(tmp_path)["ORT_MOBILE_ANDROID_CPU"])
    cores = len(os.sched_getaffinity(0))
    assert (folder / "proc/cpuinfo").read_text().count("processor") == cores
