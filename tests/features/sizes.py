"""A bundle of a model in two sizes, made by the real pipeline, and what an app must see of it."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests import onnx_samples
from tests.command import ort_mobile

CONFIG = """
name = "demo"
targets = [{{ name = "phone", platform = "{platform}", ort_release = "{release}" }}]
[[models]]
path = "m.onnx"
dimensions = {{ height = [4, 2], width = [8, 3] }}
{padding}
[variants]
levels = ["basic"]
styles = ["{style}"]
[[runs]]
provider = ["cpu", "{provider}"]
"""

PICKED: dict[tuple[int, ...], str] = {
    (1, 2, 2): "m-2x3",
    (1, 2, 3): "m-2x3",
    (1, 3, 3): "m-4x8",
    (1, 4, 8): "m-4x8",
    (1, 5, 1): "m",
    (1, 1, 9): "m",
}
"""The shape of an input, and the model that it goes to where it may be filled up."""
NUMBER = -1.5


def two_sizes(
    folder: Path, *, platform: str = "android", release: str = "1.28", padding: str = "x = -1.5", shared: bool = False,
    last: float = 512.0,
) -> Path:  # fmt: skip
    """A bundle of y = 2x + 1 over an image, open and in the sizes 2 x 3 and 4 x 8; ONNX files with `shared` weights.

    `last` is a weight that nothing reads.
    """
    shape: list[int | str] = [1, "height", "width"]
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["d"]), helper.make_node("Mul", ["x", "zero"], ["n"]),
        helper.make_node("Cast", ["n"], ["i"], to=TensorProto.INT64), helper.make_node("Gather", ["table", "i"], ["z"]),
        helper.make_node("Add", ["d", "z"], ["y"]),
    ]  # fmt: skip
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [1], [value]) for name, value in (("two", 2), ("zero", 0))]
    weights.append(helper.make_tensor("table", TensorProto.FLOAT, [512], [*range(1, 512), last]))
    model = onnx_samples.make(nodes, [onnx_samples.value("x", shape)], [onnx_samples.value("y", shape)], weights)
    onnx_samples.save(model, folder / "m.onnx")
    provider = "nnapi" if platform == "android" else "coreml"
    padding = f"padding = {{ {padding} }}" if padding else ""
    style = "onnx" if shared else "fixed"
    config = CONFIG.format(platform=platform, release=release, provider=provider, padding=padding, style=style)
    (folder / "sizes.toml").write_text(config, "utf-8")
    ort_mobile("run", folder / "sizes.toml", "--output", folder / "out", "--convert-only")
    return folder / "out/bundle"


def expected(shape: tuple[int, ...]) -> str:
    """What an app prints of an input of 0, 1, 2, …: the model's name, the output's shape, its elements."""
    size = {"m-2x3": (1, 2, 3), "m-4x8": (1, 4, 8), "m": shape}[PICKED[shape]]
    x = np.full(size, NUMBER, np.float32)
    x[:, : shape[1], : shape[2]] = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = 2 * x + 1
    return f"{PICKED[shape]} {'x'.join(map(str, y.shape))} {' '.join(f'{number:.1f}' for number in y.ravel())}"
