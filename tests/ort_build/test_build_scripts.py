"""ONNX Runtime's real scripts as the judge of plans, and what reading scripts and trees does with bad ones."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.files import cache_folder
from pipeline.config import Platform
from pipeline.config.tables import BuildKind, Dependencies
from pipeline.core.errors import ConfigError
from pipeline.ort_build.accepted_options import options_in, tree_options, unaccepted
from pipeline.ort_build.doctor import cmake_minimum
from pipeline.ort_build.plan import (
    AAR_SCRIPT,
    APPLE_SCRIPT,
    BUILD_SCRIPT,
    EXTENDED_OPTIMIZERS,
    BuildPaths,
    BuildPlan,
    plan_build,
)
from pipeline.ort_build.run import source_digest
from pipeline.ort_build.tree import check_release, tree_release
from pipeline.required_ops import parse
from tests.command import ROOT, ort_mobile
from tests.ort_build.build_requests import request
from tests.ort_build.debian_source import OPTIMIZERS, REGISTRATIONS, RELEASE, WEBGPU_BUILD, source_tree
from tests.ort_build.test_build_plan import ACCEPTED
from tests.ort_models import parsed

PLACES = BuildPaths(source="/src", work="/srv/plan")


@pytest.fixture(scope="module")
def tree() -> Path:
    return source_tree(cache_folder())


@pytest.mark.network
def test_the_committed_options_are_those_of_the_real_scripts(tree: Path) -> None:
    real = {
        script: {name: "flag" if values is None else list(values) or "value" for name, values in found.items()}
        for script, found in tree_options(tree).items()
    }
    assert real == ACCEPTED[RELEASE]


@pytest.mark.network
def test_the_optimizers_of_an_extended_build_are_those_of_the_source(tree: Path) -> None:
    text = (tree / OPTIMIZERS).read_text()
    _, _, minimal = text.partition("GenerateTransformersForMinimalBuild(")
    assert set(re.findall(r"make_unique<(\w+)>", minimal)) == set(EXTENDED_OPTIMIZERS)


REDUCE = """
import runpy, sys
import onnxruntime.tools.ort_format_model  # puts the generated classes on the path, which Debian's source lacks
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = sys.argv[2:]
runpy.run_path(f"{sys.path[0]}/reduce_op_kernels.py", run_name="__main__")
"""


@pytest.mark.network
def test_a_config_for_webgpu_keeps_what_the_cpu_runs_and_every_kernel_of_the_gpu(tree: Path, tmp_path: Path) -> None:
    """ONNX Runtime's own script reduces what a config does not list; its build takes sources of WebGPU as they are."""
    weights = np.ones((4, 3, 3, 3), np.float32)
    text = "g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Softsign (x)  c = Conv (a, w)  y = Relu (c) }"
    onnx.save(parsed(text, w=weights), tmp_path / "m.onnx")
    ort_mobile("convert", "m.onnx", "--level", "basic", "--ep", "webgpu", "--output", "out", cwd=tmp_path)
    ort_mobile("op-config", "create", "out", "--provider", "webgpu", "--output", "ops.config", cwd=tmp_path)
    options = ["--cmake_build_dir", "build", "--enable_type_reduction", "--is_extended_minimal_build_or_higher"]
    command = [sys.executable, "-c", REDUCE, str(tree / "tools/ci_build"), "ops.config", *options]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    reduced = tmp_path / "build/op_reduction.generated"
    assert {path.parent.name for path in reduced.rglob("*.cc")} == {"cpu"}
    assert "REDUCED_OPS" not in (tree / WEBGPU_BUILD).read_text()
    kept = re.sub(r"//.*", "", (reduced / REGISTRATIONS).read_text())
    (_, table) = kept.split("RegisterOnnxOperatorKernels(", 1)
    names = set(re.findall(r"BuildKernelCreateInfo<ONNX_OPERATOR_\w+\([^)]*?(\w+)\)>", table))
    assert {"Softsign", "Conv", "Relu", "Transpose", "Gather", "Squeeze", "Unsqueeze", "Identity"} <= names
    assert names.isdisjoint({"Sigmoid", "Gemm", "MaxPool"})


