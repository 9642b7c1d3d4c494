"""The probe's source and its builds: warnings, sanitizers, valgrind, the function table, and what Android wants."""

import contextlib
import importlib.util
import platform
import re
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline.partition.shown as claims
from device_runner import build
from device_runner.build import SOURCES, STANDARD, build_library, build_probe, host_compiler, zig_command
from device_runner.errors import RunnerError, SpecError, UnavailableError
from device_runner.library import find_archive
from device_runner.local import wheel_library
from device_runner.probe.elf import Elf, NotElf, Segment, parse_elf, read_elf, read_header
from device_runner.probe.protocol import ProbeAnswer, decode_answer, encode_inspection, encode_request
from device_runner.spec import Concurrency, Plugin, RunOptions, RunSpec, Stream
from pipeline.partition import stand_in
from tests.android_host.conftest import NEWEST, fetch

needs_zig = pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="the package ziglang is not installed")
needs_cc = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
ANDROID_ABIS = ("arm64-v8a", "x86_64")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, and no NDK."""
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))
    for name in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "CC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def execute(command: list[str], request: bytes, folder: Path) -> tuple[ProbeAnswer, str]:
    (folder / "request").write_bytes(request)
    done = subprocess.run([*command, str(folder / "request")], capture_output=True, timeout=120, check=False)
    answer = decode_answer(done.stdout)
    assert isinstance(answer, ProbeAnswer), (answer, done.stderr[-2000:])
    return answer, done.stderr.decode("utf-8", "replace")


def request_of(triples: list[tuple[str, str, str]]) -> bytes:
    """A request as the probe reads it, of any triples."""
    body = b"".join(text.encode() + b"\0" for triple in triples for text in triple)
    return body + b"check\0crc32\0%d\0" % zlib.crc32(body)


def bound(request: bytes) -> bytes:
    """The request of a session that captures its graph; tensors of the CPU's provider are bound where they lie."""
    strings = request.decode().split("\0")[:-4]
    return request_of([("set", "capture", "1"), *zip(*[iter(strings)] * 3, strict=True)])


def requests(models: Path, folder: Path) -> dict[str, bytes]:
    """One request for each way through the probe."""

    library = build_library(Path(claims.__file__).with_name("plugin"), stand_in.LIBRARY)
    plugin = Plugin(library=str(library), name="claims")
    callers = Concurrency(callers=3, seconds=0.1)
    shared = Concurrency(callers=2, own_sessions=True, shared_arena=True, global_threads=True, seconds=0.1)
    beside = msgspec.structs.replace(shared, beside=(str(models / "sum.onnx"),))
    placed = RunOptions(intra_op_threads=3, thread_cores="1-2", thread_nice=3)
    nothing = RunOptions(provider="OrtMobileClaims", session_config={stand_in.CLAIMS: "/dev/null"})

    def of(model: str, **values: object) -> bytes:
        quick = {"min_runs": 3, "min_seconds": 0.0, "library": str(wheel_library()), **values}
        return encode_request(RunSpec(id="x", model=str(models / model), outputs_folder=str(folder), **quick))  # type: ignore[arg-type]  # by name

    return {
        "ok": of("sum.onnx", dimensions={"N": 2}),
        "threads": of("sum.onnx", dimensions={"N": 2}, options=placed, concurrent=callers),
        "threads of all": of("sum.onnx", dimensions={"N": 2}, options=placed, concurrent=shared),
        "no such core": of("null.onnx", options=msgspec.structs.replace(placed, thread_cores="64")),
        "cold": of("sum.onnx", dimensions={"N": 2}, cold=True),
        "sustained": of("sum.onnx", dimensions={"N": 2}, sustain_seconds=0.2),
        "callers": of("sum.onnx", dimensions={"N": 2}, concurrent=callers),
        "beside": of("sum.onnx", dimensions={"N": 2}, concurrent=beside),
        "bound": bound(of("sum.onnx", dimensions={"N": 2})),
        "bound texts": bound(of("texts.onnx")),
        "no device memory": of("sum.onnx", dimensions={"N": 2}, options=RunOptions(device_tensors=True)),
        "stream": of("sum.onnx", dimensions={"N": 2}, stream=Stream(steps=5, states={"s": "a"})),
        "state of another shape": of("sum.onnx", dimensions={"N": 2}, stream=Stream(steps=5, states={"y": "a"})),
        "refused": of("null.onnx", options=RunOptions(provider="xnnpack", provider_options={"a": "b", "c": "d"})),
        "open": of("sum.onnx"),
        "broken": of("noise.ort"),
        "wrong shape": of("wrong_rank.onnx"),
        "texts": of("texts.onnx"),
        "hang": of("endless.onnx", timeout_seconds=2.0),
        "plugin": of("sum.onnx", plugin=plugin, options=RunOptions(provider="OrtMobileClaims")),
        "plugin refuses": of("sum.onnx", plugin=plugin, options=nothing, dimensions={"N": 2}),
        "no device": of("sum.onnx", plugin=plugin, options=RunOptions(provider="other")),
        "no plugin": of("sum.onnx", plugin=Plugin(library="/nowhere.so"), options=nothing),
        "inspect": encode_inspection(limit_seconds=20.0),
        "cut": of("null.onnx")[:-1],
        "empty": b"",
        "no such mode": request_of([("set", "mode", "guess")]),
        "nothing to run": request_of([("set", "mode", "run")]),
        "verb": b"do\0a\0b\0",
        "number": b"set\0warmup\0-1\0",
    }


