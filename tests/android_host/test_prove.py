"""Bundles proven in genuine Android libraries: what holds, and every way in which a release can fail."""

import json
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from device_runner import build
from device_runner.android_host.build import NNAPI, build_host
from device_runner.android_host.device import Driver, DriverProfile, DriverStage, Fault, FaultKind
from device_runner.device import DriverType
from device_runner.files import cache_folder
from device_runner.library import LibraryFacts, resolve
from device_runner.spec import NnapiFlag, RunOptions
from pipeline.check.library_proof import FindingKind, LibraryProof, ProofRow
from pipeline.core.files import sha256_of
from pipeline.core.progress import NoProgress
from pipeline.core.variant import Level
from pipeline.features.prove import ProofOrder, prove_bundle
from pipeline.model.ort_format import read_ort
from pipeline.release.manifest import MANIFEST_FILE, SEAL_FILE, Manifest, content_digest, encode_manifest, read_manifest
from tests.android_host.bundles import CPU, bundle_of, nnapi, parsed
from tests.android_host.conftest import OLDEST, fetch
from tests.command import ort_mobile
from tests.features.sizes import two_sizes
from tests.own_home import CACHE, link
from tests.privacy.tracing import compile_tracer, own_folders, trace

pytestmark = pytest.mark.android_host

CONV = "g (float[1,1,8,8] x) => (float[1,2,6,6] y) { c = Conv (x, w) y = Relu (c) }"
SPLIT = "g (float[4,3] x) => (float[2,3] y, float[2,3] z) <int64[2] s = {2, 2}> { y, z = Split <axis=0> (x, s) }"
XNNPACK = RunOptions(provider="xnnpack")
FLAGS = tuple((flag,) for flag in NnapiFlag)


