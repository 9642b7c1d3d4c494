"""Custom operators from one option to sessions, devices, bundles and code, by a library that is compiled here."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from device_runner.custom_ops import fitting, read_libraries
from device_runner.errors import UnavailableError
from device_runner.local import wheel_library
from pipeline.core.custom_ops import VARIABLE
from tests.command import ort_mobile
from tests.custom_ops.samples import library, model
from tests.features.android.samples import needs_java

# onnxruntime keeps the domain of such a library in its process, and writes it into each file that is converted there.
pytestmark = [
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed"),
    pytest.mark.usefixtures("own_workers"),
]

CONFIG = """
name = "twice"
custom_ops = ["libtwice.so"{more}]
[[models]]
path = "twice.onnx"
[[targets]]
name = "{platform}"
platform = "{platform}"
abis = ["{abi}"]
[variants]
levels = ["basic"]
styles = ["fixed"]
[measure]
rounds = 1
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the model, and the library beside it."""
    model(tmp_path / "twice.onnx")
    shutil.copy(library(), tmp_path / "libtwice.so")
    return tmp_path


def for_android(file: Path, target: Path, machine: int = 62) -> Path:
    """A copy that says it needs Android's libc.so, for another processor where `machine` (e_machine) says so."""
    content = bytearray(file.read_bytes().replace(b"\0libc.so.6\0", b"\0libc.so\0\0\0"))
    content[18:20] = machine.to_bytes(2, "little")
    target.write_bytes(content)
    return target


def test_a_model_with_a_custom_operator_is_converted_checked_and_measured(work: Path) -> None:
    words = ("--level", "all", "--style", "fixed", "--custom-ops", "libtwice.so")
    done = ort_mobile("convert", "twice.onnx", "--output", "out", *words, "--check", cwd=work)
    assert "1 of 1 give the original model's outputs" in done.out
    assert "test.ops;1;Twice" in (work / "out/required_operators.config").read_text()
    perf = ("perf", "out/twice.all-fixed.ort", "--rounds", "1", "--min-runs", "1", "--json", "-")
    rows = ort_mobile(*perf, "--custom-ops", "libtwice.so", cwd=work).document()["rows"]
    assert [row["status"] for row in rows] == ["ok"]
    failed = ort_mobile(*perf, cwd=work, code=1)
    assert "operator Twice of domain test.ops is unknown" in failed.text
    assert VARIABLE not in os.environ


def test_another_library_makes_another_file_of_the_cache(work: Path) -> None:
    line = ("convert", "twice.onnx", "--output", "out", "--level", "basic", "--style", "fixed", "--cache", "cache")
    ort_mobile(*line, "--custom-ops", "libtwice.so", cwd=work)
    with (work / "libtwice.so").open("ab") as file:
        file.write(b"\0")  # behind what the header lists: the same library, of another digest
    ort_mobile(*line, "--custom-ops", "libtwice.so", cwd=work)
    assert len(list((work / "cache/entries").iterdir())) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("missing.so", "no library of custom operators there"),
        ("twice.onnx", "not a little-endian ELF file"),
        ("plain.so", "it does not export RegisterCustomOps"),
        ("empty.aar", "no library in it exports RegisterCustomOps"),
    ],
)
@pytest.mark.parametrize("command", ["convert", "perf", "run"])
def test_what_is_no_such_library_is_said_before_anything_is_written(
    work: Path, command: str, given: str, said: str
) -> None:
    shutil.copy(wheel_library(), work / "plain.so")
    with zipfile.ZipFile(work / "empty.aar", "w") as archive:
        archive.writestr("jni/x86_64/libother.so", "x")
    before = sorted(work.iterdir())
    words = {"convert": ("twice.onnx", "--output", "out"), "perf": ("twice.onnx",), "run": ("--model", "twice.onnx")}
    done = ort_mobile(command, *words[command], "--custom-ops", given, cwd=work, code=2)
    assert said in done.err
    assert sorted(work.iterdir()) == before


def test_a_library_for_another_processor_is_refused(work: Path) -> None:
    for_android(work / "libtwice.so", work / "arm.so", machine=183)
    done = ort_mobile("convert", "twice.onnx", "--output", "out", "--custom-ops", "arm.so", cwd=work, code=3)
    assert "no library of custom operators for linux x86_64" in done.err
    assert "there are those for android arm64-v8a" in done.err
    perf = ort_mobile("perf", "twice.onnx", "--custom-ops", "arm.so", "--rounds", "1", cwd=work, code=1)
    assert "no library of custom operators for linux x86_64" in perf.text


def test_a_library_with_python_in_it_is_for_sessions_here_only(work: Path) -> None:
    file = work / "python.so"
    file.write_bytes((work / "libtwice.so").read_bytes().replace(b"\0abort\0", b"\0Py_Ab\0"))
    (row,) = read_libraries(str(file))
    assert fitting([str(file)], row.system, row.abi, python=True) == (row,)
    with pytest.raises(UnavailableError, match="linux x86_64 in Python"):
        fitting([str(file)], row.system, row.abi)


def test_of_an_archive_the_library_that_registers_operators_is_taken(work: Path) -> None:
    with zipfile.ZipFile(work / "app.aar", "w") as archive:
        archive.write(work / "libtwice.so", "jni/x86_64/libtwice.so")
        archive.writestr("jni/x86_64/libother.so", "no library")
    (row,) = read_libraries(str(work / "app.aar"))
    assert (row.path.name, row.abi) == ("libtwice.so", "x86_64")
    assert row.path.read_bytes() == (work / "libtwice.so").read_bytes()


