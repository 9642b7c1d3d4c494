"""`ort-mobile op-config` as users run it: what it prints, writes and returns."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline.required_ops import RequiredOps, parse, read_config
from tests.command import ort_mobile
from tests.ort_models import convert, converted, parsed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of three models: conv_relu in both styles, casts, control_flow."""
    folder = tmp_path_factory.mktemp("artifacts")
    converted(folder, "conv_relu", level="extended")
    converted(folder, "conv_relu", level="extended", runtime=True)
    converted(folder, "casts", level="none")
    converted(folder, "control_flow", level="none")
    return folder


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command of op-config."""
    done = ort_mobile("op-config", *arguments, code=None)
    return done.code, done.out, done.err


def artifact(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"{name}*.ort")
    return found


def test_create_from_files_folders_and_archives_is_the_same(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in folder.iterdir():
            opened.write(path, f"deep/{path.name}")
    sources = [[folder], sorted(folder.iterdir()), sorted(folder.iterdir(), reverse=True), [archive]]
    for place, source in enumerate(sources):
        ended = run("create", *source, "-o", tmp_path / f"{place}.config")
        assert ended[0] == 0, ended
    (content,) = {(tmp_path / f"{place}.config").read_bytes() for place in range(len(sources))}
    assert b"FusedConv" in content
    assert b"Tan" in content
    assert str(folder).encode() not in content


def test_create_writes_the_same_bytes_whatever_the_hash_seed(folder: Path, tmp_path: Path) -> None:
    """What is rendered passes through sets: their order differs from process to process."""
    code = "import sys; from pipeline.cli.main import main; main(['op-config', 'create', *sys.argv[1:]])"
    for seed in ("1", "2", "3"):
        output = tmp_path / f"{seed}.config"
        subprocess.run(
            [sys.executable, "-c", code, str(folder), "-o", str(output)], check=True, cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
    assert len({path.read_bytes() for path in tmp_path.glob("*.config")}) == 1


def test_what_was_written_is_said(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.config"
    code, out, _ = run("create", artifact(folder, "control_flow"), "--output", path)
    assert (code, out) == (0, f"{path}: written, {len(read_config(path).operator_keys())} operators\n")
    assert run("merge", path, "-o", path)[1] == out
    assert json.loads(run("merge", path, "-o", path, "--json", "-")[1])["config"] == str(path)


def test_create_prints_without_output(folder: Path) -> None:
    code, out, _ = run("create", artifact(folder, "casts"))
    assert code == 0
    assert parse(out, "x").types == {
        ("ai.onnx", "Cast"): {
            ("inputs", 0): {"float", "int32_t"},
            ("outputs", 0): {"float", "int64_t", "double"},
        }
    }
    assert parse(run("create", "--no-types", artifact(folder, "casts"))[1], "x").types == {}


def test_create_for_a_provider_adds_its_layout_change(folder: Path) -> None:
    source = artifact(folder, "conv_relu.extended-fixed")
    plain = parse(run("create", source)[1], "x")
    changed = parse(run("create", source, "--provider", "nnapi")[1], "x")
    assert "Transpose" in {op for _, op in changed.difference(plain).operator_keys()}
    assert parse(run("create", source, "--provider", "coreml")[1], "x") == plain


def test_saved_optimizations_of_one_artifact_make_the_build_optimize_all(tmp_path: Path) -> None:
    """Such a build turns the other artifact's quantized nodes to NHWC as well."""
    text = """
        g (uint8[1, 1, 4, 4] x) => (uint8[1, 1, 2, 2] y)
        <float s = {0.1}, uint8 z = {128}, uint8[1, 1, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
            y = QLinearConv (x, s, z, w, s, z, s, z)
        }"""
    other = convert(parsed(text), tmp_path / "quantized.ort")
    saved = converted(tmp_path, "conv_relu", level="extended", runtime=True)
    assert "Transpose" not in run("create", other)[1]
    assert "Transpose" in run("create", other, "--extended")[1]
    for order in ([other, saved], [saved, other]):
        assert 'com.microsoft;1;FusedConv,QLinearConv{"inputs": {"0": ["uint8_t"]}}' in run("create", *order)[1]