def conv_relu() -> onnx.ModelProto:
    model = parsed(CONV, 13)
    weights = np.linspace(-1, 1, 18, dtype=np.float32).reshape(2, 1, 3, 3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def prove(bundle: Path, library: LibraryFacts, **order: object) -> LibraryProof:
    return prove_bundle(bundle, replace(ProofOrder(library=library.path), **order), NoProgress())  # type: ignore[arg-type]  # by name


def only(proof: LibraryProof) -> ProofRow:
    (row,) = proof.rows
    return row


def kinds(row: ProofRow) -> list[FindingKind]:
    return [finding.code for finding in row.findings]


def test_the_example_holds_with_every_provider_and_flag(library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    runs = (CPU, nnapi(), *(nnapi(*flags) for flags in FLAGS))
    proof = prove(bundle_of(tmp_path, mnist, runs), library, api_levels=(30,))
    assert not proof.failed
    assert [row.run for row in proof.rows if row.chosen] == ["cpu"]
    assert len(proof.rows) == len(runs)
    assert all(row.findings == () and row.checks[0].passed for row in proof.rows)
    sizes = {row.run: row.partitions for row in proof.rows if row.partitions}
    assert sizes == {run.run: (7,) if run.run == "nnapi+USE_NCHW" else (9,) for run in proof.rows[1:]}
    assert proof.library.release == library.release
    assert proof.bundle == read_manifest(tmp_path / "bundle").content_sha256


def test_sizes_with_shared_weights_hold(library: LibraryFacts, tmp_path: Path) -> None:
    proof = prove(two_sizes(tmp_path, shared=True), library, api_levels=(30,))
    assert not proof.failed
    assert {row.model for row in proof.rows} == {"m", "m-2x3", "m-4x8"}
    assert all(row.checks[0].passed for row in proof.rows)


def test_xnnpack_has_no_schema_for_what_it_makes_of_an_activation_behind_a_convolution(
    library: LibraryFacts, tmp_path: Path
) -> None:
    """Measured with 1.28.0 and 1.29.0: an ONNX file works, and an ORT format file where Relu is fused already."""
    whole, joined = Level.BASIC, Level.EXTENDED
    rows = {
        level: only(prove(bundle_of(tmp_path / level, conv_relu(), (XNNPACK,), level=level), library, api_levels=(30,)))
        for level in (whole, joined)
    }
    assert kinds(rows[whole]) == [FindingKind.PROVIDER_REFUSED]
    assert "extended" in rows[whole].findings[0].remedy
    assert rows[joined].findings == ()


def test_no_times_are_told(library: LibraryFacts, tmp_path: Path) -> None:
    text = msgspec.json.encode(prove(bundle_of(tmp_path, conv_relu()), library)).decode()
    assert not [word for word in ("_ns", "seconds", "latenc", "median") if word in text]


@pytest.mark.parametrize(
    ("level", "told"),
    [
        (24, dict.fromkeys(NnapiFlag, FindingKind.NOTHING_CLAIMED)),
        (27, dict.fromkeys(NnapiFlag, FindingKind.FLAG_WITHOUT_EFFECT)),
        (28, {
            NnapiFlag.USE_NCHW: FindingKind.FLAG_COSTS_NODES,
            NnapiFlag.CPU_DISABLED: FindingKind.FLAG_WITHOUT_EFFECT,
            NnapiFlag.CPU_ONLY: FindingKind.FLAG_WITHOUT_EFFECT,
        }),
        (29, {}),
    ],
)  # fmt: skip
def test_flags_do_at_each_level_what_the_recorded_calls_say(
    library: LibraryFacts, mnist: Path, tmp_path: Path, level: int, told: dict[NnapiFlag, FindingKind]
) -> None:
    bundle = bundle_of(tmp_path, mnist, tuple(nnapi(*flags) for flags in FLAGS))
    proof = prove(bundle, library, api_levels=(level,))
    assert not proof.failed
    assert {row.options.flags[0]: kinds(row)[0] for row in proof.rows if row.findings} == told


def test_a_driver_without_an_accelerator_makes_cpu_disabled_useless(library: LibraryFacts, tmp_path: Path) -> None:
    driver = DriverProfile(devices=(Driver(name="nnapi-reference", type=DriverType.CPU, feature_level=30),))
    bundle = bundle_of(tmp_path, conv_relu(), (nnapi(NnapiFlag.CPU_DISABLED),))
    row = only(prove(bundle, library, api_levels=(30,), driver=driver))
    assert kinds(row) == [FindingKind.FLAG_WITHOUT_EFFECT]
    assert "the system chooses" in row.findings[0].why


KERNELS = {
    "an operator": ("g (float[2,3] x) => (float[2,3] y) { [n] y = Gelu (x) }", 20, OLDEST, "ai.onnx;20;Gelu"),
    "a type": ("g (double[2,3] x) => (double[2,3] y) { [n] y = Cos (x) }", 13, "1.28.0", "ai.onnx;7;Cos"),
}


@pytest.mark.parametrize("lacking", KERNELS)
def test_a_missing_kernel_is_the_missing_config_line(tmp_path: Path, lacking: str) -> None:
    text, opset, release, line = KERNELS[lacking]
    library = fetch(release)
    try:
        bundle = bundle_of(tmp_path, parsed(text, opset), level=Level.NONE)
    except Exception as error:
        if "Could not find an implementation" not in str(error):
            raise
        pytest.skip(f"the installed onnxruntime lacks this kernel, too: {error}")
    row = only(prove(bundle, library, api_levels=(30,)))
    assert row.failed
    (finding,) = row.findings
    assert finding.code is FindingKind.MISSING_KERNEL
    assert finding.config_line == line
    assert line in (bundle / "operators" / "required_operators.config").read_text()


def test_an_operator_that_the_release_never_had(tmp_path: Path) -> None:
    library = fetch(OLDEST)
    bundle = bundle_of(tmp_path, parsed("g (float[2] x) => (float[2] y) { y = Elu (x) }", 22), level=Level.NONE)
    row = only(prove(bundle, library, api_levels=(30,)))
    assert kinds(row) == [FindingKind.UNKNOWN_OPERATOR]
    assert "domain_version of 22" in row.findings[0].why


def _rewrite(bundle: Path, path: Path, content: bytes) -> None:
    """Change a file of a bundle, and seal it anew as somebody would who knows how."""
    path.write_bytes(content)
    manifest = read_manifest(bundle)
    files = tuple(
        msgspec.structs.replace(file, sha256=sha256_of(bundle / file.path), size_bytes=len(content))
        if bundle / file.path == path
        else file
        for file in manifest.content.files
    )
    whole = msgspec.structs.replace(manifest.content, files=files)
    _seal(bundle, msgspec.structs.replace(manifest, content=whole, content_sha256=content_digest(whole)))


def _seal(bundle: Path, manifest: Manifest | bytes) -> None:
    text = manifest if isinstance(manifest, bytes) else encode_manifest(manifest)
    (bundle / MANIFEST_FILE).write_bytes(text)
    (bundle / SEAL_FILE).write_text(f"{sha256_of(bundle / MANIFEST_FILE)}  {MANIFEST_FILE}\n")


def test_a_newer_format_is_refused_and_told(library: LibraryFacts, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, conv_relu())
    model = bundle / "models" / "model.ort"
    version = b"\x01\0\0\0" + read_ort(model).format_version.encode() + b"\0"
    assert version in model.read_bytes()
    _rewrite(bundle, model, model.read_bytes().replace(version, b"\x01\0\0\0" + b"9\0", 1))
    row = only(prove(bundle, library, api_levels=(30,)))
    assert kinds(row) == [FindingKind.REFUSED_FORMAT]
    assert "[9]" in row.findings[0].why
    assert "convert the model again" in row.findings[0].remedy


def test_a_crash_of_the_library_is_a_row_and_costs_no_other(library: LibraryFacts, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, parsed(SPLIT, 18), (nnapi(), CPU), level=Level.NONE)
    crashed, cpu = prove(bundle, library, api_levels=(30,)).rows
    assert not cpu.failed
    assert crashed.failed
    assert crashed.findings[0].what == "the library crashed (SIGFPE)"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(stage=DriverStage.RUN, kind=FaultKind.HANG), FindingKind.HANG),
        (Fault(stage=DriverStage.COMPILE, kind=FaultKind.HANG), FindingKind.HANG),
        (Fault(stage=DriverStage.RUN, kind=FaultKind.CRASH), FindingKind.CRASH),
        (Fault(stage=DriverStage.COMPILE), FindingKind.PROVIDER_REFUSED),
        (Fault(stage=DriverStage.RUN, kind=FaultKind.LOST), FindingKind.PROVIDER_REFUSED),
    ],
)
def test_faults_of_a_driver_are_rows(library: LibraryFacts, tmp_path: Path, fault: Fault, kind: FindingKind) -> None:
    driver = DriverProfile(devices=(Driver(name="npu", feature_level=30),), faults=(fault,))
    bundle = bundle_of(tmp_path, conv_relu(), (nnapi(), CPU))
    failed, cpu = prove(bundle, library, api_levels=(30,), driver=driver, timeout_seconds=1.0).rows
    assert kinds(failed) == [kind]
    assert failed.findings[0].remedy
    assert not cpu.failed