def test_a_config_puts_the_library_into_the_bundle_and_its_code(work: Path) -> None:
    (work / "twice.toml").write_text(CONFIG.format(more="", platform="linux", abi="x86_64"))
    ort_mobile("run", "twice.toml", cwd=work)
    bundle = work / "output/twice/bundle"
    assert (bundle / "custom_ops/linux/x86_64/libtwice.so").read_bytes() == (work / "libtwice.so").read_bytes()
    assert 'options.RegisterCustomOpsLibrary("libtwice.so");' in (bundle / "README.md").read_text()
    assert '"test.ops"' in (bundle / "manifest.json").read_text()
    ort_mobile("bundle", "verify", bundle, cwd=work)


def test_a_target_without_its_library_stops_the_job_before_it_writes(work: Path) -> None:
    (work / "twice.toml").write_text(CONFIG.format(more="", platform="android", abi="arm64-v8a"))
    done = ort_mobile("run", "twice.toml", cwd=work, code=3)
    assert "no library of custom operators for android arm64-v8a" in done.err
    assert not (work / "output").exists()


def test_the_aar_has_the_library_and_its_classes_register_it(work: Path) -> None:
    needs_java()
    (work / "android").mkdir()
    for_android(work / "libtwice.so", work / "android/libtwice.so")
    (work / "twice.toml").write_text(CONFIG.format(more=', "android/libtwice.so"', platform="android", abi="x86_64"))
    done = ort_mobile("run", "twice.toml", cwd=work)
    assert "libtwice.so for x86_64 cannot be loaded on phones with 16 KB pages" in done.text
    words = ("--group", "com.example", "--version", "1.0", "--output", "maven")
    ort_mobile("release", "android", "output/twice/bundle", *words, cwd=work)
    folder = work / "maven/com/example/twice-models/1.0"
    with zipfile.ZipFile(folder / "twice-models-1.0.aar") as aar:
        assert aar.read("jni/x86_64/libtwice.so") == (work / "android/libtwice.so").read_bytes()
    with zipfile.ZipFile(folder / "twice-models-1.0-sources.jar") as sources:
        text = "".join(sources.read(name).decode() for name in sources.namelist())
    assert 'options.registerCustomOpLibrary("libtwice.so");' in text
    for language, call in (("python", "options.register_custom_ops_library('libtwice.so')"), ("flutter", "")):
        done = ort_mobile("release", "snippet", "output/twice/bundle", "--for", language, cwd=work)
        assert call in done.out
        assert ("without custom operators" in done.err) == (language == "flutter")


def test_check_and_gate_take_the_option(work: Path) -> None:
    told = ort_mobile("check", "twice.onnx", "--custom-ops", "libtwice.so", "--json", "-", cwd=work).document()
    assert "Twice" in str(told)
    words = ("--custom-ops", "libtwice.so", "--rounds", "8", "--min-runs", "1", "--min-seconds", "0.001")
    ort_mobile("gate", "twice.onnx", "twice.onnx", *words, cwd=work)


def test_gate_finds_the_library_in_bundles_and_output_folders(work: Path) -> None:
    (work / "twice.toml").write_text(CONFIG.format(more="", platform="linux", abi="x86_64"))
    ort_mobile("run", "twice.toml", "--output", "before", cwd=work)
    with (work / "libtwice.so").open("ab") as file:
        file.write(b"\0")  # behind what the header lists: the same library, of another digest
    ort_mobile("run", "twice.toml", "--output", "after", cwd=work)
    rebuilt = (work / "libtwice.so").read_bytes().replace(b"Twice", b"Other")  # without the operator of these models
    (work / "libtwice.so").write_bytes(rebuilt)
    words = ("--rounds", "8", "--min-runs", "1", "--min-seconds", "0.001", "--json", "-")
    rows = ort_mobile("gate", "before/bundle", "after", *words, cwd=work, code=None).document()["rows"]
    assert {row["outcome"] for row in rows} <= {"regression", "faster", "no regression shown"}
    (work / "libtwice.so").unlink()
    same = ort_mobile("gate", "before", "before", *words, cwd=work).document()["rows"]
    assert [row["outcome"] for row in same] == ["unchanged"]


def test_sessions_of_other_commands_take_the_variable(work: Path) -> None:
    line = ("transform", "twice.onnx", "optimized.onnx", "--do", "optimize:level=basic")
    assert "not a registered function" in ort_mobile(*line, cwd=work, code=1).err
    ort_mobile(*line, cwd=work, ORT_MOBILE_CUSTOM_OPS=str(work / "libtwice.so"))
    assert (work / "optimized.onnx").is_file()


@pytest.mark.parametrize("name", ["lib'twice.so", "lib$(twice).so", "lib twice;.so"])
def test_a_library_whose_name_no_bundle_has_is_refused_before_all_work(work: Path, name: str) -> None:
    shutil.copy(library(), work / name)
    config = CONFIG.format(more="", platform="linux", abi="x86_64").replace("libtwice.so", name)
    (work / "twice.toml").write_text(config)
    refused = ort_mobile("run", "twice.toml", "--convert-only", cwd=work, code=2)
    assert "a bundle cannot have a file named" in refused.err
    assert not list((work / "output").rglob("*.ort"))