def test_a_plan_of_an_extended_build_lists_its_optimizers() -> None:
    (note,) = (note for note in plan_build(request(kind=BuildKind.EXTENDED), PLACES).notes if "at load" in note.text)
    assert all(name in note.text for name in EXTENDED_OPTIMIZERS)
    assert not any("at load" in note.text for note in plan_build(request(kind=BuildKind.MINIMAL), PLACES).notes)


PLANS = [
    request(version=RELEASE, abis=("arm64-v8a",), api_level=27, providers=("nnapi", "xnnpack"), exceptions=False),
    request(version=RELEASE, abis=("arm64-v8a",), providers=("qnn",), kind=BuildKind.FULL, ml_ops=True),
    request(Platform.IOS, RELEASE, providers=("coreml", "xnnpack")),
    request(Platform.MACOS, RELEASE, providers=("coreml", "xnnpack", "webgpu"), jobs=4),
    request(Platform.LINUX, RELEASE, dependencies=Dependencies.SYSTEM, onnx_source="/onnx", contrib_ops=False),
    request(version=RELEASE, providers=("nnapi",), operators=parse("test.ops;1;Twice\n", "c")),
    request(Platform.LINUX, RELEASE, wheel=True, providers=("nnapi", "coreml", "xnnpack")),
]


