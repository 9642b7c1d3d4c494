"""What the desk makes of a small model for the phones of these tests: its self-test, and the outputs that are right."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from device_runner.spec import ElementType, RunOptions
from pipeline.check.compare import Tolerance
from pipeline.features.guard.order import Order, TriedFile
from pipeline.features.guard.selftest import made
from pipeline.model import session as model_session
from pipeline.release.kept import KeptReference, KeptTensor
from pipeline.release.self_test import SelfTest
from tests.ort_models import conv_relu, convert


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A model's file, what the bundle keeps of it, and its self-test."""

    file: Path
    order: Order
    test: SelfTest
    outputs: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"


def kept(folder: Path, name: str, values: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> KeptTensor:
    """A tensor as a bundle keeps it."""
    (folder / name).write_bytes(values.tobytes())
    return KeptTensor(
        path=name, size_bytes=values.nbytes, sha256=hashlib.sha256(values.tobytes()).hexdigest(), name=name,
        dtype=ElementType.FLOAT32, shape=values.shape,
    )  # fmt: skip


def desk(folder: Path, runs: tuple[RunOptions, ...], *, scale: float = 1.0, random: bool = False) -> Desk:
    """The desk's work on `conv_relu`; inputs of scale 0 give outputs that tell nothing."""
    file = convert(conv_relu(), folder / "m.ort")
    inputs = np.random.default_rng(3).normal(size=(1, 1, 8, 8)).astype(np.float32) * np.float32(scale)
    outputs = model_session.outputs_of(file, {"x": inputs})["y"].astype(np.float32)
    reference = KeptReference(
        model="m", inputs=(kept(folder, "x", inputs),), outputs=(kept(folder, "y", outputs),),
        tolerance=Tolerance(max_relative_error=1e-3, random_inputs=random),
    )  # fmt: skip
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    tried = (TriedFile(path="m.ort", digests=digest, runs=runs),)
    order = Order(model="m", bundle=str(folder), reference=reference, outputs=("y",), files=tried)
    return Desk(file=file, order=order, test=made(order), outputs=outputs)
