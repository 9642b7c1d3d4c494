"""JSON of one kind: every command that has a result writes it with --json, as an object with a version."""

import json
from pathlib import Path

import pytest

from tests.command import leaves, ort_mobile

WITHOUT_RESULT = {
    "help",
    "completion",
    "schema",
    "lab work",
    "lab cancel",
    "lab golden",
    "lab priority",
    "lab release",
    "lab serve",
}
"""Commands that print text or a schema by definition, or work until they are stopped."""

NOT_RUN_HERE = {
    "tune": "searches for minutes (tests/features/tune/test_command.py)",
    "export": "converts (tests/features/away/test_packages.py)",
    "collect": "needs a session (tests/features/away/test_packages.py)",
    "bundle replay": "needs a bundle with vectors (tests/features/vectors)",
    "doctor": "measures for minutes (tests/features/doctor/test_doctor.py)",
    "prove": "needs an Android library (tests/android_host)",
    "bundle delta": "needs two bundles (tests/features/updates/test_delta.py)",
    "bundle apply": "needs a delta (tests/features/updates/test_delta.py)",
    "bundle sign": "needs a key (tests/release/test_signature.py)",
    "bundle deny": "needs a key (tests/features/guard/test_deny.py)",
    "lab submit": "needs a PostgreSQL (tests/features/lab/test_lab.py)",
    "lab status": "needs a PostgreSQL (tests/features/lab/test_lab.py)",
    "lab wait": "needs a PostgreSQL (tests/features/lab/test_waiting.py)",
    "lab history": "needs results of several campaigns (tests/features/lab/test_history.py)",
    "lab close": "needs a PostgreSQL (tests/features/lab/test_lab.py)",
    "import": "needs a framework (tests/features/imports)",
    "release android": "needs a JDK (tests/features/android)",
    "release apple": "needs a target of Apple's (tests/features/apple)",
    "release all": "needs a key and gates (tests/features/packages/test_release.py)",
    "library get": "needs the network (tests/library)",
    "build run": "builds ONNX Runtime for hours (tests/ort_build runs it on a small tree)",
}
"""Commands whose document is tested elsewhere, and why."""

LINES = {
    "init": "init my.onnx --output other.toml",
    "run": "run my.toml --convert-only --output run_output",
    "report": "report output/my",
    "bundle rebuild": "bundle rebuild output/my",
    "release snippet": "release snippet output/my/bundle --for python",
    "bundle verify": "bundle verify output/my/bundle",
    "bundle package": "bundle package output/my/bundle --output package",
    "check": "check my.onnx",
    "partition": "partition my.onnx --ep nnapi",
    "transform": "transform my.onnx newer.onnx --do opset:version=21",
    "convert": "convert my.onnx --output converted --level all --style fixed",
    "diff": "diff my.onnx out/my.all-fixed.ort",
    "accuracy": "accuracy my.onnx --reference my.onnx --test-data sample.npz",
    "perf": "perf out/my.all-fixed.ort --rounds 1 --min-runs 1 --min-seconds 0.001",
    "compare": "compare output/my/results.json output/my/bundle",
    "gate": "gate out/my.all-fixed.ort out/my.all-fixed.ort",
    "op-config create": "op-config create out",
    "op-config merge": "op-config merge out/required_operators.config",
    "op-config check": "op-config check out/required_operators.config out",
    "op-config explain": "op-config explain out",
    "op-config diff": "op-config diff out/required_operators.config out/required_operators_and_types.config",
    "devices": "devices local",
    "library list": "library list",
    "app": "app LIBRARY",
    "library show": "library show LIBRARY",
    "library diff": "library diff LIBRARY LIBRARY --abi x86_64",
    "build plan": "build plan --target linux-x86_64",
    "build doctor": "build doctor --target linux-x86_64",
    "build size": "build size --cache empty",
    "build probe": "build probe",
}

CODES = {"build doctor": 3, "devices": 3, "compare": 1}
"""Of lines that may end otherwise than with 0: a computer may lack something, and nothing was measured to compare."""

COMMANDS = dict(leaves())


def installed_library() -> str:
    import onnxruntime

    return str(next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")))


def test_every_command_with_a_result_has_the_option_and_a_line_here() -> None:
    with_option = {name for name, command in COMMANDS.items() if any("--json" in p.opts for p in command.params)}
    assert with_option == COMMANDS.keys() - WITHOUT_RESULT
    assert LINES.keys() | NOT_RUN_HERE.keys() == with_option


@pytest.mark.usefixtures("no_adb")
@pytest.mark.parametrize("name", LINES)
def test_stdout_is_one_object_with_a_version(name: str, workplace: Path) -> None:
    line = LINES[name].replace("LIBRARY", installed_library())
    done = ort_mobile(*line.split(), "--json", "-", cwd=workplace, code=None)
    assert done.document()["version"] >= 1, done.err
    assert done.code in (0, CODES.get(name, 0)), done.err


def test_a_file_gets_the_document_and_stdout_the_text(workplace: Path, tmp_path: Path) -> None:
    done = ort_mobile("bundle", "verify", "output/my/bundle", "--json", tmp_path / "v.json", cwd=workplace)
    assert done.out.startswith("OK: ")
    document = json.loads((tmp_path / "v.json").read_bytes())
    assert (document["version"], document["bundle"]) == (1, "output/my/bundle")
    assert document["files"] == int(done.out.split()[1])
    assert document["digest"] in done.out
    assert document["manifest_digest"] in done.out


def test_quiet_prints_no_tables(workplace: Path) -> None:
    assert ort_mobile("-q", "partition", "my.onnx", "--ep", "nnapi", cwd=workplace) == (0, "", "")
