"""The desk: a self-test as it ships is run in every way that this computer can run, before devices judge by it.

Android's ways run in the target's own library, with NNAPI's driver of the desk and a GPU in software; others in the
library here, with its plugins. What cannot be run is said to be not judged, and why.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from device_runner import device as runner_device
from device_runner import library as ort_library
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import vulkan
from device_runner.android_host import device as android_host_device
from device_runner.errors import RunnerError
from device_runner.spec import ElementType, RunOptions, RunSpec, TensorFile
from pipeline.campaign import run_options
from pipeline.check import compare as output_compare
from pipeline.core import workers
from pipeline.features.guard import sample as guard_sample
from pipeline.features.guard.sketch import decibels, drawn
from pipeline.model import session as model_session
from pipeline.release import self_test

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Values: TypeAlias = "npt.NDArray[np.generic]"

MODEL_SECONDS = 60.0
"""What all ways of a model may take; what is left then is not judged."""

RUN_SECONDS = 20.0
"""What one way may take, as on a phone."""

WHY_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskRun:
    """What a way gave, and what ran it; without outputs, why."""

    outputs: Mapping[str, Values] = field(default_factory=dict)
    place: str = ""
    why: str = ""


class Desk:
    """What runs ways of a model here: the Android library of its target ("" for none), then the library here."""

    def __init__(self, library: str, inputs: tuple[TensorFile, ...], work: Path) -> None:
        self.library = library
        self.inputs = inputs
        self.work = work
        self.end = time.monotonic() + MODEL_SECONDS

    def run(self, file: Path, options: RunOptions) -> DeskRun:
        """One run of a file; never raises for what this computer lacks."""
        budget, needed = workers.memory_budget(), model_session.room_for(file.stat().st_size).memory_bytes
        if budget and needed > budget:
            return DeskRun(why=f"it needs {needed >> 20} MiB, and {budget >> 20} MiB of memory are free")
        reasons = []
        devices = ("android-host", "local") if self.library else ("local",)
        for name in devices:
            if time.monotonic() > self.end:
                return DeskRun(why=f"the {MODEL_SECONDS:.0f} s for this model are over")
            try:
                with ExitStack() as stack:
                    result = self._once(stack.enter_context(self._device(name, options)), file, options)
                    if not result.failure:
                        outputs = {tensor.name: output_compare.read_tensor(tensor) for tensor in result.outputs}
                        return DeskRun(outputs=outputs, place=name)
                reasons.append(result.failure.what)
                if result.failure.code not in run_result.IMPOSSIBLE_HERE:
                    break  # it is there, and does not run the model
            except RunnerError as error:
                reasons.append(error.what)
        return DeskRun(why="; ".join(dict.fromkeys(map(str.strip, reasons)))[:WHY_CHARACTERS])

    def _device(self, name: str, options: RunOptions) -> runner_device.Device:
        on_gpu = runner_providers.provider_named(options.provider).gpu
        driver = str(vulkan.find_driver()) if on_gpu else ""
        if name == "local":
            return runner_device.open_device(f"local?vulkan={driver}" if driver else "local")
        library = ort_library.resolve(self.library).android()
        return android_host_device.AndroidHost(name, library, android_host_device.Phone(vulkan=driver))

    def _once(self, device: runner_device.Device, file: Path, options: RunOptions) -> run_result.RunResult:
        spec = RunSpec(
            id="desk",
            model=str(file),
            options=options,
            inputs=self.inputs,
            warmup=0,
            min_runs=1,
            min_seconds=0.0,
            timeout_seconds=RUN_SECONDS,
            outputs_folder=str(self.work),
        )
        return device.run(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskWay:
    """A file with session options, by the digests under which its limits are kept; `run` names it for people."""

    file: str
    digests: str
    options: RunOptions
    run: str
    not_run: str = ""


def judged(
    ways: tuple[DeskWay, ...], bundle: Path, data: bytes, outputs: tuple[str, ...], library: str, work: Path
) -> Iterator[self_test.JudgedWay]:
    """What the desk finds of each way by the data that ships; `outputs` are the model's names in their order."""
    sample = guard_sample.decoded(data)
    desk = Desk(library, tuple(_inputs(sample, work)), work)
    limits = {(limits.digests, limits.way): limits.decibels for limits in sample.limits}
    for way in ways:
        ran = DeskRun(why=way.not_run) if way.not_run else desk.run(bundle / way.file, way.options)
        if ran.why:
            yield self_test.JudgedWay(file=way.file, run=way.run, verdict=self_test.DeskVerdict.NOT_JUDGED, why=ran.why)
            continue
        found = limits.get((way.digests, run_options.options_name(way.options))) or limits[guard_sample.ANY_WAY]
        names = [outputs[output.place] for output in sample.outputs]
        reached = [
            decibels(output.sketch, ran.outputs[name]) if name in ran.outputs else guard_sample.NOTHING_DECIBELS
            for output, name in zip(sample.outputs, names, strict=True)
        ]
        worst = min(range(len(reached)), key=lambda index: reached[index] - found[index])
        passes = reached[worst] >= found[worst]
        yield self_test.JudgedWay(
            file=way.file,
            run=way.run,
            place=ran.place,
            reached=reached[worst],
            needed=found[worst],
            verdict=self_test.DeskVerdict.PASSES if passes else self_test.DeskVerdict.MISSES,
        )


def _inputs(sample: guard_sample.TrialSample, work: Path) -> Iterator[TensorFile]:
    """The sample's inputs as files, drawn from their seed as devices draw them."""
    types: Mapping[str, ElementType] = {name: dtype for dtype, name in guard_sample.JAVA_TYPES.items()}
    for number, given in enumerate(sample.inputs):
        content = given.content
        if not content:
            content = drawn(given.shape, given.seed, given.low, given.high).tobytes()
        file = work / f"given_{number}"
        file.write_bytes(content)
        yield TensorFile(name=given.name, dtype=types[given.dtype], shape=given.shape, file=str(file))
