"""Every legal way of a real model passes its self-test at the desk, and every corruption of its outputs is refused."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from device_runner.spec import ElementType, RunOptions
from pipeline.check.compare import Tolerance
from pipeline.features.guard import bundle as guard_bundle
from pipeline.features.guard import sample as guard_sample
from pipeline.features.guard.corruptions import corrupted
from pipeline.features.guard.order import Order, TriedFile
from pipeline.features.guard.selftest import made
from pipeline.features.guard.sketch import decibels
from pipeline.release.kept import KeptReference, KeptTensor
from pipeline.release.self_test import DeskVerdict, SelfTest
from tests.android_host.conftest import fetch
from tests.features.android.samples import CPU, NNAPI, WEBGPU
from tests.ort_models import convert

pytestmark = pytest.mark.android_host

XNNPACK = RunOptions(provider="xnnpack")
QNN = RunOptions(provider="qnn", provider_options={"soc_model": "SM8650"})


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory, mnist: Path, release: str) -> Order:
    """MNIST with all that Android's library can run it by; XNNPACK has no schemas for files in ORT format there."""
    fetch(release)
    folder = tmp_path_factory.mktemp("bundle")
    file = convert(onnx.load(mnist), folder / "m.ort")
    session = onnxruntime.InferenceSession(str(mnist))
    (given,) = session.get_inputs()
    values = np.random.default_rng(5).random([1, 1, 28, 28], np.float32)
    (result,) = session.run(None, {given.name: values})
    kept = []
    for name, tensor in ((given.name, values), (session.get_outputs()[0].name, np.asarray(result))):
        (folder / name).write_bytes(tensor.tobytes())
        digest = hashlib.sha256(tensor.tobytes()).hexdigest()
        kept.append(
            KeptTensor(
                path=name, size_bytes=tensor.nbytes, sha256=digest, name=name, dtype=ElementType.FLOAT32,
                shape=tensor.shape,
            )
        )  # fmt: skip
    tolerance = Tolerance(max_relative_error=1e-3, random_inputs=True)
    reference = KeptReference(model="m", inputs=(kept[0],), outputs=(kept[1],), tolerance=tolerance)
    shutil.copy(mnist, folder / "m.onnx")
    files = ((file, (NNAPI, WEBGPU, QNN, CPU)), (folder / "m.onnx", (XNNPACK,)))
    tried = (
        TriedFile(path=path.name, digests=hashlib.sha256(path.read_bytes()).hexdigest(), runs=runs)
        for path, runs in files
    )
    return Order(
        model="m", bundle=str(folder), reference=reference, outputs=(kept[1].name,), files=tuple(tried),
        library=f"android:{release}",
    )  # fmt: skip


@pytest.fixture(scope="module")
def judged(order: Order, vulkan: str) -> SelfTest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORT_MOBILE_VULKAN", vulkan)
        return guard_bundle.with_verdicts(order, made(order))


@pytest.mark.parametrize("provider", ["nnapi", "webgpu", "xnnpack", "cpu"])
def test_a_legal_way_passes_in_the_library_that_ships(judged: SelfTest, provider: str) -> None:
    (way,) = (way for way in judged.ways if way.run.partition("+")[0] == provider)
    assert (way.verdict, way.place) == (DeskVerdict.PASSES, "android-host"), way.text


def test_an_npu_whose_simulator_is_not_here_is_not_judged_by_name(judged: SelfTest) -> None:
    (way,) = (way for way in judged.ways if way.run.startswith("qnn"))
    if way.verdict is DeskVerdict.PASSES:
        pytest.skip("the simulator is installed here")
    assert way.verdict is DeskVerdict.NOT_JUDGED
    assert "onnxruntime-qnn" in way.why


def test_every_corruption_is_refused_by_every_limit(order: Order, judged: SelfTest) -> None:
    sample = guard_sample.decoded(judged.data)
    (output,) = sample.outputs
    (tensor,) = order.reference.outputs
    values = np.fromfile(Path(order.bundle) / tensor.path, np.float32)
    passed = [
        (limits.way, corruption)
        for limits in sample.limits
        for corruption, bad in corrupted(values)
        if decibels(output.sketch, bad) >= limits.decibels[0]
    ]
    assert passed == []
    assert len(sample.limits) == len(judged.ways) + 1
