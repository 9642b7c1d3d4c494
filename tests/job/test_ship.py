"""From choices to a bundle: the ways to run that ship, what is kept of the originals, the libraries that are proven."""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from device_runner.spec import ElementType, NnapiFlag, RunOptions, TensorFile
from pipeline.check.compare import OutputPrecision
from pipeline.check.result import Reference
from pipeline.compat.defects import Runtime
from pipeline.config import BuildConfig, CheckConfig, Config, ModelConfig, Platform, RunConfig, Target, VariantsConfig
from pipeline.config.tables import BuildKind
from pipeline.core.errors import CheckFailed, Severity
from pipeline.core.files import CONFIG_FILE
from pipeline.core.releases import Release
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.job.assemble import bundled_name
from pipeline.job.objections import left_out_of
from pipeline.release import reference_files
from pipeline.release.choose import Choice
from pipeline.release.reference_files import keep_reference
from pipeline.release.shipped import ShippedLibrary, libraries_of, operator_configs, runs_of
from pipeline.required_ops import parse
from tests.ort_models import conv_relu, convert

PHONE = Target(name="phone", platform=Platform.ANDROID, min_api_level=27)
NNAPI = RunOptions(provider="nnapi", flags=(NnapiFlag.USE_FP16,))


def choice(target: Target = PHONE, session_options: Mapping[str, str] = MappingProxyType({})) -> Choice:
    artifact = Artifact(
        model="m", variant=Variant(level=Level.BASIC), file="m.basic-fixed.ort", size_bytes=1, sha256="0" * 64,
        semantic_digest="1" * 64, operators={}, source_operators={},
        session_options=dict(session_options),
    )  # fmt: skip
    return Choice(target=target, artifact=artifact, options=NNAPI, reason="", measured=False)


def config(*runs: RunConfig) -> Config:
    return Config(name="demo", models=(ModelConfig(path="m.onnx"),), runs=runs)


def test_the_chosen_way_is_first_and_every_other_follows_once() -> None:
    runs = (
        RunConfig(provider="nnapi", flags=((), ("USE_FP16",), ("CPU_ONLY",), ("CPU_ONLY", "CPU_DISABLED"))),
        RunConfig(threads=(1, 2, 4), spinning=(True, False)),
        RunConfig(provider="xnnpack", variants=("extended-*",)),
        RunConfig(provider="coreml"),
    )
    found = runs_of(config(*runs), choice())
    assert [(options.provider, options.flags) for options in found] == [
        ("nnapi", (NnapiFlag.USE_FP16,)),
        ("nnapi", ()),
        ("nnapi", (NnapiFlag.CPU_ONLY,)),
        ("cpu", ()),
    ]


def test_equal_bytes_of_a_model_are_bundled_under_one_name() -> None:
    first = choice().artifact
    same = msgspec.structs.replace(first, variant=Variant(level=Level.ALL), file="m.all-fixed.ort")
    other = msgspec.structs.replace(same, sha256="2" * 64)
    of_another_model = msgspec.structs.replace(first, model="n", file="n.basic-fixed.ort")
    made = [replace(choice(), artifact=artifact) for artifact in (first, same, other, of_another_model)]
    assert [bundled_name(each, made) for each in made] == [
        "m.basic-fixed.ort", "m.basic-fixed.ort", "m.all-fixed.ort", "n.basic-fixed.ort",
    ]  # fmt: skip


def test_what_an_artifact_needs_is_in_every_way() -> None:
    found = runs_of(config(RunConfig()), choice(session_options={"a.b": "1"}))
    assert [options.session_config for options in found] == [{"a.b": "1"}] * 2


def reference(folder: Path, count: int) -> Reference:
    tensors = []
    for name in ("input_0.bin", "output_0.bin"):
        (folder / name).write_bytes(bytes(4 * count))
        # The folder may have been moved since: names count, not places.
        tensors.append(TensorFile(name=name, dtype=ElementType.FLOAT32, shape=(count,), file=f"/elsewhere/{name}"))
    return Reference(inputs=tuple(tensors[:1]), outputs=tuple(tensors[1:]), precision=OutputPrecision.FLOAT16)


