"""Which samples become vectors, without a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_runner.spec import ElementType, Stream, TensorFile
from pipeline.config.app_data import ImageBytes
from pipeline.dataset import Dataset
from pipeline.dataset.files import write_tensor
from pipeline.features.vectors import cases
from pipeline.job.vectors import VectorOrder
from pipeline.release.manifest import ModelSignature
from tests.features.android.samples import shipped, tensor


def order(data: Dataset, takes: tuple[Any, ...], **more: Any) -> VectorOrder:
    keys = {"image", "state"}
    signature = ModelSignature(
        model="m",
        inputs=takes,
        outputs=(tensor("y", 1, 1),),
        **{key: value for key, value in more.items() if key in keys},
    )
    rest = {key: value for key, value in more.items() if key not in keys}
    return VectorOrder(number=0, shipped=shipped(), signature=signature, file="", library="", data=data, **rest)


IMAGE = tensor("image", 1, "height", "width", 3, dtype=ElementType.UINT8)


def saved(folder: Path, *shapes: tuple[int, ...]) -> Path:
    folder.mkdir()
    for number, shape in enumerate(shapes):
        np.savez(folder / f"{number}.npz", image=np.random.default_rng(number).integers(0, 256, shape, np.uint8))
    return folder


def test_a_large_picture_keeps_every_nth_pixel(tmp_path: Path) -> None:
    data = Dataset(test_data=str(saved(tmp_path / "data", (1, 40, 50, 3), (1, 1080, 1920, 3))))
    small, large = cases.chosen(order(data, (IMAGE,), image=ImageBytes.RGB), tmp_path)
    assert small.inputs[0].shape == (1, 40, 50, 3)
    picture = np.load(tmp_path / "data/1.npz")["image"]
    step = -(-1080 // large.inputs[0].shape[1])
    assert np.array_equal(np.fromfile(large.inputs[0].file, np.uint8), picture[:, ::step, ::step].ravel())
    assert large.size_bytes <= 64 << 10 >> 1


def test_what_is_no_picture_and_too_large_is_no_vector(tmp_path: Path) -> None:
    data = Dataset(test_data=str(saved(tmp_path / "data", (1, 200, 200, 3))))
    assert cases.chosen(order(data, (IMAGE,)), tmp_path) == []


def test_random_inputs_are_several_of_no_more_bytes_than_wanted(tmp_path: Path) -> None:
    found = cases.chosen(order(Dataset(), (tensor("x", 1, 4),)), tmp_path)
    assert len({Path(case.inputs[0].file).read_bytes() for case in found}) == cases.RANDOM_CASES
    few = cases.chosen(order(Dataset(), (tensor("x", 1, 4),), most_bytes=64), tmp_path)
    assert len(few) == 2


@pytest.mark.parametrize(("most_bytes", "steps"), [(1 << 16, 20), (64, 2), (24, 0)])
def test_a_stream_begins_with_its_states_and_has_as_many_steps_as_have_room(
    tmp_path: Path, most_bytes: int, steps: int
) -> None:
    sound = np.arange(20 * 4, dtype=np.int16).reshape(20, 1, 4)
    sequence = write_tensor(tmp_path / "sound", "x", sound)
    first = (
        TensorFile(name="x", dtype=ElementType.INT16, shape=(1, 4), file=sequence.file),
        write_tensor(tmp_path / "rate", "rate", np.array(8, np.int16)),
        write_tensor(tmp_path / "h", "h", np.array([[0.5]], np.float32)),
    )
    stream = Stream(steps=20, states={"hn": "h"}, sequences=(sequence,))
    takes = (tensor("x", 1, 4), tensor("rate"), tensor("h", 1, 1))
    given = order(Dataset(), takes, state={"hn": "h"}, stream=stream, inputs=first, most_bytes=most_bytes)
    found = cases.chosen(given, tmp_path)
    assert [case.steps for case in found] == ([steps] if steps else [])
    for case in found:
        by_name = {tensor.name: tensor for tensor in case.inputs}
        assert {name: tensor.shape for name, tensor in by_name.items()} == {
            "x": (steps, 1, 4), "rate": (steps,), "h": (1, 1),
        }  # fmt: skip
        assert np.array_equal(np.fromfile(by_name["x"].file, np.int16), sound[:steps].ravel())
        assert np.array_equal(np.fromfile(by_name["rate"].file, np.int16), [8] * steps)