@pytest.mark.native
@pytest.mark.skipif(platform.system() != "Linux", reason="sanitizers are run on Linux only")
@needs_cc
def test_clean_under_address_and_undefined_behaviour_sanitizers(models: Path, tmp_path: Path) -> None:
    flags = ("-g", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DPROBE_EXIT=exit")
    probe = build_probe(flags=flags)
    for name, request in requests(models, tmp_path).items():
        _, stderr = execute([str(probe)], request, tmp_path)
        assert not re.search(r"Sanitizer|runtime error", stderr), (name, stderr)


NOT_OURS = {"inside onnxruntime": "obj:*/libonnxruntime.*", "ld.so reads by words": "fun:_dl_catch_exception"}
KINDS = ("Addr1", "Addr2", "Addr4", "Addr8", "Addr16", "Cond", "Value8", "Overlap", "Leak")


@pytest.mark.native
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
@needs_cc
def test_clean_under_valgrind(models: Path, tmp_path: Path) -> None:
    probe = build_probe(flags=("-g", "-Werror", "-DPROBE_EXIT=exit"))
    rules = tmp_path / "suppressions"
    rules.write_text(
        "\n".join(
            f"{{\n  {name} {kind}\n  Memcheck:{kind}\n  ...\n  {frame}\n  ...\n}}"
            for name, frame in NOT_OURS.items()
            for kind in KINDS
        )
    )
    options = ["-q", "--trace-children=yes", "--leak-check=full", f"--suppressions={rules}"]
    command = ["valgrind", *options, f"--log-file={tmp_path}/log.%p", str(probe)]
    for name in ("ok", "threads", "threads of all", "cold", "sustained", "callers", "beside", "bound", "stream"):
        answer, _ = execute(command, requests(models, tmp_path)[name], tmp_path)
        assert answer.status == "ok", name
    logs = [path.read_text() for path in tmp_path.glob("log.*")]
    assert len(logs) >= 2
    assert not any(logs), "".join(logs)


CHECKED = """
#include <onnxruntime_c_api.h>
#include "ort_table.h"
#define CHECK(name, index, result, parameters) \\
    _Static_assert(offsetof(OrtApi, name) == index * sizeof(void (*)(void)), "place of " #name); \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(((OrtApi *)0)->name), ort_##name), "signature of " #name);
ORT_CALLS(CHECK)
_Static_assert(offsetof(OrtApiBase, GetApi) == offsetof(struct ort_base, get_api), "GetApi");
_Static_assert(offsetof(OrtApiBase, GetVersionString) == offsetof(struct ort_base, get_version), "GetVersionString");
_Static_assert(__builtin_types_compatible_p(OrtLoggingFunction, ort_logger), "OrtLoggingFunction");
_Static_assert(ORT_API_VERSION >= ORT_VERSION_OF_PLUGINS, "the header is older than the probe");
_Static_assert(OrtHardwareDeviceType_CPU == 0 && OrtHardwareDeviceType_GPU == 1, "hardware");
_Static_assert(OrtHardwareDeviceType_NPU == 2, "hardware");
_Static_assert((int)OrtDeviceAllocator == ORT_DEVICE_ALLOCATOR, "allocator");
_Static_assert((int)OrtMemTypeDefault == ORT_DEFAULT_MEMORY, "memory");
_Static_assert(ORT_SEQUENTIAL == 0 && ORT_PARALLEL == 1, "execution mode");
_Static_assert(ORT_DISABLE_ALL == 0 && ORT_ENABLE_BASIC == 1 && ORT_ENABLE_EXTENDED == 2, "levels");
_Static_assert(ORT_ENABLE_ALL == 99, "all");
_Static_assert(ORT_LOGGING_LEVEL_VERBOSE == 0 && ORT_LOGGING_LEVEL_FATAL == 4, "log levels");
_Static_assert((int)ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT == ELEMENT_FLOAT, "float");
_Static_assert((int)ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING == ELEMENT_STRING, "string");
_Static_assert((int)ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 == ELEMENT_UINT64, "uint64");
_Static_assert((int)ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 == ELEMENT_BFLOAT16, "bfloat16");
"""


def check_table(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    fetch(NEWEST)
    with zipfile.ZipFile(find_archive(NEWEST)) as archive:
        for name in archive.namelist():
            if name.startswith("headers/"):
                archive.extract(name, folder)
    headers = folder / "headers"
    (folder / "check.c").write_text(CHECKED)
    (folder / "ort_table.h").write_text(text)
    command = ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{folder}", f"-I{headers}", str(folder / "check.c")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.network
@needs_cc
def test_the_function_table_is_that_of_a_real_header(tmp_path: Path) -> None:
    text = (SOURCES / "ort_table.h").read_text()
    done = check_table(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^    X\(", text, re.MULTILINE)) > 40


@pytest.mark.network
@needs_cc
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("X(GetEpDevices, 303,", "X(GetEpDevices, 305,", "place of GetEpDevices"),
        ("X(CreateSession, 7,", "X(CreateSession, 8,", "place of CreateSession"),
        ("ReleaseEnv, 92, void, (OrtEnv *)", "ReleaseEnv, 92, void, (OrtStatus *)", "signature of ReleaseEnv"),
    ],
)  # fmt: skip
def test_a_wrong_table_would_be_found(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    text = (SOURCES / "ort_table.h").read_text()
    assert right in text
    done = check_table(tmp_path, text.replace(right, wrong))
    assert done.returncode
    assert said in done.stderr


def test_every_call_of_the_source_is_in_the_table() -> None:
    text = "".join(path.read_text() for path in SOURCES.glob("*.[ch]"))
    names = re.findall(r"^APPEND\((\w+)\)$", text, re.MULTILINE)  # a macro that makes a function for each
    calls = re.findall(r"ORT\(\S+, ([\w#]+)\)", text)
    used = {call.replace("##NAME##", name) for call in calls for name in names}
    listed = set(re.findall(r"X\((\w+), \d+", (SOURCES / "ort_table.h").read_text()))
    assert len(names) == 2
    assert used - {"name"} == listed


@pytest.mark.native
@needs_zig
@pytest.mark.parametrize("abi", ANDROID_ABIS)
def test_an_android_build_is_as_android_wants_it(abi: str) -> None:
    path = build_probe(abi, flags=("-Werror",))
    elf = read_elf(path)
    assert build.broken_rules(elf, stubs=True) == []
    assert elf.abi == abi
    assert path.stat().st_size < 200_000
    note = next(note.content for note in elf.notes if (note.owner, note.type) == ("Android", 1))
    assert int.from_bytes(note, "little") == 27
    assert {"__libc_init", "dlopen", "fork"} <= elf.undefined


@pytest.mark.native
@needs_zig
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("_Thread_local int local; int use(void) { return local++; }", "__emutls|thread-local"),
        ("int glob(const char *); int use(void) { return glob(0); }", "glob"),
        ("_Atomic int count; int use(void) { return count++; }", "__aarch64|undefined"),
        ("long double square(long double x) { return x * x; }", "__multf3"),
    ],
)
def test_what_android_does_not_have_breaks_the_build(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(SOURCES, sources)
    with (sources / "probe.c").open("a") as file:
        file.write(
            f"\n{code}\n__attribute__((used)) static void *const keep = (void *){code.split('(')[0].split()[-1]};\n"
        )
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(RunnerError) as caught:
        build_probe("arm64-v8a")
    assert re.search(said, caught.value.why)
    assert not [path for path in cache.rglob("*") if path.is_file() and not path.name.startswith(".lock-")]


@needs_zig
def test_a_rule_for_each_thing_that_can_be_wrong() -> None:
    good = read_elf(build_probe("arm64-v8a", flags=("-Werror",)))
    bad = Elf(32, 8, 2, 0, 0, (Segment(1, 7, 0, 1, 9, 9, 4096), Segment(7, 4, 0, 0, 1, 1, 1)), ((22, 0),))
    broken = build.broken_rules(bad, stubs=True)
    never = {"no helper of a compiler or of another C library", "relocations are of the plain kinds", "exports nothing",
             "takes from the system what the allow-list has", "wants no symbol versions"}  # fmt: skip
    assert {text for text, _ in (*build.PROGRAM_RULES, *build.STUB_RULES)} - set(broken) == never
    assert build.broken_rules(good, stubs=True) == []


def test_headers_declare_nothing_but_the_allow_list() -> None:
    folder = SOURCES / "android/include"
    text = "\n".join(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL) for path in folder.rglob("*.h"))
    functions = set(re.findall(r"^[\w ]+?[ *](\w+)\([^;]*\)[^;()]*(?:__attribute__\(\(.*\)\))?;$", text, re.MULTILINE))
    assert len(functions) > 40
    assert functions <= build.LIBC | build.LIBDL


@pytest.mark.native
@needs_zig
def test_a_build_is_made_once_and_is_the_same_anywhere(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_probe("arm64-v8a")
    time_ns = first.stat().st_mtime_ns
    assert build_probe("arm64-v8a").stat().st_mtime_ns == time_ns
    assert build_probe("arm64-v8a", api_level=30) != first
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "other"))
    monkeypatch.chdir("/")
    again = build_probe("arm64-v8a")
    assert again != first
    assert again.read_bytes() == first.read_bytes()
    assert list(cache.rglob(".build-*")) == []


