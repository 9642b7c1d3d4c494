"""Libraries for Linux on arm64, out of a wheel and a JAR: models run, bundles of Linux targets are proven."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.device import open_device
from device_runner.errors import SpecError, UnavailableError
from device_runner.host_device import check_host
from device_runner.library import resolve
from device_runner.result import FailureKind, Mark
from pipeline.check.library_proof import LibraryProof
from pipeline.core.errors import PipelineError
from pipeline.core.progress import NoProgress
from pipeline.core.variant import Level
from pipeline.features.prove import ProofOrder, prove_bundle
from pipeline.library.fetch import get_library
from pipeline.report.proofs import rows, summary
from tests.android_host.bundles import bundle_of
from tests.android_host.conftest import fetch
from tests.android_host.runs import distance, failure, outputs, run

pytestmark = pytest.mark.android_host

ARM64 = "arm64-v8a"


@pytest.fixture(scope="session")
def wheel(release: str) -> str:
    """The name of a release whose wheel for arm64 is in the cache; skips where this machine cannot have or run it."""
    try:
        check_host(ARM64)
        get_library(f"wheel:{release}", abi=ARM64)
    except (UnavailableError, PipelineError) as error:
        pytest.skip(f"no wheel:{release} here: {error}")
    return f"wheel:{release}"


@pytest.fixture(scope="session")
def s8s8(real_model: Callable[[str], Path]) -> Path:
    """A model that a core without dot product computes wrongly (docs/facts/arm64_host.md, 5.1)."""
    return real_model("mnist.qdq_s8s8")


@pytest.mark.parametrize("cpu", ["cortex-a53", pytest.param("cortex-a76", marks=pytest.mark.nightly)])
def test_a_wheels_library_computes_what_androids_does(
    wheel: str, release: str, s8s8: Path, tmp_path: Path, cpu: str
) -> None:
    """Bit for bit, also where the kernels of a CPU without dot product are wrong: the CPU that is asked for is seen."""
    with open_device(f"linux-host:{wheel}?abi={ARM64}&cpu={cpu}") as device:
        facts = device.facts()
        result = run(device, s8s8, tmp_path / "linux")
    assert (facts.platform, facts.abis, facts.soc) == ("linux", (ARM64,), f"{cpu} (emulated)")
    assert (Mark.EMULATED in result.marks, result.cpu, result.ort_version) == (True, cpu, release)
    assert (result.load_ns, result.latencies_ns, result.memory_peak_bytes) == (0, (), 0)
    with AndroidHost("android", fetch(release, ARM64), Phone(cpu=cpu)) as android:
        wanted = outputs(run(android, s8s8, tmp_path / "android"))
    for name, array in outputs(result).items():
        assert np.array_equal(array, wanted[name])


def test_a_library_of_this_computer_needs_no_emulator(mnist: Path, tmp_path: Path) -> None:
    with open_device("local") as local:
        library, wanted = local.library_for(None), outputs(run(local, mnist, tmp_path / "local"))
    with open_device(f"linux-host:{library.path}") as device:
        result = run(device, mnist, tmp_path / "host")
    assert distance(outputs(result), wanted) == 0
    assert (result.cpu, result.marks) == ("", ())
    assert result.latencies_ns


def prove(bundle: Path, library: str, **order: object) -> LibraryProof:
    return prove_bundle(bundle, replace(ProofOrder(library=library), **order), NoProgress())  # type: ignore[arg-type]  # by name


def test_a_linux_target_is_proven_in_the_wheel_that_ships(wheel: str, s8s8: Path, tmp_path: Path) -> None:
    bundle = bundle_of(
        tmp_path, s8s8, level=Level.EXTENDED, target="edge", platform="linux", abis=("aarch64",), min_api_level=None
    )
    proof = prove(bundle, wheel, abis=(ARM64,))
    assert [(row.targets, row.abi, row.cpu, row.failed) for row in proof.rows] == [
        (("edge",), ARM64, "cortex-a53", True),
        (("edge",), ARM64, "cortex-a76", False),
    ]
    assert "1 of 2 runs pass (arm64-v8a on cortex-a53 and cortex-a76)" in summary(proof)
    assert {cells[3] for cells in rows(proof)} == {"-"}, "Linux has no API level"
    assert any("right on cortex-a76 and wrong on cortex-a53" in note for note in proof.notes)


def test_a_library_of_another_system_is_refused_by_name(wheel: str, release: str, mnist: Path, tmp_path: Path) -> None:
    arm64 = fetch(release, ARM64)
    bundle = bundle_of(tmp_path, mnist)
    with pytest.raises(UnavailableError, match="no Android libonnxruntime"):
        prove(bundle, wheel)
    with pytest.raises(UnavailableError, match=r"no libonnxruntime\.so for Linux") as caught:
        open_device(f"linux-host:{arm64.path}?abi={ARM64}")
    assert "`android-host:`" in caught.value.remedy
    with open_device(f"linux-host:{wheel}?abi={ARM64}") as device:
        ended = failure(run(device, mnist, library=arm64.path))
    assert ended.code is FailureKind.WRONG_LIBRARY
    with AndroidHost("android", arm64) as phone:
        assert failure(run(phone, mnist, library=str(resolve(wheel, ARM64).path))).code is FailureKind.WRONG_LIBRARY


def test_without_the_processors_cpp_library_its_package_is_named(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "lib"
    root.mkdir()
    (root / "ld-linux-aarch64.so.1").touch()
    monkeypatch.setenv("ORT_MOBILE_SYSROOT", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"libstdc\+\+\.so\.6") as caught:
        open_device(f"linux-host:{wheel}?abi={ARM64}&cpu=cortex-a53")
    assert "apt-get install libstdc++6-arm64-cross" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("linux-host:", "needs a library"),
        ("linux-host:x.so?api_level=31", "unknown option 'api_level'"),
        ("linux-host:x.so?abi=arm64-v8a&cpu=cortex-a999", "no CPU 'cortex-a999'"),
    ],
)
def test_names_that_mean_no_device(name: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        open_device(name)
