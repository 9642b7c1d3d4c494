"""Code for other kinds of apps: compiled and run where the tools can be had, else compared with published names."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest

from device_runner.spec import ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions
from pipeline.features.languages.guarded import UNGUARDED
from pipeline.features.languages.snippet import LANGUAGES, asset_folder, other_release
from tests.command import Done, ort_mobile
from tests.debian_packages import unpacked
from tests.features.android.samples import bundle, shipped, signature, tensor, two_classes
from tests.features.sizes import PICKED, expected, two_sizes

FACTS = Path(__file__).resolve().parents[3] / "docs/facts/release_consumers.md"
HOSTILE = 'a "quoted" \\ ${value} \\u0041 \n*/ \x01 \\'
EVERYTHING = RunOptions(
    intra_op_threads=2, inter_op_threads=3, execution_mode=ExecutionMode.PARALLEL, cpu_arena=False,
    memory_pattern=False, optimization_level=OptimizationLevel.EXTENDED, session_config={"app.note": HOSTILE},
)  # fmt: skip
NNAPI = RunOptions(provider="nnapi", flags=(NnapiFlag.USE_FP16, NnapiFlag.CPU_DISABLED))
XNNPACK = RunOptions(provider="xnnpack", provider_options={"intra_op_num_threads": "4"})
COREML = RunOptions(provider="coreml", provider_options={"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"})
WAYS = (NNAPI, XNNPACK, COREML, EVERYTHING)


def printed(folder: Path, language: str, *more: str, code: int | None = 0) -> Done:
    return ort_mobile("release", "snippet", folder / "bundle", "--for", language, *more, code=code)


def sample(folder: Path, *ways: RunOptions, **more: Any) -> None:
    bundle(folder, (shipped(runs=ways or WAYS, file="models/m.ort", **more),))


def reference(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = (np.arange(64, dtype=np.float32) / np.float32(10) - np.float32(3)).reshape(1, 1, 8, 8)
    session = onnxruntime.InferenceSession(str(folder / "bundle/models/m.ort"))
    return x, np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("language", "platform", "release", "said"),
    [
        ("flutter", "android", "1.29.0", "brings ONNX Runtime 1.25.0, not ONNX Runtime 1.29.0, which was tested"),
        ("flutter", "android", "1.25.1", ""),
        ("flutter", "ios", "1.25.1", "brings on ios is not known here, and ONNX Runtime 1.25.1 was tested"),
        ("react-native", "android", "1.25.1", "takes the newest ONNX Runtime when the app is built"),
        ("react-native", "ios", "1.25.1", "when its pods are installed (onnxruntime-c, without a release)"),
        ("kotlin", "android", "1.29.0", ""),
        ("maui", "ios", "1.29.0", ""),
    ],
)
def test_a_package_that_brings_another_release_is_named(language: str, platform: str, release: str, said: str) -> None:
    assert said in "".join(other_release(language, release, platform))
    assert bool(other_release(language, release, platform)) is bool(said)


def test_the_code_says_which_release_its_package_brings(tmp_path: Path) -> None:
    sample(tmp_path, RunOptions(), ort_release="1.29.0")
    (warning,) = other_release("flutter", "1.29.0", "android")
    assert f"\n// {warning}\n" in printed(tmp_path, "flutter").out
    assert "\n// onnxruntime-react-native 1.24.3 takes the newest" in printed(tmp_path, "react-native").out
    assert "which was tested" not in printed(tmp_path, "kotlin").out


@pytest.mark.parametrize("language", ["kotlin", "maui"])
def test_a_large_model_is_opened_by_its_path(tmp_path: Path, language: str) -> None:
    """The heap of an Android app ends at some 256 MB."""
    sample(tmp_path, RunOptions())
    code = printed(tmp_path, language).out
    assert not re.search(r"readBytes|readAllBytes|byte\[\]|MemoryStream|ToArray", code)
    readme = (tmp_path / "bundle/README.md").read_text()
    assert "readBytes" not in readme
    assert "FileChannel.MapMode.READ_ONLY" in readme


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_way_is_in_the_code_in_its_order(tmp_path: Path, language: str) -> None:
    sample(tmp_path)
    result = printed(tmp_path, language)
    places = [result.out.rindex(name) for name in ("nnapi+", "xnnpack+", "coreml+", "cpu+")]
    assert places == sorted(places)
    assert "\x01" not in result.out
    assert "for every device" in result.out


@pytest.mark.parametrize(
    ("language", "asset"),
    [
        ("kotlin", '"demo-app/models/m.ort"'),
        ("flutter", '"assets/demo-app/models/m.ort"'),
        ("maui", '"demo-app/models/m.ort"'),
    ],
)
def test_assets_lie_in_a_folder_of_the_bundle(tmp_path: Path, language: str, asset: str) -> None:
    sample(tmp_path)
    assert asset in printed(tmp_path, language).out


@pytest.mark.parametrize(
    ("name", "folder"),
    [("Demo app", "demo-app"), ("_x/../y", "x-y"), ("a.scc", "a-scc"), ("CVS", "bundle-cvs"), ("音声", "bundle")],
)
def test_a_folder_of_assets_is_one_plain_name(name: str, folder: str) -> None:
    assert asset_folder(name) == folder


def test_python_opens_the_model_with_the_recorded_options(tmp_path: Path) -> None:
    sample(tmp_path)
    names: dict[str, Any] = {}
    exec(printed(tmp_path, "python").out, names)
    session = names["open_m"](str(tmp_path / "bundle/models/m.ort"))
    used = session.get_session_options()
    assert used.intra_op_num_threads == 2
    assert used.inter_op_num_threads == 3
    assert used.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert (used.enable_mem_pattern, used.enable_cpu_mem_arena) == (False, False)
    assert used.get_session_config_entry("app.note") == HOSTILE
    x, expected = reference(tmp_path)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


def test_devices_of_a_class_have_a_function_of_their_own(tmp_path: Path) -> None:
    two_classes(tmp_path)
    code = printed(tmp_path, "python").out
    assert re.findall(r"# for (.*)\n(?:#.*\n)*def (\w+)", code) == [
        ("all other devices", "open_m"),
        ("chip Qualcomm SM8550, ABI arm64-v8a, API level 31 or higher", "open_m_2"),
        ("chip msm8998, ABI arm64-v8a, API level 27 or higher", "open_m_3"),
    ]


def test_what_a_package_cannot_set_is_reported(tmp_path: Path) -> None:
    sample(tmp_path)
    told = {name: json.loads(printed(tmp_path, name, "--json", "-").out)["lost"] for name in LANGUAGES}
    assert told["cpp"] == told["maui"] == []
    (flags,) = told["python"]
    assert "without flags of NNAPI, which Python cannot set" in flags
    assert told["react-native"] == [
        "m: xnnpack+intra_op_num_threads=4 without options of the provider, which onnxruntime-react-native cannot set",
        *[line for line in told["react-native"] if "without session config entries, which" in line],
    ]
    assert len(told["react-native"]) == 2
    assert len(told["flutter"]) == 4
    assert "warning: m: " in printed(tmp_path, "flutter").err


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_without_a_guard_says_so_where_something_else_than_the_cpu_runs_a_model(
    tmp_path: Path, language: str
) -> None:
    sample(tmp_path, NNAPI, EVERYTHING)
    assert f"no guard: {UNGUARDED}" in printed(tmp_path, language).out
    (tmp_path / "cpu").mkdir()
    sample(tmp_path / "cpu", EVERYTHING)
    assert "guard" not in printed(tmp_path / "cpu", language).out


@pytest.mark.parametrize(
    ("language", "more", "message"),
    [
        ("react-native", (), "onnxruntime-react-native has no call for the provider zeta"),
        ("flutter", (), "flutter_onnxruntime has no call for the provider zeta"),
        ("maui", (), "Microsoft.ML.OnnxRuntime has no call for the provider zeta"),
        ("cpp", ("--model", "other"), "the model 'other' does not ship to phone"),
        ("cpp", ("--target", "tv"), "no target 'tv' for cpp apps"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, language: str, more: tuple[str, ...], message: str) -> None:
    sample(tmp_path, RunOptions(provider="zeta"))
    result = printed(tmp_path, language, *more, code=2)
    assert message in result.err
    assert result.out == ""


def test_a_way_without_a_call_is_left_out_and_said(tmp_path: Path) -> None:
    sample(tmp_path, RunOptions(provider="webgpu"), EVERYTHING)
    result = printed(tmp_path, "flutter")
    assert "warning: m: without webgpu, as flutter_onnxruntime has no call for the provider webgpu" in result.err
    assert "// m: without webgpu, as flutter_onnxruntime has no call" in result.out
    assert "cpu+" in result.out
    assert "webgpu" not in re.sub(r"//.*", "", result.out)


def test_two_models_of_one_function_are_refused(tmp_path: Path) -> None:
    bundle(tmp_path, (shipped("a.b"), shipped("a-b")), (signature("a.b"), signature("a-b")))
    assert "would both be opened by open_a_b" in printed(tmp_path, "cpp", code=2).err
    printed(tmp_path, "cpp", "--model", "a-b")


def published(start: str) -> set[str]:
    """The words of docs/facts/release_consumers.md on a package, all in code there."""
    text = FACTS.read_text("utf-8")
    own = text[text.index(start) :].split("\n- ")[0]
    return {word for code in re.findall(r"`([^`]*)`", own) for word in re.findall(r"\w+", code)}


@pytest.mark.parametrize(
    ("language", "start", "pattern"),
    [
        ("flutter", "- Flutter, ", r"(\w+)(?=: (?:\[|\d|true|false))|OrtProvider\.(\w+)|OnnxRuntime\(\)\.(\w+)"),
        ("maui", "- .NET MAUI, ", r"options\.(\w+)|FileSystem\.(\w+)|new (InferenceSession|SessionOptions)"),
    ],
)
def test_code_that_is_not_compiled_uses_published_names_only(
    tmp_path: Path, language: str, start: str, pattern: str
) -> None:
    sample(tmp_path)
    code = "\n".join(line.partition("//")[0] for line in printed(tmp_path, language).out.splitlines())
    used = {name for found in re.findall(pattern, code) for name in ((found,) if isinstance(found, str) else found)}
    assert len(used - {""}) > 6
    assert used - {""} - published(start) == set()


CPP_MAIN = """
#include <cstdio>
#include <cstdlib>
int main(int, char** arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "app");
    Ort::Session session = open_m(environment, arguments[1]);
    std::vector<float> x(64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 10.0f - 3.0f;
    const int64_t shape[] = {1, 1, 8, 8};
    const char* inputs[] = {"x"};
    const char* outputs[] = {"y"};
    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto value = Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), shape, 4);
    auto results = session.Run(Ort::RunOptions{nullptr}, inputs, &value, 1, outputs, 1);
    const float* y = results[0].GetTensorData<float>();
    for (int i = 0; i < 128; ++i) std::printf("%.9g ", y[i]);
    return std::system("grep -h Cpus_allowed_list /proc/$PPID/task/*/status >&2;"
                       "awk '{ print \\"nice\\", $19 }' /proc/$PPID/task/*/stat >&2");
}
"""


def built(folder: Path, code: str, *more: Path, library: Path | None = None) -> Path:
    """A program of code and files, with the headers of Debian's ONNX Runtime against a library, that of the wheel."""
    compiler = next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)
    if not compiler:
        pytest.skip("no C++ compiler")
    headers = unpacked("libonnxruntime-dev", with_dependencies=False) / "usr/include/onnxruntime"
    library = library or next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    (folder / "libonnxruntime.so.1").symlink_to(library)
    (folder / "app.cc").write_text(code, "utf-8")
    command = [
        compiler,
        "-std=c++17",
        "-Wall",
        "-I",
        str(headers),
        str(folder / "app.cc"),
        *map(str, more),
        str(library),
    ]
    link = ["-Wl,-rpath," + str(folder), "-o", str(folder / "app")]
    compiled = subprocess.run([*command, *link], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return folder / "app"


SIZES_MAIN = """
#include <cstdio>
int main(int, char** arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "app");
    const std::string folder = arguments[1];
    for (int i = 2; arguments[i]; i += 2) {
        const Shape shape = {1, std::stoi(arguments[i]), std::stoi(arguments[i + 1])};
        std::vector<float> x(static_cast<std::size_t>(shape[1] * shape[2]));
        for (std::size_t element = 0; element < x.size(); ++element) x[element] = static_cast<float>(element);
        const SizeOfM size = size_of_m(shape);
        const bool open = size.xShape == shape;
        std::vector<float> filled = open ? x : x_for_m(x.data(), shape, size.xShape);
        Ort::Session session = size.open(environment, (folder + "/" + size.file).c_str());
        const char* inputs[] = {"x"};
        const char* outputs[] = {"y"};
        auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
        auto value = Ort::Value::CreateTensor<float>(memory, filled.data(), filled.size(), size.xShape.data(), 3);
        auto results = session.Run(Ort::RunOptions{nullptr}, inputs, &value, 1, outputs, 1);
        const auto given = results[0].GetTensorTypeAndShapeInfo().GetShape();
        std::printf("%s %dx%dx%d", size.file.substr(0, size.file.find('.')).c_str(), (int)given[0], (int)given[1],
                    (int)given[2]);
        for (std::int64_t element = 0; element < given[1] * given[2]; ++element)
            std::printf(" %.1f", results[0].GetTensorData<float>()[element]);
        std::printf("\\n");
    }
}
"""


@pytest.mark.network
@pytest.mark.long
@pytest.mark.parametrize(
    "shared", [pytest.param(False, id="each"), pytest.param(True, marks=pytest.mark.nightly, id="shared")]
)
def test_cpp_picks_the_smallest_size_that_an_input_fits_into(shared: bool, tmp_path: Path) -> None:
    bundle = two_sizes(tmp_path, shared=shared)
    code = ort_mobile("release", "snippet", bundle, "--for", "cpp").out
    code = re.sub(r"\n.*AppendExecutionProvider_Nnapi.*", "", code)  # Debian's headers are those without NNAPI
    app = built(tmp_path, code + SIZES_MAIN)
    axes = [str(axis) for shape in PICKED for axis in shape[1:]]
    ran = subprocess.run([str(app), str(bundle / "models"), *axes], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == list(map(expected, PICKED))


TWO_MAIN = """
Ort::Session open_other(const Ort::Env& environment, const char* path);
int main(int, char** arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "app");
    try { open_m(environment, arguments[1]); } catch (const Ort::Exception&) { return 2; }
    try { open_other(environment, arguments[1]); } catch (const Ort::Exception&) { return 0; }
    return 3;
}
"""
OTHER = """
Ort::Session open_other(const Ort::Env& environment, const char* path) { return open_m(environment, path); }
"""


@pytest.mark.network
@pytest.mark.long
def test_cpp_of_two_bundles_in_one_program_opens_each_with_its_own_options(tmp_path: Path) -> None:
    """Both have a model of one name, so functions of one name; that of the second has options that cannot be set."""
    code = []
    for name, options in (("first", {}), ("second", {"session.intra_op_thread_affinities": "no"})):
        (tmp_path / name).mkdir()
        sample(tmp_path / name, RunOptions(intra_op_threads=2, session_config=options))
        code.append(printed(tmp_path / name, "cpp").out)
    (tmp_path / "other.cc").write_text(code[1] + OTHER)
    app = built(tmp_path, code[0] + TWO_MAIN, tmp_path / "other.cc")
    assert subprocess.run([str(app), str(tmp_path / "first/bundle/models/m.ort")], check=False).returncode == 0


def test_other_languages_say_that_they_pick_no_size(tmp_path: Path) -> None:
    open_sizes, sized = tensor("x", 1, 1, "n", 8), tensor("x", 1, 1, 8, 8)
    models = (signature("m", inputs=(open_sizes,)), signature("m-8", inputs=(sized,), size_of="m"))
    bundle(tmp_path, (shipped(runs=(EVERYTHING,)), shipped("m-8", runs=(EVERYTHING,))), models)
    for language in ("python", "maui", "react-native"):
        done = printed(tmp_path, language)
        assert "m: without the choice of the size that inputs fit into" in done.err
        assert "m: without the choice of the size that inputs fit into" in done.out
    assert "size_of_m" not in printed(tmp_path, "cpp", "--model", "m-8").out
    assert "Fits(xShape, size.xShape, false)" in printed(tmp_path, "cpp").out


@pytest.mark.network
def test_cpp_compiles_and_gives_the_outputs_of_the_bundle(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    placed = msgspec.structs.replace(EVERYTHING, thread_cores=str(core + 1), thread_nice=9)
    sample(tmp_path, XNNPACK, COREML, placed)
    app = built(tmp_path, printed(tmp_path, "cpp").out + CPP_MAIN)
    ran = subprocess.run([str(app), str(tmp_path / "bundle/models/m.ort")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert {f"Cpus_allowed_list:\t{core}", "nice 9", "nice 0"} <= set(ran.stderr.splitlines())
    _, expected = reference(tmp_path)
    np.testing.assert_allclose(np.array(ran.stdout.split(), np.float32), expected.ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.network
def test_typescript_fits_the_types_of_the_package(tmp_path: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("no npm here: install Node.js")
    sample(tmp_path)
    app = tmp_path / "app"
    app.mkdir()
    packages = ["onnxruntime-react-native@1.24.3", "onnxruntime-common@1.24.3", "typescript@5.9.3"]
    flags = ["--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--silent"]
    fetched = subprocess.run(
        ["npm", "install", *flags, *packages], cwd=app, capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"the package index cannot be reached: {(fetched.stderr or fetched.stdout).strip()[-200:]}")
    check = ["node_modules/.bin/tsc", "--strict", "--noEmit", "--skipLibCheck", "--target", "es2020",
             "--moduleResolution", "node", "open.ts"]  # fmt: skip
    code = printed(tmp_path, "react-native").out
    (app / "open.ts").write_text(code, "utf-8")
    done = subprocess.run(check, cwd=app, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (app / "open.ts").write_text(code.replace("useFP16", "useFP61"), "utf-8")
    assert "useFP61" in subprocess.run(check, cwd=app, capture_output=True, text=True, check=False).stdout
