"""The arm64 library of an AAR in processes of this computer: models run, claims are made, failures are results."""

from pathlib import Path

import pytest

from device_runner.android_host.calls import ModelQuestion, Session, ask
from device_runner.android_host.device import AndroidHost, Phone
from device_runner.device import open_device
from device_runner.errors import UnavailableError
from device_runner.library_facts import LibraryFacts
from device_runner.result import Mark
from tests.android_host.conftest import fetch
from tests.android_host.runs import distance, outputs, run

pytestmark = pytest.mark.android_host

ARM64 = "arm64-v8a"


@pytest.fixture(scope="session")
def arm64(release: str) -> LibraryFacts:
    return fetch(release, ARM64)


@pytest.mark.parametrize("provider", ["cpu", "nnapi", "xnnpack"])
def test_a_model_runs_in_the_library_of_phones(
    library: LibraryFacts, arm64: LibraryFacts, mnist: Path, tmp_path: Path, provider: str
) -> None:
    with AndroidHost("x86_64", library) as fast:
        wanted = outputs(run(fast, mnist, tmp_path / "x86_64", provider=provider))
    with AndroidHost("arm64", arm64) as device:
        result = run(device, mnist, tmp_path / "arm64", provider=provider)
    assert distance(outputs(result), wanted) < 1e-5
    assert {Mark.NOT_A_PHONE, Mark.EMULATED} <= set(result.marks)
    assert result.cpu == "cortex-a76"
    assert result.ort_version == arm64.release
    assert (result.load_ns, result.first_run_ns, result.latencies_ns, result.memory_peak_bytes) == (0, 0, (), 0)


def test_the_device_is_named_by_library_abi_and_cpu(arm64: LibraryFacts) -> None:
    with open_device(f"android-host:{arm64.path}?abi={ARM64}&cpu=cortex-a53&api_level=28") as device:
        facts = device.facts()
    assert (facts.abis, facts.soc, facts.api_level) == ((ARM64,), "cortex-a53 (emulated)", 28)
    with pytest.raises(UnavailableError, match="is for arm64-v8a, not for x86_64"):
        open_device(f"android-host:{arm64.path}")


def test_the_library_of_phones_says_what_it_claims(library: LibraryFacts, arm64: LibraryFacts, mnist: Path) -> None:
    session = Session(phone=Phone(api_level=29))
    question = ModelQuestion(id="mnist", model=mnist)
    (answer,), (other,) = (list(ask(facts, [question], session)) for facts in (arm64, library))
    assert not answer.failed, answer
    assert answer.subgraphs == other.subgraphs
    assert answer.subgraphs
