"""Vectors of files that ship, for the manifest."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner.errors import RunnerError
from device_runner.result import RunResult
from device_runner.spec import TensorFile
from pipeline.core import workers
from pipeline.features.vectors import cases as vector_cases
from pipeline.features.vectors import runs
from pipeline.job import vectors as job_vectors
from pipeline.release import kept as kept_files

FOLDER = "evidence/vectors"


def vectors(orders: Sequence[job_vectors.VectorOrder]) -> Iterator[job_vectors.MadeVectors]:
    """The vectors of each file, in the order given; what is wrong with one costs no other."""
    tasks = {workers.Task(label=order.shipped.model, call=partial(made, order)): order for order in orders}
    results = {}
    for outcome in workers.run_tasks(tasks):
        order = tasks[outcome.task]
        why = outcome.error.what if outcome.error else "no answer"
        results[order.number] = outcome.value or job_vectors.MadeVectors(kept=_kept(order, (), "", "", why))
    yield from (results[order.number] for order in orders)


def made(order: job_vectors.VectorOrder) -> job_vectors.MadeVectors:
    """The vectors of a file; none, with the reason, where it takes no small sample or cannot be run here."""
    if order.options.custom_ops:
        return job_vectors.MadeVectors(kept=_kept(order, (), "", "", "the file needs a library of custom operators"))
    with runner_files.scratch_folder() as work:
        cases = vector_cases.chosen(order, work)
        if not cases:
            why = f"a sample has more than {order.most_bytes // 2:,} bytes"
            return job_vectors.MadeVectors(kept=_kept(order, (), "", "", why))
        reasons = []
        for place in runs.places(order.shipped, order.library):
            try:
                with runner_device.open_device(place) as device:
                    results = list(_results(order, device, cases, work))
            except RunnerError as error:
                reasons.append(error.what)
                continue
            if failure := results[-1].failure:
                reasons.append(failure.what)
            else:
                return _assembled(order, place, cases, results)
        return job_vectors.MadeVectors(kept=_kept(order, (), "", "", "; ".join(dict.fromkeys(reasons))[:300]))


def _results(
    order: job_vectors.VectorOrder, device: runner_device.Device, cases: Sequence[vector_cases.VectorCase], work: Path
) -> Iterator[RunResult]:
    """What each case gives, as far as the first that fails."""
    for number, case in enumerate(cases):
        folder = work / f"{device.name.replace('/', '_')[-40:]}_{number}"
        folder.mkdir()
        result = runs.run(device, Path(order.file), order.options, case, order.signature, folder)
        yield result
        if result.failure:
            return


def _assembled(
    order: job_vectors.VectorOrder, place: str, cases: Sequence[vector_cases.VectorCase], results: Sequence[RunResult]
) -> job_vectors.MadeVectors:
    """The vectors that have room together."""
    kept, files, left = list[kept_files.KeptVector](), dict[str, bytes](), order.most_bytes
    for number, (case, result) in enumerate(zip(cases, results, strict=True)):
        answers = [tensor for tensor in result.outputs if tensor.name not in order.signature.state]
        content: dict[str, bytes] = {}
        inputs = tuple(_tensor(order, f"{number}_input_{n}", tensor, content) for n, tensor in enumerate(case.inputs))
        outputs = tuple(_tensor(order, f"{number}_output_{n}", tensor, content) for n, tensor in enumerate(answers))
        left -= sum(map(len, content.values()))
        if left >= 0 and outputs:
            kept.append(kept_files.KeptVector(text=case.text, steps=case.steps, inputs=inputs, outputs=outputs))
            files |= content
    why = "" if kept else f"a sample with its outputs has more than {order.most_bytes:,} bytes"
    return job_vectors.MadeVectors(kept=_kept(order, tuple(kept), place, results[0].ort_version, why), files=files)


def _tensor(
    order: job_vectors.VectorOrder, name: str, tensor: TensorFile, files: dict[str, bytes]
) -> kept_files.KeptTensor:
    content = Path(tensor.file).read_bytes()
    path = f"{FOLDER}/{order.shipped.model}/{order.number}_{name}.bin"
    files[path] = content
    return kept_files.KeptTensor(
        path=path,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
    )


def _kept(
    order: job_vectors.VectorOrder, vectors: tuple[kept_files.KeptVector, ...], place: str, release: str, none: str
) -> kept_files.KeptVectors:
    # A library's path is this computer's own affair
    device, _, library = place.partition(":")
    named = f"{device}:{Path(library).name}" if library else device
    return kept_files.KeptVectors(
        target=order.shipped.target,
        model=order.shipped.model,
        file=order.shipped.file,
        options=order.options,
        ort_release=release or order.shipped.ort_release,
        place=named,
        vectors=vectors,
        none=none,
    )
