"""The vectors of a bundle given again to its files, in the library that made them or another one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner.device import Device
from device_runner.errors import RunnerError
from device_runner.spec import TensorFile
from pipeline.check import compare as output_compare
from pipeline.features.vectors import runs
from pipeline.features.vectors.cases import VectorCase
from pipeline.release import kept as kept_files
from pipeline.release import manifest as bundle_manifest

if TYPE_CHECKING:
    from pipeline.model.signature import Array


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a model's vectors for a target: of so many `vectors`, `equal` were so in all bits.

    `checks` are of outputs that differ beyond what another release or processor may change; `why` says what kept them
    from being given again.
    """

    target: str
    model: str
    made_in: str
    made_with: str
    place: str = ""
    ort_release: str = ""
    vectors: int = 0
    equal: int = 0
    checks: tuple[output_compare.OutputCheck, ...] = ()
    why: str = ""

    @property
    def failed(self) -> bool:
        """Whether an output is not what it was."""
        return bool(self.checks)

    @property
    def text(self) -> str:
        """In words."""
        head = f"{self.model} for {self.target}"
        if self.why:
            return f"{head}: {self.why}"
        rest = f", {len(self.checks)} outputs differ" if self.checks else ""
        where = f"{self.place} {self.ort_release}; made in {self.made_in} {self.made_with}"
        return f"{head}: {self.equal} of {self.vectors} equal in all bits{rest} ({where})"


def replayed(bundle: Path, manifest: bundle_manifest.Manifest, device_name: str) -> Iterator[Replay]:
    """What comes of each model's vectors on a device; "": in the library that the target's release has here.

    Raises as opening a device that is named does.
    """
    references = {reference.model: reference for reference in manifest.references}
    for kept in manifest.vectors:
        base = Replay(target=kept.target, model=kept.model, made_in=kept.place, made_with=kept.ort_release)
        if kept.none:
            yield msgspec.structs.replace(base, why=f"no vectors, {kept.none}")
            continue
        shipped = next(
            shipped for shipped in manifest.content.ships if (shipped.target, shipped.file) == (kept.target, kept.file)
        )
        reference = references.get(kept.model)
        tolerance = (
            reference.tolerance if reference else output_compare.usual_tolerance(output_compare.OutputPrecision.FLOAT32)
        )
        reasons = []
        for place in [device_name] if device_name else runs.places(shipped, ""):
            try:
                device = runner_device.open_device(place)
            except RunnerError as error:
                if device_name:
                    raise
                reasons.append(error.what)
                continue
            with device:
                replay = _replayed(device, bundle, manifest, kept, tolerance, base)
            if not replay.why:
                yield replay
                break
            reasons.append(replay.why)
        else:
            yield msgspec.structs.replace(base, why="; ".join(dict.fromkeys(reasons)))


def _replayed(
    device: Device,
    bundle: Path,
    manifest: bundle_manifest.Manifest,
    kept: kept_files.KeptVectors,
    tolerance: output_compare.Tolerance,
    base: Replay,
) -> Replay:
    signature, equal, checks, release = manifest.content.signature(kept.model), 0, [], ""
    for vector in kept.vectors:
        case = VectorCase(inputs=_files(bundle, vector.inputs), text=vector.text, steps=vector.steps)
        with runner_files.scratch_folder() as folder:
            result = runs.run(device, bundle / kept.file, kept.options, case, signature, folder)
            if result.failure:
                return msgspec.structs.replace(base, why=f"{device.name}: {result.failure.reason}")
            release = result.ort_version
            wanted, given = _arrays(_files(bundle, vector.outputs)), _arrays(result.outputs)
        same = all(name in given and _same(values, given[name]) for name, values in wanted.items())
        equal += same
        if not same:
            compared = output_compare.compare_outputs(wanted, given, tolerance)
            checks += [check for check in compared if check.failed]
    return msgspec.structs.replace(
        base,
        place=device.name,
        ort_release=release,
        vectors=len(kept.vectors),
        equal=equal,
        checks=tuple(checks),
    )


def _files(bundle: Path, tensors: tuple[kept_files.KeptTensor, ...]) -> tuple[TensorFile, ...]:
    return tuple(
        TensorFile(name=kept.name, dtype=kept.dtype, shape=kept.shape, file=str(bundle / kept.path)) for kept in tensors
    )


def _arrays(tensors: tuple[TensorFile, ...]) -> "Mapping[str, Array]":
    return {tensor.name: output_compare.read_tensor(tensor) for tensor in tensors}


def _same(first: "Array", second: "Array") -> bool:
    """In all bits: a zero is no negative zero, and one NaN may be another's."""
    if first.dtype.kind == "O":
        return first.shape == second.shape and bool((first == second).all())
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
