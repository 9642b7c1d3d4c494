"""The table of symbols, what is generated from it, and what a library may import."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from device_runner.android_host.build import (
    ADAPTERS,
    MACHINES,
    SOURCES,
    How,
    assembler,
    build_host,
    check_imports,
    parse_table,
    shim_libraries,
    symbols_of,
    table,
    version_script,
)
from device_runner.errors import UnavailableError
from device_runner.host_device import check_host


def test_every_adapter_of_the_table_is_written_and_every_written_one_is_listed() -> None:
    text = "\n".join(path.read_text() for path in (SOURCES / "shims").glob("*.c"))
    written = set(re.findall(r"^(?:extern )?ADAPTER .*?\bbionic_(\w+)", text, re.MULTILINE))
    written |= set(re.findall(r"\*bionic_(std\w+)", text))
    written |= set(re.findall(r"\\nbionic_(\w+): ", text))  # in assembly
    assert written == {symbol.name for symbol in table() if symbol.how in (How.ADAPT, How.OBJECT)}


def test_every_shim_has_its_sources() -> None:
    assert set(shim_libraries()) == set(ADAPTERS)
    listed = {name for names in ADAPTERS.values() for name in names}
    assert listed == {path.name for path in (SOURCES / "shims").glob("*.c")}


def test_functions_with_bionics_own_structures_are_never_passed_on() -> None:
    passed = {symbol.name for symbol in table() if symbol.how is How.PASS}
    assert not passed & {"sigaction", "sem_init", "sem_wait", "fprintf", "fwrite", "nftw", "sysconf", "llroundl"}


def test_functions_whose_structures_have_another_size_on_32_bits_are_adapted_there() -> None:
    adapted = {symbol.name for symbol in symbols_of("libc.so", "arm") if symbol.how is How.ADAPT}
    assert adapted >= {"pthread_mutex_lock", "pthread_create", "stat", "readdir", "mbrtowc", "__mmap2"}
    wide = {symbol.name: symbol.how for symbol in symbols_of("libc.so", "aarch64")}
    assert (wide["stat"], "__mmap2" in wide) == (How.PASS, False)


@pytest.mark.parametrize("text", ["adapt libc.so a\npass libm.so a", "pass libc.so a a", "arm:pass libc.so a a"])
def test_a_symbol_listed_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="listed twice: a"):
        parse_table(text)


def test_thunks_of_every_machine_name_every_symbol_once() -> None:
    symbols = tuple(symbol for symbol in table() if symbol.library == "libm.so")
    for machine in MACHINES.values():
        text = assembler(symbols, machine)
        assert re.findall(r"\.symver \w+, (\w+)@LIBC$", text, re.MULTILINE) == [symbol.name for symbol in symbols]
    assert version_script(symbols).startswith("LIBC {")
    assert "global: ASharedMemory_create" in version_script(
        tuple(symbol for symbol in table() if symbol.library == "libandroid.so")
    )


def test_unknown_imports_and_libraries_are_named() -> None:
    with pytest.raises(UnavailableError) as caught:
        check_imports(["malloc", "fancy_call"], ["libc.so", "libvulkan.so"], where="x.so")
    assert "fancy_call" in caught.value.what
    assert "libvulkan.so" in caught.value.what
    assert "malloc" not in caught.value.what
    check_imports(["malloc", "__gcov_dump"], ["libc.so", "liblog.so"], where="x.so")


def test_shims_load_together_and_pass_calls_on() -> None:
    try:
        check_host()
    except UnavailableError as missing:
        pytest.skip(f"android-host: {missing}")
    folder = build_host()
    for name in shim_libraries():
        ctypes.CDLL(str(folder / name))
    shared = ctypes.CDLL(str(folder / "libandroid.so"))
    shared.ASharedMemory_getSize.restype = ctypes.c_size_t
    descriptor = shared.ASharedMemory_create(b"test", ctypes.c_size_t(12345))
    assert shared.ASharedMemory_getSize(descriptor) == 12345
    versioned = ctypes.CDLL(None).dlvsym
    versioned.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(ctypes.CDLL(str(folder / "libc.so"))._handle)
    dirname = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_char_p)(versioned(handle, b"dirname", b"LIBC"))
    wanted = {b"/a/b.onnx": b"/a", b"b.onnx": b".", b"/a//b//": b"/a", b"/": b"/", b"": b".", b"/x": b"/", b"a/b": b"a"}
    assert {path: dirname(path) for path in wanted} == wanted
    strlen = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_char_p)(versioned(handle, b"strlen", b"LIBC"))
    assert strlen(b"four") == 4


BUILDER = """
import sys
from device_runner import build
from device_runner.android_host.build import build_host
made = build.make
build.make = lambda *given: (print("made", flush=True), made(*given))
build_host()
"""


@pytest.mark.long
def test_two_processes_that_need_the_shims_build_them_once(tmp_path: Path) -> None:
    try:
        check_host()
    except UnavailableError as missing:
        pytest.skip(f"android-host: {missing}")
    environment = {**os.environ, "ORT_MOBILE_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", BUILDER], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    assert "".join(process.communicate(timeout=300)[0] for process in both) == "made\n"
    assert [process.returncode for process in both] == [0, 0]