def test_a_provider_that_the_library_lacks_fails(library: LibraryFacts, tmp_path: Path) -> None:
    row = only(prove(bundle_of(tmp_path, conv_relu(), (RunOptions(provider="SNPE"),)), library, api_levels=(30,)))
    assert kinds(row) == [FindingKind.PROVIDER_MISSING]


def test_outputs_that_differ_fail(library: LibraryFacts, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, conv_relu(), (CPU, nnapi()))
    manifest = read_manifest(bundle)
    (reference,) = manifest.references
    (output,) = reference.outputs
    wrong = np.fromfile(bundle / output.path, "<f4") * np.float32(1.01)
    (bundle / output.path).write_bytes(wrong.tobytes())
    output = msgspec.structs.replace(output, sha256=sha256_of(bundle / output.path))
    _seal(
        bundle, msgspec.structs.replace(manifest, references=(msgspec.structs.replace(reference, outputs=(output,)),))
    )
    proof = prove(bundle, library, api_levels=(30,))
    assert [kinds(row) for row in proof.rows] == [[FindingKind.OUTPUTS_DIFFER]] * 2
    assert "relative error 0.0099 is over 0.001" in proof.rows[0].findings[0].why


def test_without_a_reference_and_with_open_dimensions_it_says_that_nothing_can_be_known(
    library: LibraryFacts, tmp_path: Path
) -> None:
    bundle = bundle_of(tmp_path, parsed("g (float[n,3] x) => (float[n,3] y) { y = Relu (x) }", 13), reference=False)
    row = only(prove(bundle, library, api_levels=(30,)))
    assert row.failed
    assert "not fixed" in row.findings[0].why


