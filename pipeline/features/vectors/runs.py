"""One run of a file on what a vector is given, in the library of the app's release where this computer has it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from device_runner import spec as run_spec
from device_runner.device import Device
from device_runner.result import RunResult
from device_runner.spec import ElementType, RunOptions, RunSpec, TensorFile
from pipeline.features.vectors.cases import VectorCase
from pipeline.release import manifest as bundle_manifest

RUN_SECONDS = 60.0

HOSTS: Mapping[str, tuple[str, str]] = {"android": ("android-host", "android"), "linux": ("linux-host", "jvm")}
"""By platform the device that runs its libraries here, and where its releases come from."""


def places(shipped: bundle_manifest.Shipped, library: str) -> Iterator[str]:
    """The devices to try in turn: the target's library, one of its release, then what is installed here.

    Apple's libraries run nowhere here: those of Linux have the same kernels.
    """
    device, scheme = HOSTS.get(shipped.platform, HOSTS["linux"])
    release = shipped.ort_release
    if library and shipped.platform in HOSTS:
        yield f"{device}:{library}"
    yield f"{device}:{scheme}:{release if release.count('.') > 1 else f'{release}.0'}"
    yield "local"


def run(
    device: Device,
    file: Path,
    options: RunOptions,
    case: VectorCase,
    signature: bundle_manifest.ModelSignature,
    folder: Path,
) -> RunResult:
    """One run without a warm-up, of which no time counts; its outputs are files in a folder."""
    states = set(signature.state.values())
    sequences = tuple(tensor for tensor in case.inputs if case.steps and tensor.name not in states)
    tracked = tuple(
        output.name
        for output in signature.outputs
        if output.name not in signature.state and output.dtype not in (None, ElementType.STRING)
    )
    inputs = case.inputs
    if case.steps:
        inputs = tuple(_first(tensor, case.steps, folder) if tensor in sequences else tensor for tensor in case.inputs)
    spec = RunSpec(
        id="vectors",
        model=str(file),
        options=options,
        inputs=inputs,
        stream=run_spec.Stream(steps=case.steps, states=signature.state, sequences=sequences, tracked=tracked)
        if case.steps
        else None,
        warmup=0,
        min_runs=0 if case.steps else 1,
        min_seconds=0.0,
        timeout_seconds=RUN_SECONDS,
        outputs_folder=str(folder),
    )
    return device.run(spec)


def _first(tensor: TensorFile, steps: int, folder: Path) -> TensorFile:
    """What the first of the steps is given."""
    content = Path(tensor.file).read_bytes()
    file = folder / f"first_{Path(tensor.file).name}"
    file.write_bytes(content[: len(content) // steps])
    return TensorFile(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape[1:], file=str(file))
