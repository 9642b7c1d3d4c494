"""Small models that ask for any amount of time or memory cost passes neither (hostile_models.py)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.config.tables import Step
from pipeline.core.errors import ModelError
from pipeline.core.workers import Task, needed_bytes, run_tasks
from pipeline.dataset import Dataset
from pipeline.model.guards import check_structure
from pipeline.model.sources import SourceModel
from pipeline.passes.run import transform
from tests.passes.hostile_models import HOSTILE, WIDTH, doubling

LIMIT_SECONDS = 5
STEPS = ("fold-shapes", "dynamic-int8", "static-qdq")
PEAK_KILOBYTES = 4_000_000
FEWER = {"many_nodes": 2_500, "many_inputs": 5_000, "many_weights": 5_000}
"""What most passes answer before the limit; at night so many that they reach it."""


def test_functions_that_double_one_another_are_refused_before_anything_inlines_them() -> None:
    check_structure(doubling(10), "small")
    with pytest.raises(ModelError) as caught:
        check_structure(doubling(), "large")
    assert "33554433 nodes" in caught.value.why
    assert caught.value.remedy


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(partial(HOSTILE[name], count), id=f"{name}-{count}") for name, count in FEWER.items()),
        *(pytest.param(make, id=name, marks=[pytest.mark.nightly] * (name in FEWER)) for name, make in HOSTILE.items()),
    ],
)
def test_every_pass_ends_soon_in_little_memory(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """Ends in time and in words: a refusal, an answer, or the limit, never a machine without memory."""
    onnx.save(make(), tmp_path / "m.onnx")
    np.savez(tmp_path / "sample.npz", x=np.ones((1, WIDTH), np.float32))
    tasks = [
        Task(
            label=step,
            call=partial(
                transform, SourceModel(path=str(tmp_path / "m.onnx")), (Step(do=step),), str(tmp_path / step),
                "out.onnx", data=Dataset(test_data=str(tmp_path / "sample.npz")), check=False,
            ),
            memory_bytes=needed_bytes(0),
        )
        for step in STEPS
    ]  # fmt: skip
    for outcome in run_tasks(tasks, processes=1, timeout_seconds=LIMIT_SECONDS):
        error = outcome.error
        assert error is None or (error.what and error.remedy), outcome.task.label
        assert error is None or "internal error" not in error.what
    assert _peak_of_children() < PEAK_KILOBYTES


def _peak_of_children() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