@pytest.mark.network
def test_the_real_parser_parses_what_plans_pass_to_build_py(tree: Path, tmp_path: Path) -> None:
    """build.py's own argparse runs here, in a process of its own; the build itself does not."""
    plans = [plan_build(asked, PLACES) for asked in PLANS]
    lists = [(plan, arguments) for plan in plans for arguments in _build_py_arguments(plan)]
    code = (
        "import json, sys, importlib.util as u\n"
        "spec = u.spec_from_file_location('build', sys.argv[1]); build = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(build)\n"
        "for arguments in json.loads(sys.argv[2]):\n"
        "    sys.argv[1:] = arguments; print(json.dumps(vars(build.parse_arguments()), default=str))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tree / BUILD_SCRIPT), json.dumps([arguments for _, arguments in lists])],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (plan, arguments), line in zip(lists, done.stdout.splitlines(), strict=True):
        parsed = json.loads(line)
        custom = ["custom_ops"] * ("custom_ops" in arguments)
        assert (
            parsed["minimal_build"]
            == {BuildKind.FULL: None, BuildKind.MINIMAL: custom, BuildKind.EXTENDED: ["extended", *custom]}[plan.kind]
        )
        assert parsed["skip_tests"]
        assert parsed["parallel"] == (4 if "--parallel=4" in arguments else 0)
        defines = [define for group in parsed["cmake_extra_defines"] for define in group]
        assert "onnxruntime_BUILD_UNIT_TESTS=OFF" in defines
        assert all("=" in define for define in defines)


@pytest.mark.network
def test_the_wheels_plan_turns_nnapi_and_python_on_in_the_real_script(tree: Path, tmp_path: Path) -> None:
    """build.py does all that it does, checks of the options included, but for the programs that it would start."""
    config = ROOT / "build_configs/builds/linux-nnapi-wheel.toml"
    (plan,) = ort_mobile("build", "plan", config, "--source", tree, "--json", "-", cwd=tmp_path).document()["plans"]
    code = (
        "import json, sys, importlib.util as u\n"
        "spec = u.spec_from_file_location('build', sys.argv[1]); build = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(build)\n"
        "build.resolve_executable_path = str\n"
        "build.run_subprocess = lambda words, *_, **__: print(json.dumps(list(map(str, words))))\n"
        "del sys.argv[0]; build.main()\n"
    )
    words = [*plan["steps"][0]["arguments"][1:], "--allow_running_as_root"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    configure, build, wheel = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    on = ("USE_NNAPI_BUILTIN=ON", "ENABLE_PYTHON=ON", "MINIMAL_BUILD=OFF", "REDUCED_OPS_BUILD=OFF")
    assert {f"-Donnxruntime_{word}" for word in on} <= set(configure)
    assert (build[:2], wheel[1:]) == (["cmake", "--build"], [str(tree.resolve() / "setup.py"), "bdist_wheel"])


def _build_py_arguments(plan: BuildPlan) -> list[list[str]]:
    """What reaches build.py: directly, or by way of the packaging scripts with what these add."""
    settings = [json.loads(file.content) for file in plan.files if file.path.endswith("build_settings.json")]
    if not settings:
        return [list(plan.steps[0].arguments[2:])]
    params = settings[0]["build_params"]
    added = [f"--config={plan.configuration}", "--build_dir=/srv/plan/x"]
    if isinstance(params, list):
        return [[*params, "--android_api=27", *added, f"--android_abi={abi}"] for abi in settings[0]["build_abis"]]
    assert set(params) == {"base", *settings[0]["build_osx_archs"]}  # the script takes each without asking
    return [
        [*params["base"], *params[sysroot], *added, f"--osx_arch={arch}"]
        for sysroot, archs in settings[0]["build_osx_archs"].items()
        for arch in archs
    ]


@pytest.mark.network
def test_the_real_packaging_script_reads_the_settings_file(tree: Path, tmp_path: Path) -> None:
    plan = plan_build(PLANS[0], PLACES)
    settings = tmp_path / "build_settings.json"
    settings.write_text(next(file.content for file in plan.files if file.path.endswith(settings.name)))
    sys_path = list(sys.path)
    spec = importlib.util.spec_from_file_location("build_aar_package", tree / AAR_SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(script)
    finally:
        sys.path[:] = sys_path
    read = script._parse_build_settings(type("Arguments", (), {"build_settings_file": settings}))
    assert read["build_abis"] == ["arm64-v8a"]
    assert read["android_min_sdk_version"] == 27
    assert read["build_params"][-1] == "--android_api=27"


@pytest.mark.network
def test_the_tree_says_which_release_it_is(tree: Path) -> None:
    assert (tree_release(tree), cmake_minimum(tree)) == (RELEASE, "3.28")
    check_release(tree, "1.21")
    with pytest.raises(ConfigError, match=r"source tree is ONNX Runtime 1\.21\.0, the target wants 1\.2\b"):
        check_release(tree, "1.2")


def write_tree(folder: Path, version: str = "1.23.2", build: str = "", aar: str = "") -> Path:
    """The smallest tree that has a release and scripts."""
    for name, text in ((BUILD_SCRIPT, build), (AAR_SCRIPT, aar), (APPLE_SCRIPT, "")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "VERSION_NUMBER").write_text(f"{version}\n")
    return folder


def test_options_that_a_tree_lacks_are_named(tmp_path: Path) -> None:
    write_tree(tmp_path, build="p.add_argument('--config', choices=['Release'])\np.add_argument('--build_dir')\n")
    plan = plan_build(request(Platform.LINUX, kind=BuildKind.FULL), PLACES)
    complaints = unaccepted(plan, tree_options(tmp_path))
    assert f"--config of {BUILD_SCRIPT} does not take MinSizeRel" in complaints
    assert f"{BUILD_SCRIPT} has no option --enable_lto" in complaints
    assert not [complaint for complaint in complaints if "--build_dir" in complaint]


def test_options_of_a_separate_file_count(tmp_path: Path) -> None:
    write_tree(tmp_path)
    (tmp_path / "tools/ci_build/build_args.py").write_text("g.add_argument('--enable_lto', action='store_true')\n")
    assert tree_options(tmp_path)[BUILD_SCRIPT]["--enable_lto"] is None


@given(text=st.text())
def test_reading_any_text_ends_in_options_or_a_value_error(text: str) -> None:
    try:
        found = options_in(text)
    except ValueError:
        return
    assert all(name.startswith("--") for name in found)


@pytest.mark.parametrize("version", ["", "garbage", "1.23", "1.23.2-dev", "../x", "1" * 500])
def test_a_folder_without_a_release_is_no_source_tree(version: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no source tree"):
        tree_release(write_tree(tmp_path, version))
    with pytest.raises(ConfigError, match="no source tree"):
        tree_release(tmp_path / "nowhere")


def test_a_tree_whose_script_is_no_python_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no source tree"):
        tree_options(write_tree(tmp_path, build="def"))


def test_the_digest_of_a_tree_is_of_what_is_compiled(tmp_path: Path) -> None:
    write_tree(tmp_path)
    before = source_digest(tmp_path)
    for left_out in (".git/HEAD", "build/Linux/x.o", "tools/__pycache__/a.pyc"):
        (tmp_path / left_out).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / left_out).write_text("new")
    assert source_digest(tmp_path) == before
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake/x.cmake").write_text("new")
    assert source_digest(tmp_path) != before
