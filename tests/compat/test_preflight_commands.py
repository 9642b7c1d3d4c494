"""The preflight as users of convert, perf and build meet it: what is said, and what it costs the other models."""

import json
from pathlib import Path

import msgspec
import pytest

from pipeline.ort_build.run import BuildRecord, BuiltFile
from tests.command import ort_mobile
from tests.job.test_shipping import young_model
from tests.library.library_files import MINIMAL, library, official_aar
from tests.onnx_samples import conv_bn, linear, save
from tests.ort_models import convert


@pytest.mark.long
def test_convert_tells_what_a_release_cannot_load_and_does_the_others(tmp_path: Path) -> None:
    young, plain = young_model(tmp_path / "young.onnx"), save(linear(8), tmp_path / "plain.onnx")
    out = tmp_path / "out"
    ended = ort_mobile(
        "convert", young, plain, "--output", out, "--level", "basic", "--style", "fixed", "--ort-release", "1.18",
        "--json", tmp_path / "out.json", ORT_MOBILE_CACHE=str(tmp_path),
    )  # fmt: skip
    ended = ort_mobile(
        "convert", young, plain, "--output", out, "--level", "basic", "--style", "fixed", "--ort-release", "1.16",
        "--json", tmp_path / "out.json", ORT_MOBILE_CACHE=str(tmp_path),
     code=4)  # fmt: skip
    assert "ONNX Runtime 1.16 has no Gelu of opset 20 (basic-fixed)" in ended.err
    assert "ship ONNX Runtime 1.18 or later" in ended.err
    rows = {
        row["model"].rpartition("/")[2]: row for row in json.loads((tmp_path / "out.json").read_text())["artifacts"]
    }
    assert [finding["severity"] for finding in rows["young.onnx"]["findings"]] == ["error"]
    assert rows["plain.onnx"]["findings"] == []
    assert (out / "plain.basic-fixed.ort").is_file()


def test_convert_warns_of_runtime_style_in_minimal_builds(tmp_path: Path) -> None:
    model = save(conv_bn(8), tmp_path / "m.onnx")
    arguments = ("convert", model, "--output", tmp_path / "out", "--level", "extended", "--style", "runtime")
    minimal = ort_mobile(*arguments, "--build-kind", "minimal", ORT_MOBILE_CACHE=str(tmp_path))
    assert "a minimal build ignores saved runtime optimizations" in minimal.err
    assert "ignores" not in ort_mobile(*arguments, "--build-kind", "extended", ORT_MOBILE_CACHE=str(tmp_path)).err


@pytest.mark.long
def test_perf_leaves_out_what_the_library_has_not_and_measures_the_rest(tmp_path: Path) -> None:
    good = convert(linear(8), tmp_path / "good.ort")
    bad = tmp_path / "bad.ort"
    bad.write_bytes(good.read_bytes()[:200])
    ended = ort_mobile(
        "perf", good, bad, "--provider", "cpu,coreml", "--dimension", "batch=1", "--session-config",
        "session.disable_prepackin=1", "--rounds", "1", "--min-runs", "2", "--min-seconds", "0.001",
        "--json", tmp_path / "perf.json",
    )  # fmt: skip
    report = json.loads((tmp_path / "perf.json").read_text())
    assert [row["variant"] for row in report["rows"]] == ["good.ort"], ended.err
    reasons = {(skip["variant"], skip["run"].split("+")[0]): skip["reason"] for skip in report["skipped"]}
    assert set(reasons) >= {("good.ort", "coreml"), ("bad.ort", "cpu")}
    said = {(one["where"], one["rule"]): one["why"] + one["remedy"] for one in report["warnings"]}
    assert any("did you mean session.disable_prepacking?" in text for text in said.values())


def built(cache: Path, name: str, operators: str, size: int) -> Path:
    folder = cache / "builds" / name
    (folder / "x86_64").mkdir(parents=True)
    (folder / "x86_64" / "libonnxruntime.so").write_bytes(bytes(size))
    record = BuildRecord(
        digest=name, source_digest="s", target="desk", version="1.23.2", kind="minimal", providers=(),
        operators=operators, seconds=1.0,
        files=(BuiltFile(file="x86_64/libonnxruntime.so", abi="x86_64", size_bytes=size, sha256=name),),
    )  # fmt: skip
    (folder / "build.json").write_bytes(msgspec.json.encode(record))
    return folder


def test_build_size_compares_two_builds_by_name_or_folder(tmp_path: Path) -> None:
    built(tmp_path, "aaa1", 'ai.onnx;13;Add{"inputs": {"0": ["float"]}}\n', 1_000)
    second = built(tmp_path, "bbb2", 'ai.onnx;13;Add{"inputs": {"0": ["double", "float"]}}\nai.onnx;11;Conv\n', 3_500)
    ended = ort_mobile("build", "size", "aaa", second, ORT_MOBILE_CACHE=str(tmp_path))
    assert ended.out.split() == [
        "x86_64", "1,000", "->", "3,500", "+2,500", "adds", "ai.onnx:Add", "double", "adds", "ai.onnx:Conv",
    ]  # fmt: skip
    ranked = ort_mobile("build", "size", ORT_MOBILE_CACHE=str(tmp_path))
    assert "+2,500  x86_64: ai.onnx:Add double, ai.onnx:Conv" in ranked.out


def test_build_size_compares_packages(tmp_path: Path) -> None:
    before = official_aar(tmp_path / "before.aar", abis=("arm64-v8a", "x86_64"))
    after = tmp_path / "libonnxruntime.so"
    after.write_bytes(library("arm64-v8a", extra=MINIMAL))
    ended = ort_mobile("build", "size", before, after, ORT_MOBILE_CACHE=str(tmp_path))
    arm, x86 = ended.out.splitlines()
    assert arm.split()[0] == "arm64-v8a"
    assert x86.split()[-1] == "none"


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("nowhere", "nowhere"), 2, "there is no whole build"),
        (("aaa",), 2, "give both BEFORE and AFTER"),
        (("aaa", "aab"), 2, "2 builds begin with"),
        (("garbage.aar", "garbage.aar"), 3, "no libonnxruntime.so"),
    ],
)
def test_build_size_says_what_it_cannot_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage.aar").write_bytes(b"no archive")
    built(tmp_path, "aab1", "ai.onnx;13;Add\n", 1)
    built(tmp_path, "aab2", "ai.onnx;13;Add\n", 2)
    given = ("aab", "aab") if what.startswith("2 builds") else arguments
    ended = ort_mobile("build", "size", *given, ORT_MOBILE_CACHE=str(tmp_path), code=code)
    assert what in ended.err