def test_a_lost_part_of_the_shims_is_built_again(
    library: LibraryFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a libneuralnetworks.so the library would call null pointers. What the compiler made before stands in."""
    built, here = build_host(), cache_folder() / "android-host"
    copy = tmp_path / "cache" / "android-host" / built.relative_to(here)
    shutil.copytree(built, copy)
    (copy / NNAPI).unlink()
    (tmp_path / "cache" / "probe").symlink_to(cache_folder() / "probe")
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "make", lambda recipe, folder: shutil.copytree(built, folder, dirs_exist_ok=True))
    bundle = bundle_of(tmp_path, conv_relu(), (nnapi(),))
    assert not prove(bundle, library, api_levels=(27,)).failed


def test_the_command_tells_in_a_table_in_json_and_by_its_exit_code(library: LibraryFacts, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, conv_relu(), (nnapi(NnapiFlag.CPU_ONLY), CPU))
    whole = ("prove", bundle, "--library", library.path, "--api-level", "28,30")
    good = ort_mobile(*whole, "--json", tmp_path / "proof.json")
    assert "4 of 4 runs pass" in good.out
    assert "CPU_ONLY has no effect at API level 28" in " ".join(good.out.split())
    document = json.loads((tmp_path / "proof.json").read_text())
    assert msgspec.convert(document, LibraryProof).library.release == library.release

    profile = {"devices": [{"name": "npu", "feature_level": 30}], "faults": [{"stage": "compile"}]}
    (tmp_path / "npu.json").write_text(json.dumps(profile))
    bad = ort_mobile(*whole, "--driver", tmp_path / "npu.json", "--json", "-", code=4)
    assert [row["failed"] for row in json.loads(bad.out)["rows"]] == [True, False, True, False]


def test_a_changed_bundle_is_not_run(library: LibraryFacts, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, conv_relu())
    (bundle / "models" / "model.ort").write_bytes(b"x")
    ended = ort_mobile("prove", bundle, "--library", library.path, code=4)
    assert "changed: models/model.ort" in ended.err


JOB = """
name = "demo"
[[models]]
path = "{model}"
[[targets]]
name = "phone"
platform = "android"
abis = ["{abi}"]
library = "{library}"
[variants]
levels = ["basic"]
styles = ["fixed"]
[[runs]]
[[runs]]
provider = "nnapi"
flags = ["CPU_DISABLED"]
"""


def test_a_job_proves_its_bundle_by_itself(release: str, library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    config = tmp_path / "demo.toml"
    config.write_text(JOB.format(model=mnist, library=f"android:{release}", abi="x86_64"))
    ended = ort_mobile("run", config, "--output", tmp_path / "out", "--convert-only")
    assert "4 of 4 runs pass" in " ".join(ended.out.split())
    (proof,) = json.loads((tmp_path / "out" / "results.json").read_text())["proofs"]
    assert [row["run"] for row in proof["rows"]] == ["cpu", "nnapi+CPU_DISABLED"] * 2
    assert proof == read_manifest(tmp_path / "out" / "bundle").evidence["library_proofs"][0]
    assert "Proof in the library that ships" in (tmp_path / "out" / "report.md").read_text()
    assert "Proof in the library that ships" in (tmp_path / "out" / "report.html").read_text()
    ort_mobile("bundle", "verify", tmp_path / "out" / "bundle")
    before = (tmp_path / "out" / "results.json").read_bytes()
    ort_mobile("report", tmp_path / "out")
    assert (tmp_path / "out" / "results.json").read_bytes() == before


def test_a_job_says_that_a_way_to_run_fails_that_does_not_ship(
    release: str, library: LibraryFacts, mnist: Path, tmp_path: Path
) -> None:
    config = tmp_path / "demo.toml"
    text = JOB.format(model=mnist, library=f"android:{release}", abi="x86_64")
    config.write_text(text.replace('"nnapi"\nflags = ["CPU_DISABLED"]', '"xnnpack"'))
    ended = ort_mobile("run", config, "--output", tmp_path / "out", "--convert-only")
    assert "2 of 4 runs pass" in " ".join(ended.out.split())
    assert "warns: provider refused" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "bundle" / MANIFEST_FILE).is_file()


def test_a_job_goes_on_without_a_proof_where_nothing_runs_the_librarys_abi(
    release: str, library: LibraryFacts, mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_MOBILE_QEMU", str(tmp_path / "none"))
    arm = resolve(f"android:{release}", "arm64-v8a")
    with zipfile.ZipFile(tmp_path / "arm.aar", "w") as archive:
        archive.write(arm.path, "jni/arm64-v8a/libonnxruntime.so")
    config = tmp_path / "demo.toml"
    config.write_text(JOB.format(model=mnist, library="arm.aar", abi="arm64-v8a"))
    ended = ort_mobile("run", config, "--output", tmp_path / "out", "--convert-only")
    assert "not proven in arm.aar" in " ".join(ended.out.split())
    (proof,) = json.loads((tmp_path / "out" / "results.json").read_text())["proofs"]
    assert "no qemu-aarch64" in proof["not_run"]
    assert "apt-get install qemu-user" in proof["remedy"]
    ort_mobile("prove", tmp_path / "out" / "bundle", "--library", tmp_path / "arm.aar", code=3)
    instead = ort_mobile("prove", tmp_path / "out" / "bundle", "--library", f"android:{release}")
    assert "phone: x86_64 was run instead of its ABIs" in " ".join(instead.out.split())


def test_proving_contacts_nobody_and_writes_to_its_folders_only(library: LibraryFacts, tmp_path: Path) -> None:
    """The genuine library among what is traced: Android's build of it has telemetry of its own."""
    (tmp_path / "work").mkdir()
    link(tmp_path / CACHE)  # how parts are built is traced elsewhere
    bundle = bundle_of(tmp_path / "work", conv_relu(), (CPU, nnapi()))
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pipeline",
        "prove",
        bundle,
        "--library",
        library.path,
        "--api-level",
        "30",
    ]
    traced = trace(compile_tracer(tmp_path), command, tmp_path)
    assert traced.code == 0, traced.output
    assert traced.contacted == ()
    assert traced.outside(*own_folders(tmp_path)) == []
