"""The config reader: what it accepts, and how it refuses."""

from pathlib import Path

import jsonschema
import pytest

from pipeline.campaign.plan import matches
from pipeline.config import (
    Config,
    ModelConfig,
    Platform,
    VariantsConfig,
    config_schema,
    read_config,
    wanted_variants,
)
from pipeline.core.errors import ConfigError, ExitCode
from pipeline.core.variant import Level, Style

MINIMAL = 'name = "a"\n[[models]]\npath = "m.onnx"\n'
PHONE = MINIMAL + '[[targets]]\nname = "t"\nplatform = "android"\n'
PICTURES = 'takes = { image = "rgb", filter = "android" }\npreprocess = { scale = 0.1 }'
PAD = '[[targets]]\nname = "pad"\nplatform = "ios"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_minimal_config_gets_the_documented_defaults(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, MINIMAL))
    assert config.models == (ModelConfig(path=str(tmp_path / "m.onnx")),)
    assert [t.platform for t in config.targets] == [Platform.ANDROID]
    assert [r.provider for r in config.runs] == ["nnapi", "webgpu", "cpu"]
    assert config.runs[0].variants == ("basic-*", "*-nnapi*")


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (MINIMAL + PAD, "1.24"),
        (MINIMAL + PAD.replace("ios", "macos"), "1.24"),
        (MINIMAL + PAD + 'ort_release = "1.29"', "1.29"),
        (MINIMAL + PAD + "[build]\nlto = false", None),
        (MINIMAL + PAD + '[release.apple]\nruntime = "a.xcframework"', None),
        (PHONE, None),
    ],
)
def test_apps_with_a_swift_package_get_the_newest_known_release(tmp_path: Path, text: str, release: str | None) -> None:
    assert read_config(write(tmp_path, text)).targets[0].ort_release == release


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        (MINIMAL + 'paht = "x"', 4, ["unknown key `paht`", "did you mean `path`?"]),
        (MINIMAL + "[[runs]]\nintra_op_threads = 2", 5, ["unknown key `intra_op_threads`", "did you mean `threads`?"]),
        (MINIMAL + "[[runs]]\nenable_mem_pattern = 1", 5, ["did you mean `memory_pattern`?"]),
        (MINIMAL + "[[runs]]\ntreads = 2", 5, ["did you mean `threads`?"]),
        (MINIMAL + "[outptu]", 4, ["unknown key `outptu`", "did you mean `output`?"]),
        (MINIMAL + "[measure]\nrounds = 0", 5, ["measure.rounds", ">= 1"]),
        (MINIMAL + "[measure.plugins]\nqnn = []", None, ["measure.plugins", "length >= 1"]),
        (MINIMAL + '[measure]\nplugins = { qn = ["libq.so"] }', 5, ["provider 'qn'", "did you mean `qnn`?"]),
        (MINIMAL + '[variants]\nlevels = ["bsic"]', 5, ["variants.levels[0]", "bsic", "none, basic, extended, layout"]),
        (MINIMAL + '[[targets]]\nname = "t"\nplatform = "symbian"', 6, ["targets[0].platform", "android, ios"]),
        (MINIMAL + '[[targets]]\nname = "t"\nplatform = "ios"\nort_release = "2"', 7, ["ort_release"]),
        (PHONE + 'abis = ["arm64"]', 7, ["'arm64' is not an ABI of android", "did you mean `arm64-v8a`?"]),
        (PHONE + 'abis = ["mips"]', 7, ["'mips' is not an ABI of android", "arm64-v8a, armeabi-v7a, x86, x86_64"]),
        (PHONE + 'min_os_version = "15"', 7, ["`min_os_version` has no meaning on android", "min_api_level"]),
        (PHONE + PAD.replace('"pad"', '"t"'), 8, ["two targets are called 't'", "rename one"]),
        (PHONE + PAD + "min_api_level = 27", 10, ["`min_api_level` has no meaning on ios", "min_os_version"]),
        (PHONE + 'abis = ["x86"]\n' + PAD + 'abis = ["x86"]', 11, ["'x86' is not an ABI of ios", "arm64"]),
        (MINIMAL + '[[runs]]\nprovider = "nnpai"', 5, ["unknown execution provider 'nnpai'", "mean `nnapi`?"]),
        (MINIMAL + '[[runs]]\n[[runs]]\nprovider = ["cpu", "CoreML"]', 6, ["'CoreML'", "mean `coreml`?"]),
        (MINIMAL + 'guessed = ["w"]', 4, ["'w' is no guess", "name what is in `dimensions`"]),
        (MINIMAL + PICTURES.replace("}", ', channels = "GRAY" }', 1), 4, ["takes.channels", "RGB, BGR"]),
        (MINIMAL + PICTURES, 4, ["`preprocess` beside `takes`", "remove `preprocess`"]),
        ("name = \n", None, ["not valid TOML", "line 1"]),
        ('name = "a"\nmodels = []', 2, ["models", "length >= 1"]),
        ('[[models]]\npath = "m.onnx"\n', None, ["missing required field `name`"]),
    ],
)
def test_errors_name_file_line_key_and_remedy(tmp_path: Path, text: str, line: int | None, parts: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    shown = "\n".join(f"{label}: {part}" for label, part in caught.value.lines())
    assert f"where: {path}" + (f":{line}\n" if line else "\n") in shown
    assert all(part in shown for part in parts), shown
    assert caught.value.remedy
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_provider_that_only_a_library_knows_is_left_to_it(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, MINIMAL + '[[runs]]\nprovider = "zeta_npu"'))
    assert config.runs[0].provider == "zeta_npu"


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        (MINIMAL, 3, "path = "),
        (MINIMAL + 'test_data = "none"', 4, "test_data = "),
        (PHONE + 'library = "nope.aar"', 7, "library = "),
        (PHONE + 'library = "android-1.29.0"', 7, "library = "),
    ],
)
def test_files_that_are_not_there_are_refused_before_a_run_and_not_before_a_build(
    tmp_path: Path, text: str, line: int, part: str
) -> None:
    path = write(tmp_path, text)
    assert read_config(path).name == "a"
    if part != "path = ":
        (tmp_path / "m.onnx").touch()
    with pytest.raises(ConfigError, match=f"no such file: {part}") as caught:
        read_config(path, existing=True)
    assert caught.value.where == f"{path}:{line}"