@pytest.mark.native
@needs_zig
@pytest.mark.parametrize("target", build.LINUX_TARGETS)
def test_linux_builds(target: str) -> None:
    elf = read_header(build_probe(target))
    assert elf.abi == {"linux-aarch64": "arm64-v8a", "linux-armel": "armeabi-v7a"}.get(target, "x86_64")


@needs_zig
@pytest.mark.parametrize("target", ["aarch64-macos", "x86_64-macos"])
def test_the_source_compiles_for_macos(tmp_path: Path, target: str) -> None:
    command = [*(zig_command() or ()), "cc", "-target", target, *STANDARD, "-Werror"]
    command += ["-r", "-nostdlib", "-o", str(tmp_path / "probe.o"), *map(str, build.units())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_stripped_host_build_is_small_and_runs(probe: Path, tmp_path: Path) -> None:
    assert probe.stat().st_size < 200_000
    spec = RunSpec(id="x", model=str(tmp_path / "none.onnx"), library=str(wheel_library()))
    answer, _ = execute([str(probe)], encode_request(spec), tmp_path)
    assert answer.stage == "load"
    assert answer.ort_version in wheel_library().name
    assert "CPUExecutionProvider" in answer.available_providers


def test_ziglang_serves_where_there_is_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = build.find_recipe("host", 27, ())
    assert found.compiler.startswith("ziglang")
    assert found.steps[0][:3] == (sys.executable, "-m", "ziglang")


def test_a_probe_is_built_for_the_system_and_the_abi_that_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    asked = (("android", "x86_64"), ("android", "arm64-v8a"), ("linux", "x86_64"), ("linux", "arm64-v8a"))
    targets = [build.target_of(system, abi) for system, abi in asked]
    assert targets == ["x86_64", "arm64-v8a", "host", "linux-aarch64"]
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert build.target_of("linux", "x86_64") == "linux-x86_64"


@pytest.mark.parametrize("target", ["host", "arm64-v8a", "x86", "linux-aarch64"])
def test_no_compiler_is_a_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError) as caught:
        build_probe(target)
    assert "ziglang" in caught.value.remedy or "NDK" in caught.value.remedy


