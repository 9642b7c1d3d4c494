"""What ONNX Runtime's guides say, done in genuine Android libraries: rows of docs/guides.toml."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.android_host.inspection import Call, read_calls, summarize
from device_runner.device import Device
from device_runner.library import LibraryFacts
from device_runner.profile import read_profile
from device_runner.result import FailureKind, Status
from device_runner.spec import OptimizationLevel, RunOptions, RunSpec
from tests.advice.test_advise import open_mnist
from tests.android_host.conftest import OLDEST, fetch
from tests.android_host.runs import failure, run
from tests.android_host.test_webgpu import CAPTURE
from tests.command import ort_mobile
from tests.compat.test_gpu import BRANCHES, COUNTS
from tests.ort_models import convert, parsed

pytestmark = pytest.mark.android_host


def calls_of(library: LibraryFacts, model: Path, folder: Path, level: int) -> list[Call]:
    """What the library asks of NNAPI for two inferences on a phone of an API level."""
    record = folder / f"calls{level}.jsonl"
    with AndroidHost("android-host", library, Phone(api_level=level, calls=record)) as device:
        assert run(device, model, provider="nnapi").status is Status.OK
    return read_calls(record) if record.is_file() else []


def test_partitions_get_and_give_the_bytes_that_are_said(library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    """The lengths of the buffers that the library gives NNAPI."""
    calls = calls_of(library, mnist, tmp_path, 28)
    told = ort_mobile("partition", mnist, "--ep", "nnapi", "--api-level", "28", "--optimize", "basic", "--json", "-")
    (answer,) = told.document()["models"]
    for way, key in (("setInput", "given_bytes"), ("setOutput", "taken_bytes")):
        lengths = [call["length"] for call in calls if call["call"].startswith(f"Execution_{way}")]
        assert sum(lengths) == summarize(calls).runs * answer[key] > 0


def test_a_model_that_the_library_splits_is_said_to_be_for_the_cpu(
    library: LibraryFacts, mnist: Path, tmp_path: Path
) -> None:
    (answer,) = ort_mobile("check", mnist, "--json", "-").document()["models"]
    for level, judged, verdict in ((27, answer["oldest"][0]["as_is"], "no"), (31, answer["rows"][0]["as_is"], "yes")):
        partitions = summarize(calls_of(library, mnist, tmp_path, level)).partitions
        assert (judged["partitions"], judged["verdict"]) == (len(partitions), verdict)


def test_the_advised_sizes_give_the_library_one_partition(library: LibraryFacts, tmp_path: Path) -> None:
    asked = ("--ep", "nnapi", "--optimize", "basic", "--advise", "--json", "-")
    fixed = tmp_path / "fixed.onnx"
    (answer,) = ort_mobile("partition", open_mnist(tmp_path), *asked, "--fix", fixed).document()["models"]
    best = answer["advice"]["best"]
    partitions = summarize(calls_of(library, fixed, tmp_path, 31)).partitions
    assert (best["fixes"], best["after"]["partitions"]) == (["fixed-dimensions"], len(partitions))


def test_a_library_before_the_layout_level_refuses_it(library: LibraryFacts, mnist: Path) -> None:
    with AndroidHost("android-host", library) as newest, AndroidHost("android-host", fetch(OLDEST)) as oldest:
        assert run(newest, mnist, level=OptimizationLevel.LAYOUT).status is Status.OK
        assert run(oldest, mnist, level=OptimizationLevel.ALL).status is Status.OK
        refused = failure(run(oldest, mnist, level=OptimizationLevel.LAYOUT))
    assert (refused.code, refused.what) == (FailureKind.BAD_OPTIONS, "graph_optimization_level is not valid")


def executed(library: LibraryFacts, model: Path, folder: Path, options: RunOptions) -> list[tuple[str, str]]:
    """The operators that a session ran, as its profile has them, each with its provider."""
    spec = RunSpec(
        id="m", model=str(model), options=options, min_runs=1, min_seconds=0.0, profile=True,
        outputs_folder=str(folder / "out"),
    )  # fmt: skip
    with AndroidHost("android-host", library, Phone(api_level=30)) as phone:
        profile = read_profile(Path(str(phone.run(spec).profile_file)))
    return [(row.operator, row.provider) for row in profile.operators]


@pytest.mark.parametrize(("level", "replayed"), [(OptimizationLevel.NONE, False), (OptimizationLevel.ALL, True)])
def test_saved_optimizations_are_replayed_at_load(
    library: LibraryFacts, mnist: Path, tmp_path: Path, level: OptimizationLevel, *, replayed: bool
) -> None:
    words = ("--style", "runtime", "--level", "extended", "--no-config", "--target-platform", "amd64")
    ort_mobile("convert", mnist, "--output", tmp_path, *words)
    options = RunOptions(optimization_level=level)
    ran = executed(library, tmp_path / "mnist.extended-runtime.ort", tmp_path, options)
    assert ("FusedConv" in dict(ran)) == replayed


def test_the_config_of_a_minimal_build_has_what_the_librarys_layout_change_adds(
    library: LibraryFacts, tmp_path: Path
) -> None:
    """XNNPACK's Transposes are run by the CPU, so that they are seen; NNAPI takes those of the same change itself."""
    text = "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) { a = Conv (x, w)  b = Softplus (a)  y = Conv (b, w) }"
    model = convert(parsed(text, w=np.ones((2, 2, 1, 1), np.float32)), tmp_path / "m.ort", level="basic")
    ran = executed(library, model, tmp_path, RunOptions(provider="xnnpack"))
    on_cpu = {operator for operator, provider in ran if provider == "CPUExecutionProvider"}
    for words, complete in (((), False), (("--provider", "xnnpack"), True), (("--provider", "nnapi"), True)):
        config = ort_mobile("op-config", "create", model, *words).out
        assert all(operator in config for operator in on_cpu) == complete


@pytest.mark.parametrize(("text", "why"), [(BRANCHES, "has control flow"), (COUNTS, "stay on the CPU")])
def test_a_session_captures_no_graph_that_cannot_be(gpu: Device, tmp_path: Path, text: str, why: str) -> None:
    """A session asks the same of CUDA, for which there is no GPU here; our rules ask these files before it does."""
    onnx.save(parsed(f"g {text}"), tmp_path / "m.onnx")
    refused = failure(run(gpu, tmp_path / "m.onnx", provider="webgpu", session_config=CAPTURE))
    assert refused.code is FailureKind.PROVIDER_REFUSED
    assert why in refused.why