def test_a_library_by_name_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    config = read_config(write(tmp_path, PHONE + 'library = "android:1.29.0"'), existing=True)
    assert config.targets[0].library == "android:1.29.0"


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("none.toml", "no such config file", "ort-mobile init"),
        ("my model.onnx", "this is a model, not a config", "ort-mobile run --model '{path}'"),
        ("binary.toml", "the config file cannot be read", "a TOML file in UTF-8"),
    ],
)
def test_what_is_no_config_is_refused_with_what_to_do(tmp_path: Path, name: str, what: str, remedy: str) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=what) as caught:
        read_config(tmp_path / name)
    assert remedy.format(path=tmp_path / name) in caught.value.remedy


def test_the_mark_of_windows_editors_is_no_part_of_a_config(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert read_config(path).name == "a"


def test_variants_are_every_combination_and_aware_ones_come_last() -> None:
    config = VariantsConfig(levels=(Level.NONE, Level.ALL), aware=("nnapi", "nnapi+coreml-mlprogram"))
    names = [variant.name for variant in wanted_variants(config)]
    assert names == [
        "none-fixed", "all-fixed", "none-runtime", "all-runtime", "all-fixed-nnapi", "all-fixed-nnapi+coreml-mlprogram",
    ]  # fmt: skip
    assert {v.style for v in wanted_variants(config)} == {Style.FIXED, Style.RUNTIME}


def test_schema_describes_every_key_and_judges_like_the_reader(tmp_path: Path) -> None:
    schema = config_schema()
    for table in schema["$defs"].values():
        for key, value in table.get("properties", {}).items():
            assert value.get("description"), f"{table['title']}.{key} has no text"
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"name": "a", "models": [{"path": "m.onnx"}]})
    assert not validator.is_valid({"name": "a", "models": [{"path": "m.onnx", "paht": "x"}]})
    assert Config.__struct_fields__ == tuple(schema["$defs"]["Config"]["properties"])


def test_one_line_compares_an_accelerator_in_every_sensible_way(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, 'compare = ["nnapi"]\n' + MINIMAL))
    names = [variant.name for variant in wanted_variants(config.variants)]
    meant = {
        (run.provider, run.session_config.get("session.enable_saved_runtime_optimizations"), name)
        for run in config.runs
        for name in names
        for provider in run.providers
        if matches(
            run.variants, provider, {variant.name: variant for variant in wanted_variants(config.variants)}[name]
        )
    }
    assert {
        ("nnapi", None, "basic-fixed"),
        ("nnapi", None, "extended-fixed-nnapi"),
        ("nnapi", "0", "extended-runtime"),
        ("nnapi", "1", "extended-runtime"),
        ("cpu", None, "all-fixed"),
    } <= meant
    assert ("nnapi", None, "all-fixed") not in meant
    assert read_config(write(tmp_path, MINIMAL)).variants.aware == ()


def test_a_gpu_is_compared_with_files_that_the_library_optimizes_in_both_layouts(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, 'compare = ["webgpu"]\n' + MINIMAL))
    gpu, cpu = config.runs
    assert gpu.options == {"preferredLayout": ("NHWC", "NCHW")}
    assert {"basic-fixed", "none-onnx", "extended-onnx"} == set(gpu.variants)
    assert {variant.name for variant in wanted_variants(config.variants)} >= set(gpu.variants)
    assert cpu.providers == ("cpu",)


def test_compare_and_runs_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        read_config(write(tmp_path, 'compare = ["nnapi"]\n' + MINIMAL + '[[runs]]\nprovider = "cpu"\n'))


def test_runs_that_mean_no_variant_are_refused_with_what_there_is(tmp_path: Path) -> None:
    text = MINIMAL + '[[runs]]\nvariants = ["basci-fixed"]\n'
    with pytest.raises(ConfigError, match="no variant is called 'basci-fixed'") as caught:
        read_config(write(tmp_path, text))
    assert "basic-fixed" in caught.value.remedy
    read_config(write(tmp_path, MINIMAL + '[[runs]]\nvariants = ["basic-fixed", "*-nnapi*"]\n'))


@pytest.mark.parametrize(
    "line", ["rounds = 9223372036854775807", "most_rounds = 10_001", "min_seconds = inf", "max_seconds = inf",
             "timeout_seconds = 1e300", "min_runs = 9223372036854775807", "warmup = 2147483648"],
)  # fmt: skip
def test_what_no_measurement_lasts_is_refused_when_it_is_read(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(write(tmp_path, f"{MINIMAL}[measure]\n{line}"))
    assert line.split()[0] in caught.value.text
    assert caught.value.where.endswith("c.toml:5")