def test_a_reference_is_kept_with_its_tolerance(tmp_path: Path) -> None:
    kept = keep_reference("m", reference(tmp_path, 3), tmp_path, CheckConfig())
    assert [tensor.path for tensor in (*kept.inputs, *kept.outputs)] == [
        "evidence/reference/m/input_0.bin",
        "evidence/reference/m/output_0.bin",
    ]
    assert kept.tolerance.max_relative_error == 2e-2
    assert keep_reference("m", reference(tmp_path, 3), tmp_path, CheckConfig(max_relative_error=0.5)) != kept


def test_large_tensors_are_not_kept_and_lost_or_changed_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reference(tmp_path, 3)
    monkeypatch.setattr(reference_files, "MOST_KEPT_BYTES", 11)
    assert keep_reference("m", made, tmp_path, CheckConfig()).inputs == ()
    monkeypatch.undo()
    summed = msgspec.structs.replace(made.outputs[0], crc32=zlib.crc32(bytes(12)))
    noted = msgspec.structs.replace(made, outputs=(summed,))
    assert keep_reference("m", noted, tmp_path, CheckConfig()).outputs
    (tmp_path / "output_0.bin").write_bytes(bytes(11) + b"\1")
    with pytest.raises(CheckFailed, match="not what the original model computed"):
        keep_reference("m", noted, tmp_path, CheckConfig())
    (tmp_path / "input_0.bin").unlink()
    with pytest.raises(CheckFailed, match="it is not there"):
        keep_reference("m", made, tmp_path, CheckConfig())


def test_libraries_are_those_of_android_and_linux_targets_each_once() -> None:
    targets = [
        Target(name="a", platform=Platform.ANDROID, library="android:1.29.0"),
        Target(name="b", platform=Platform.ANDROID, library="android:1.29.0"),
        Target(name="c", platform=Platform.ANDROID),
        Target(name="d", platform=Platform.LINUX, library="x.so"),
        Target(name="e", platform=Platform.LINUX),
        Target(name="f", platform=Platform.MACOS, library="x.dylib"),
    ]
    named = {"android:1.29.0": ("a", "b"), "x.so": ("d",)}
    assert libraries_of(targets, None) == named
    assert libraries_of(targets, "app.aar") == {**named, "app.aar": ("c",)}
    assert libraries_of(targets, "wheel:1.29.0") == {**named, "wheel:1.29.0": ("e",)}
    assert libraries_of(targets, "libonnxruntime.so") == named


def test_operator_configs_are_for_the_builds_that_the_config_plans(tmp_path: Path) -> None:
    artifact = convert(conv_relu(), tmp_path / "m.ort", level="none")

    def operators(*runs: RunConfig, kind: BuildKind = BuildKind.AUTO) -> set[str]:
        plan = msgspec.structs.replace(
            config(*runs),
            targets=(PHONE,),
            variants=VariantsConfig(styles=(Style.FIXED,)),
            build=BuildConfig(kind=kind),
        )
        text = operator_configs(plan, [artifact])[CONFIG_FILE]
        names = [line.rpartition(";")[2] for line in text.splitlines() if not line.startswith("#")]
        return {name for line in names for name in line.split(",")}

    assert operators(RunConfig()) == {"Conv", "Relu"}
    assert "Transpose" not in operators(RunConfig(), kind=BuildKind.EXTENDED)
    assert "Transpose" in operators(RunConfig(), RunConfig(provider="nnapi"))


def test_a_file_whose_operators_are_not_known_is_not_said_to_have_them(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"nothing of a model")
    runtime = Runtime(release=Release(1, 29), abis=("arm64-v8a",))
    library = ShippedLibrary(runtime=runtime, sizes={}, operators=parse("ai.onnx;11;Conv\n", "c"))
    (finding,) = left_out_of(library, tmp_path / "broken.onnx", "cpu")
    assert finding.severity is Severity.WARNING
    assert finding.what == "not all that a reduced build needs for it is known"
