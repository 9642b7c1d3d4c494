"""The lines of code for apps: written for every recorded option, and taken by the real compilers and libraries."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runner.spec import Allocator, ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions
from pipeline.release.app_code import code_for, cpp, cpp_helpers, java, kotlin, swift
from pipeline.release.source_code import java_text, swift_text
from tests.debian_packages import unpacked
from tests.features.android.jvm import fetched
from tests.features.android.samples import JAVAC
from tests.ort_models import conv_relu, convert

JAR = "jvm:1.28.0"
FILE = 'my "model" $x.ort'
CPU = RunOptions(
    intra_op_threads=2, inter_op_threads=3, execution_mode=ExecutionMode.PARALLEL, cpu_arena=False,
    memory_pattern=False, optimization_level=OptimizationLevel.EXTENDED,
    session_config={"session.intra_op.allow_spinning": "0", "app.note": 'a "quoted" \\ $value\n\x01'},
)  # fmt: skip
PLACED = RunOptions(intra_op_threads=4, thread_cores="big", thread_nice=-4)
NNAPI = RunOptions(provider="nnapi", flags=(NnapiFlag.USE_FP16, NnapiFlag.CPU_DISABLED))
XNNPACK = RunOptions(provider="xnnpack", provider_options={"intra_op_num_threads": "4"})
COREML = RunOptions(provider="coreml", provider_options={"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"})
CAPTURE = RunOptions(provider="webgpu", provider_options={"enableGraphCapture": "1", "preferredLayout": "NCHW"})
OTHERS = (
    NNAPI, RunOptions(provider="nnapi"), XNNPACK, RunOptions(provider="xnnpack"), COREML, RunOptions(provider="qnn"),
    RunOptions(provider="webgpu"), CAPTURE, RunOptions(provider="zeta */ npu"), PLACED,
    *(RunOptions(optimization_level=level) for level in OptimizationLevel),
)  # fmt: skip

SWIFT_COREML = (
    'try options.appendExecutionProvider("CoreML", '
    'providerOptions: ["MLComputeUnits": "ALL", "ModelFormat": "MLProgram"])'
)
CPP_INSTEAD = "use the C++ API for the same times."
SWIFT_LACKS = (
    "// The Objective-C API cannot set inter-op threads, parallel execution, memory pattern, memory arena: "
    + CPP_INSTEAD
)
CPP_NNAPI = (
    "Ort::ThrowOnError(OrtSessionOptionsAppendExecutionProvider_Nnapi("
    "options, NNAPI_FLAG_USE_FP16 | NNAPI_FLAG_CPU_DISABLED));"
)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (kotlin(NNAPI, "m.ort"), ["options.addNnapi(EnumSet.of(NNAPIFlags.USE_FP16, NNAPIFlags.CPU_DISABLED))"]),
        (kotlin(XNNPACK, "m.ort"), ['options.addXnnpack(mapOf("intra_op_num_threads" to "4"))']),
        (kotlin(CPU, "m.ort"), ['options.addConfigEntry("app.note", "a \\"quoted\\" \\\\ \\$value\\n\\u0001")']),
        (java(RunOptions(provider="nnapi"), "m.ort"), ["options.addNnapi();"]),
        (java(CPU, "m.ort"), ["options.setIntraOpNumThreads(2);", "options.setCPUArenaAllocator(false);"]),
        (java(PLACED, "m.ort"), ["// The Java API cannot set cores and nice value of threads: " + CPP_INSTEAD]),
        (cpp(PLACED, "m.ort"), ["PlaceThreads(options, FastCores(), -4);"]),
        (swift(COREML, "m.basic.ort"), [
            SWIFT_COREML,
            'let path = Bundle.main.path(forResource: "m.basic", ofType: "ort")!',
        ]),
        (swift(CPU, "m.ort"), [
            SWIFT_LACKS,
        ]),
        (cpp(NNAPI, "m.ort"), [
            CPP_NNAPI,
        ]),
        (cpp(XNNPACK, "m.ort"), ['options.AppendExecutionProvider("XNNPACK", {{"intra_op_num_threads", "4"}});']),
    ],
)  # fmt: skip
def test_recorded_options_become_calls(code: tuple[str, ...], lines: list[str]) -> None:
    assert set(lines) <= set(code)


def test_a_written_out_escape_stays_text() -> None:
    text = "\\u0041 \x01"
    assert java_text(text) == '"\\\\u0041 \\u0001"'
    assert swift_text(text) == '"\\\\u0041 \\u{1}"'
    assert f"options.AddConfigEntry({chr(34)}k{chr(34)}, {chr(34)}\\\\u0041 \\001{chr(34)});" in cpp(
        RunOptions(session_config={"k": text}), "m.ort"
    )


def test_every_platform_has_the_languages_of_its_apps() -> None:
    names = {platform: list(code_for(platform, CPU, "m.ort")) for platform in ("android", "ios", "linux")}
    assert names == {"android": ["Kotlin", "Java", "C++"], "ios": ["Swift", "C++"], "linux": ["C++", "Java"]}


def java_class(name: str, options: RunOptions) -> str:
    """A class whose method `open` is the code of the README."""
    lines = java(options, FILE)
    start = lines.index("")
    imports, body = "\n".join(lines[:start]), "\n".join(lines[start:])
    method = f"static OrtSession open(String path) throws Exception {{\n{body}\nreturn session;\n}}"
    return f"{imports}\nclass {name} {{\n{method}\n}}\n"


MAIN = """
public class Main {
    public static void main(String[] arguments) throws Exception {
        System.out.println(A0.open(arguments[0]).getInputNames());
        System.exit(0);
    }
}
"""


@pytest.mark.network
def test_java_compiles_against_the_package_and_opens_a_model(tmp_path: Path) -> None:
    library = fetched(JAR)
    for number, options in enumerate((CPU, *OTHERS)):
        (tmp_path / f"A{number}.java").write_text(java_class(f"A{number}", options), "utf-8")
    (tmp_path / "Main.java").write_text(MAIN)
    sources = map(str, tmp_path.glob("*.java"))
    command = [*JAVAC, "-encoding", "UTF-8", "-cp", str(library), "-d", str(tmp_path), *sources]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    model = convert(conv_relu(), tmp_path / "model.ort")
    ran = subprocess.run(
        ["java", "-cp", f"{library}:{tmp_path}", "Main", str(model)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("[")


@pytest.mark.network
def test_cpp_compiles_against_the_headers(tmp_path: Path) -> None:
    compiler = next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)
    if not compiler:
        pytest.skip("no C++ compiler")
    headers = unpacked("libonnxruntime-dev", with_dependencies=False) / "usr/include/onnxruntime"
    # nnapi_provider_factory.h is in the AAR only: what of it is used is declared here as it stands there.
    (tmp_path / "nnapi_provider_factory.h").write_text(
        "#pragma once\nenum NNAPIFlags { NNAPI_FLAG_USE_NONE = 0, NNAPI_FLAG_USE_FP16 = 1, NNAPI_FLAG_USE_NCHW = 2,"
        " NNAPI_FLAG_CPU_DISABLED = 4, NNAPI_FLAG_CPU_ONLY = 8 };\n"
        'extern "C" OrtStatus* OrtSessionOptionsAppendExecutionProvider_Nnapi(OrtSessionOptions*, uint32_t);\n'
    )
    parts = ["#include <onnxruntime_cxx_api.h>", *cpp_helpers([PLACED])]
    older = [one for one in OTHERS if one.optimization_level is not OptimizationLevel.LAYOUT]  # came with 1.23
    for number, options in enumerate((CPU, *older)):
        lines = cpp(options, FILE)
        start = len(lines) - lines[::-1].index("")
        parts += [line for line in "\n".join(lines[:start]).splitlines() if line.startswith("#")]
        parts += [f"void open{number}(const char* path) {{", *lines[start:], "}"]
    (tmp_path / "app.cc").write_text("\n".join(parts), "utf-8")
    include = ("-I", str(headers), "-I", str(tmp_path))
    command = [compiler, "-std=c++17", "-fsyntax-only", *include, str(tmp_path / "app.cc")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cpp_says_how_coreml_is_appended_by_its_devices() -> None:
    lines = cpp(COREML, "m.onnx")
    pairs = '{{"MLComputeUnits", "ALL"}, {"ModelFormat", "MLProgram"}}'
    given = f"std::unordered_map<std::string, std::string>{pairs}"
    assert f"// options.AppendExecutionProvider_V2(environment, devices, {given});" in lines
    assert not [line for line in cpp(XNNPACK, "m.onnx") if "_V2" in line]


@pytest.mark.parametrize(("write", "api"), [(kotlin, "Java"), (java, "Java"), (swift, "Objective-C")])
def test_no_graph_is_captured_where_nothing_can_be_bound(
    write: Callable[[RunOptions, str], tuple[str, ...]], api: str
) -> None:
    on_device = RunOptions(provider="webgpu", device_tensors=True)
    assert f"// The {api} API cannot set device tensors: {CPP_INSTEAD}" in "\n".join(write(on_device, "m.onnx"))
    assert "Ort::IoBinding" in "\n".join(cpp(on_device, "m.onnx"))
    text = "\n".join(write(CAPTURE, "m.onnx"))
    assert f"// The {api} API cannot set graph capture: {CPP_INSTEAD}" in text
    assert "enableGraphCapture" not in text
    assert '"NCHW"' in text
    assert "{ //" not in text  # a brace behind a comment's start closes nothing
    in_cpp = "\n".join(cpp(CAPTURE, "m.onnx"))
    assert '{"enableGraphCapture", "1"}' in in_cpp
    assert "Ort::IoBinding" in in_cpp


@pytest.mark.parametrize("write", [cpp, java, kotlin])
def test_an_allocator_is_named_once_in_each_language_of_linux(
    write: Callable[[RunOptions, str], tuple[str, ...]],
) -> None:
    text = "\n".join(write(RunOptions(allocator=Allocator.MIMALLOC), "m.ort"))
    assert text.count("// Start the process with LD_PRELOAD=libmimalloc.so: no API replaces the allocator.\n") == 1


@pytest.mark.parametrize(("write", "background"), [(kotlin, "thread {"), (java, "new Thread("), (swift, ".async {")])
def test_a_gpu_falls_back_to_the_cpu_and_warms_up_in_the_background(
    write: Callable[[RunOptions, str], tuple[str, ...]], background: str
) -> None:
    options = RunOptions(provider="webgpu", provider_options={"preferredLayout": "NCHW"}, intra_op_threads=2)
    lines = "\n".join(write(options, "m.onnx"))
    assert lines.count("preferredLayout") == 1
    assert "WebGPU is not there, so the CPU runs the model" in lines
    assert lines.index("the CPU runs the model") < lines.index("compiles shaders") < lines.index(background)