@pytest.mark.parametrize(("target", "level"), [("riscv", 27), ("arm64-v8a", 5)])
def test_targets_that_do_not_exist(target: str, level: int) -> None:
    with pytest.raises(SpecError):
        build_probe(target, api_level=level)


def fake_ndk(folder: Path) -> Path:
    """An NDK by its layout: compilers of the right names that call the one of this computer."""
    tools = folder / "toolchains/llvm/prebuilt/linux-x86_64/bin"
    tools.mkdir(parents=True)
    for triple in build.NDK_TRIPLES.values():
        path = tools / f"{triple}27-clang"
        path.write_text('#!/bin/sh\nexec gcc "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


@needs_cc
def test_an_ndk_is_preferred_and_its_result_judged(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(fake_ndk(tmp_path / "ndk")))
    assert "armv7a-linux-androideabi27-clang" in build.find_recipe("armeabi-v7a", 27, ()).steps[0][0]
    with pytest.raises(RunnerError, match="linker64"):
        build_probe("x86_64")
    with pytest.raises(UnavailableError, match="API level 30"):
        build_probe("x86_64", api_level=30)


@needs_cc
def test_a_compiler_that_fails_is_quoted(cache: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        build_probe(flags=("-fno-such-flag",))
    assert "no-such-flag" in caught.value.why
    assert list(cache.rglob("probe/*/*")) == []


@given(cut=st.integers(0, 40_000), place=st.integers(0, 35_000), byte=st.integers(0, 255))
def test_a_broken_elf_file_is_no_crash(cut: int, place: int, byte: int) -> None:
    data = bytearray(build_probe(flags=("-Werror",)).read_bytes()[:cut])
    if place < len(data):
        data[place] = byte
    with contextlib.suppress(NotElf):
        parse_elf(bytes(data))


@given(st.binary(max_size=300))
def test_noise_is_no_elf_file(data: bytes) -> None:
    with pytest.raises(NotElf):
        parse_elf(b"\x7fELF"[: len(data) % 4] + data)


def test_the_wheels_library_is_read() -> None:
    elf = read_elf(wheel_library())
    assert elf.bits == 64
    assert "OrtGetApiBase" in dict(elf.symbols)
    assert elf.page_bytes >= 4096
    assert elf.abi == read_header(wheel_library()).abi == {"x86_64": "x86_64"}.get(platform.machine(), "arm64-v8a")


def test_what_libraries_print_does_not_reach_the_document(tmp_path: Path, probe: Path) -> None:
    (tmp_path / "noisy.c").write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        '__attribute__((constructor)) static void say(void) { puts("{\\"probe\\": 9}"); fflush(stdout); }\n'
        'void *OrtGetApiBase(void) { fputs("about to die\\n", stderr); abort(); }\n'
    )
    command = [
        *host_compiler()[0],
        "-shared",
        "-fPIC",
        "-o",
        str(tmp_path / "noisy.so"),
        str(tmp_path / "noisy.c"),
    ]
    subprocess.run(command, check=True)
    spec = RunSpec(id="x", model=str(tmp_path / "none.onnx"), library=str(tmp_path / "noisy.so"))
    answer, stderr = execute([str(probe)], encode_request(spec), tmp_path)
    assert (answer.kind, answer.signal, answer.stage) == ("crash", "SIGABRT", "open")
    assert "about to die" in stderr


@pytest.mark.parametrize(
    ("triples", "said"),
    [
        ([("set", "mode", "guess")], "unknown mode: guess"),
        ([("set", "mode", "run")], "no library is given"),
        ([("set", "mode", "run"), ("set", "library", "x.so")], "no model is given"),
    ],
)
def test_what_a_mode_needs_is_told(triples: list[tuple[str, str, str]], said: str, probe: Path, tmp_path: Path) -> None:
    answer, _ = execute([str(probe)], request_of(triples), tmp_path)
    assert (answer.kind, answer.stage, answer.message) == ("bad_options", "request", said)


def test_the_usage_is_told(probe: Path) -> None:
    done = subprocess.run([str(probe)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert probe.name in done.stderr