def test_create_with_globally_allowed_types_is_proven(folder: Path, tmp_path: Path) -> None:
    source = artifact(folder, "conv_relu.extended-fixed")
    code, out, _ = run("create", source, "--globally-allowed-types", "int64_t,float")
    assert code == 0
    assert parse(out, "x").global_types == frozenset({"float", "int64_t"})
    code, out, err = run("create", folder, "--globally-allowed-types", "float", "-o", tmp_path / "no.config")
    assert code == 4
    assert "ai.onnx:Cast" in out
    assert "int32_t" in out
    assert "allow these types" in err
    assert not (tmp_path / "no.config").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "FOLDER", "--globally-allowed-types", "flaot"], "did you mean float?"),
        (["explain", "FOLDER", "--operator", "Tann"], "did you mean Tan?"),
        (["check", "c.config"], "--from-log"),
        (["check", "c.config", "FOLDER"], "c.config:1:16"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.config").write_text("ai.onnx;13;Add # the first one\n")
    code, _, err = run(*(folder if word == "FOLDER" else word for word in words))
    assert code == 2
    assert said in err


def test_one_broken_artifact_fails_all_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.ort"
    broken.write_bytes(artifact(folder, "casts").read_bytes()[:500])
    code, _, err = run("create", folder, broken, "-o", tmp_path / "c")
    assert code == 1
    assert str(broken) in err
    assert "1 of 5" in err
    assert not (tmp_path / "c").exists()


def test_merge_loses_nothing(folder: Path, tmp_path: Path) -> None:
    parts = []
    for place, source in enumerate(sorted(folder.iterdir())):
        parts.append(tmp_path / f"{place}.config")
        run("create", source, "-o", parts[-1])
    joined = tmp_path / "joined.config"
    joined.write_text("".join(part.read_text() for part in parts))
    code, out, _ = run("merge", *parts)
    assert code == 0
    assert out == run("merge", joined)[1] == run("merge", *parts[::-1])[1]
    assert all(parse(out, "x").contains(read_config(part)) for part in parts)


def test_check_proves_or_names_the_line(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.config"
    run("create", folder, "-o", config)
    code, out, _ = run("check", config, folder)
    assert code == 0
    assert "4 artifacts" in out
    config.write_text("".join(line for line in config.read_text().splitlines(keepends=True) if "FusedConv" not in line))
    code, out, err = run("check", config, folder)
    assert code == 4
    assert "com.microsoft;1;FusedConv" in out
    assert "conv_relu.extended-fixed.ort" in out
    assert "lacks 1 operator" in err
    code, out, _ = run("check", "--json", "-", config, folder)
    assert code == 4
    told = json.loads(out)["missing"]
    assert {item["op"] for items in told.values() for item in items} == {"FusedConv"}
    assert all(item["node"] for items in told.values() for item in items)


def test_check_groups_what_artifacts_lack_and_its_lines_can_be_merged(folder: Path, tmp_path: Path) -> None:
    config, lines = tmp_path / "c.config", tmp_path / "lines.config"
    run("create", artifact(folder, "control_flow"), "-o", config)
    code, out, err = run("check", config, folder)
    assert code == 4
    heads = [line for line in out.splitlines() if line.startswith(("ai.onnx:", "com.microsoft:"))]
    assert len(heads) == len({head.partition(",")[0] for head in heads})
    assert f"lacks {len(heads)} operators" in err
    lines.write_text("\n".join(line.strip() for line in out.partition("\nadd:\n")[2].splitlines()) + "\n")
    assert read_config(lines).operator_keys()
    assert run("merge", config, lines, "-o", config)[0] == 0
    assert run("check", config, folder)[0] == 0


def test_check_reads_a_log(folder: Path, tmp_path: Path) -> None:
    config, log = tmp_path / "c.config", tmp_path / "logcat.txt"
    run("create", artifact(folder, "casts"), "-o", config)
    log.write_bytes(
        b"\xff\xfe I/app\nFailed to find kernel for Tan(7) (node:'t' ep:'CPUExecutionProvider'). Kernel not found\n"
    )
    code, out, _ = run("check", config, "--from-log", log)
    assert code == 4
    assert "ai.onnx;7;Tan\n" in out
    log.write_text("ORT model verification failed.\n")
    code, out, err = run("check", config, "--from-log", log)
    assert code == 4
    assert "noCompress" in out
    assert "not the cause" in err
    log.write_text("all is well\n")
    code, out, _ = run("check", config, "--from-log", log)
    assert code == 0
    assert "nothing about operators" in out


def test_explain_names_models_nodes_and_types(folder: Path, tmp_path: Path) -> None:
    code, out, _ = run("explain", folder, "--operator", "Tan")
    assert code == 0
    assert run("explain", folder, "--operator", "tan") == run("explain", folder, "--operator", "ai.onnx:Tan")
    lines = out.splitlines()
    assert lines[0] == "ai.onnx:Tan since 7"
    assert "control_flow" in lines[1]
    assert "then_branch" in lines[1]
    config = tmp_path / "c.config"
    config.write_text("ai.onnx;7;Tan\nai.onnx;13;Erf\n")
    assert "no model needs ai.onnx;13;Erf" in run("explain", folder, "--config", config)[1]
    told = json.loads(run("explain", folder, "--json", "-", "--config", config)[1])
    assert told["superfluous"] == ["ai.onnx;13;Erf"]
    (cast,) = [use for use in told["uses"] if use["types"] == ["input 0 int32_t", "output 0 float"]]
    assert [Path(name).name for name in cast["artifacts"]] == ["casts.none-fixed.ort"]


def test_diff_reads_like_a_review(folder: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old.config", tmp_path / "new.config"
    run("create", artifact(folder, "casts"), "-o", old)
    run("create", folder, "-o", new)
    code, out, _ = run("diff", old, new, folder)
    assert code == 0
    lines = out.splitlines()
    assert f"adds ai.onnx:Tan opset 7, only needed by {artifact(folder, 'control_flow')}" in lines
    assert not any("Cast" in line for line in lines)
    assert any(line.startswith("removes ai.onnx:Tan opset 7") for line in run("diff", new, old)[1].splitlines())
    assert "the same" in run("diff", new, new)[1]
    told = json.loads(run("diff", "--json", "-", old, new, folder)[1])
    (tan,) = [change for change in told["changes"] if change["op"] == "Tan"]
    assert tan["kind"] == "adds"
    assert len(tan["needed_by"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('ai.onnx;13;Cast{"inputs": {"0": ["float"]}}', 'ai.onnx;13;Cast{"inputs": {"0": ["bool", "float"]}}',
         "adds ai.onnx:Cast bool at input 0"),
        ('ai.onnx;13;Cast{"inputs": {"0": ["float"]}}', "ai.onnx;13;Cast",
         "adds ai.onnx:Cast all types (was restricted to input 0 float)"),
        ("ai.onnx;13;Cast", 'ai.onnx;13;Cast{"inputs": {"0": ["float"]}}',
         "removes ai.onnx:Cast all types but input 0 float"),
        ("ai.onnx;13;If", "!globally_allowed_types;float\nai.onnx;13;If", "adds the restriction of all types to float"),
        ("!globally_allowed_types;float", "!globally_allowed_types;bool,float", "adds the globally allowed type bool"),
        ("", "!no_ops_specified_means_all_ops_are_required", "adds the rule that all operators are required"),
        ("ai.onnx;13;If", "ai.onnx;14;If", "adds ai.onnx:If opset 14\nremoves ai.onnx:If opset 13"),
    ],
)  # fmt: skip
def test_sentences_of_a_diff(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    (tmp_path / "old").write_text(old)
    (tmp_path / "new").write_text(new)
    assert run("diff", tmp_path / "old", tmp_path / "new")[1].strip() == sentence


def test_a_diff_keeps_changes_of_an_operator_together_and_counts_them(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("ai.onnx;1;Tan\nai.onnx;11;Conv\nai.onnx;13;Gemm\n")
    (tmp_path / "new").write_text("ai.onnx;1;Conv,Tan\nai.onnx;7;Gemm\ncom.microsoft;1;Gelu\n")
    _, out, err = run("diff", tmp_path / "old", tmp_path / "new")
    assert out.splitlines() == [
        "adds ai.onnx:Conv opset 1", "removes ai.onnx:Conv opset 11", "adds ai.onnx:Gemm opset 7",
        "removes ai.onnx:Gemm opset 13", "adds com.microsoft:Gelu opset 1",
    ]  # fmt: skip
    assert err.strip() == "3 additions and 2 removals"


def test_operators_of_custom_libraries_are_noted(folder: Path, tmp_path: Path) -> None:
    """The build cannot add their kernels; the config keeps them, so that checks agree with it."""
    source = tmp_path / "custom.ort"
    data = artifact(folder, "conv_relu.extended-fixed").read_bytes()
    source.write_bytes(data.replace(b"com.microsoft", b"com.my_domain"))
    code, out, err = run("create", source)
    assert code == 0
    assert parse(out, "x").contains(RequiredOps(operators={("com.my_domain", 1): frozenset({"FusedConv"})}))
    assert "custom operator library" in err


@pytest.mark.parametrize("command", ["create", "merge", "check", "explain", "diff"])
def test_missing_files_and_arguments_are_usage_errors(tmp_path: Path, command: str) -> None:
    assert run(command)[0] == 2
    nothing = [tmp_path / "none", tmp_path / "none"]
    code, _, err = run(command, *nothing)
    assert code == 2
    assert str(nothing[0]) in err


def test_names_from_models_cannot_steer_the_terminal(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "hostile.ort"
    named = convert(parsed("g (float[2] x) => (float[2] y) { [the_node] y = Tan (x) }"), tmp_path / "named.ort")
    source.write_bytes(named.read_bytes().replace(b"the_node", b"\x1b[2Jnode"))
    (tmp_path / "c").write_text("")
    for arguments in (["check", tmp_path / "c", source], ["explain", source]):
        out = run(*arguments)[1]
        assert "\x1b" not in out
        assert "[2Jnode" in out
