"""Makes the example: a small digit classifier, trained here, with its test data and a labelled evaluation set.

    python build_configs/examples/mnist/make.py [--output DIR]

The topology is that of the ONNX model zoo's MNIST-8. The digits are those that scikit-learn brings along (8x8 scans
of the UCI optical recognition set), scaled to 28x28. Training runs in numpy, in float64 on a grid of fixed-point values
(see `on_grid`), so that every machine and every BLAS gives the same weights.
"""

import argparse
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

HERE = Path(__file__).resolve().parent
SEED = 28
EVALUATION_IMAGES = 360
TEST_DATA_SETS = 3
EPOCHS, BATCH = 14, 32
LEARNING_RATE, MOMENTUM = 0.05, 0.9
GRID = 2.0**16
PIXEL_MAX = 255.0


def on_grid(values: Floats) -> Floats:
    """Rounded to multiples of 2**-16.

    Products of two such values of ordinary size take some 36 bits, and sums of up to 25 000 of them 51: they fit into
    float64 exactly, so no order of summation and no fused multiply-add changes a bit of a matrix product.
    """
    rounded: Floats = np.rint(values * GRID) / GRID
    return rounded


# --- the data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """`images` [N, 1, 28, 28] with 0 for paper and 255 for ink; `labels` [N], 0 to 9."""

    images: Bytes
    labels: Ints

    def take(self, index: Ints) -> Self:
        """The digits at `index`, in that order."""
        return replace(self, images=self.images[index], labels=self.labels[index])


def interpolation(source: int, target: int) -> Floats:
    """Matrix [target, source] of linear interpolation between pixel centres; beyond the outermost it stays constant."""
    position = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    distance = np.abs(position[:, None] - np.arange(source)[None, :])
    weights: Floats = np.clip(1 - distance, 0, 1)
    return weights


def load_digits() -> Digits:
    """All 1797 digits of scikit-learn, scaled from 8x8 with 0..16 to 28x28 with 0..255, in a fixed random order."""
    from sklearn import datasets

    source = datasets.load_digits()
    matrix = interpolation(8, 28)
    scaled = matrix @ source.images @ matrix.T * (PIXEL_MAX / 16)
    images = np.rint(on_grid(scaled)).astype(np.uint8)[:, None]
    order = np.random.default_rng(SEED).permutation(len(images))
    return Digits(images=images, labels=source.target.astype(np.int64)).take(order)


def split(digits: Digits) -> tuple[Digits, Digits]:
    """The part to train on, and the held-out part that becomes the evaluation set."""
    index = np.arange(len(digits.labels))
    return digits.take(index[EVALUATION_IMAGES:]), digits.take(index[:EVALUATION_IMAGES])


# --- the network, with channels last inside ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Convolution kernels as [out, in, 5, 5], biases per channel, the dense layer as [256, 10] in NCHW order."""

    conv1: Floats
    bias1: Floats
    conv2: Floats
    bias2: Floats
    dense: Floats
    bias3: Floats

    @classmethod
    def initial(cls) -> Self:
        """He's initialization (Gaussian, variance 2 / inputs) from a fixed seed."""
        random = np.random.default_rng(SEED + 1)

        def gaussian(inputs: int, *shape: int) -> Floats:
            return on_grid(random.normal(0, np.sqrt(2 / inputs), shape))

        return cls(
            conv1=gaussian(25, 8, 1, 5, 5),
            bias1=np.zeros(8),
            conv2=gaussian(200, 16, 8, 5, 5),
            bias2=np.zeros(16),
            dense=gaussian(256, 256, 10),
            bias3=np.zeros(10),
        )

    def map(self, *others: "Weights", function: Callable[..., Floats]) -> "Weights":
        """`function` over the tensors of this and the others, one name at a time, rounded to the grid."""
        names = [field.name for field in fields(self)]
        return Weights(**{n: on_grid(function(*(getattr(w, n) for w in (self, *others)))) for n in names})


def patches(images: Floats) -> Floats:
    """The 5x5 surroundings of every pixel, zero beyond the border: [N, H, W, C] to [N, H, W, C * 25]."""
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
    return windows.reshape(*images.shape[:3], -1)


def convolve(columns: Floats, kernel: Floats) -> Floats:
    """Patches [N, H, W, C * 25] with a kernel [out, C, 5, 5] to [N, H, W, out]."""
    product: Floats = columns @ kernel.reshape(len(kernel), -1).T
    return product


def pool(images: Floats, size: int) -> tuple[Floats, Ints]:
    """Maximum over tiles of size x size (what is left at the border is dropped), and which of the tile it was."""
    count, height, width, channels = images.shape
    rows, columns = height // size, width // size
    tiles = images[:, : rows * size, : columns * size].reshape(count, rows, size, columns, size, channels)
    tiles = tiles.transpose(0, 1, 3, 5, 2, 4).reshape(count, rows, columns, channels, size * size)
    best = tiles.argmax(-1)
    return np.take_along_axis(tiles, best[..., None], -1)[..., 0], best


def unpool(gradient: Floats, best: Ints, size: int, shape: tuple[int, ...]) -> Floats:
    """The gradient of `pool`: each value goes to where its maximum was in an input of `shape`, the rest is zero."""
    count, rows, columns, channels = gradient.shape
    tiles = np.zeros((count, rows, columns, channels, size * size))
    np.put_along_axis(tiles, best[..., None], gradient[..., None], -1)
    tiles = tiles.reshape(count, rows, columns, channels, size, size).transpose(0, 1, 4, 2, 5, 3)
    spread = np.zeros(shape)
    spread[:, : rows * size, : columns * size] = tiles.reshape(count, rows * size, columns * size, channels)
    return spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a forward pass leaves for the backward pass; `logits` are [N, 10]."""

    columns1: Floats
    active1: Floats
    best1: Ints
    columns2: Floats
    active2: Floats
    best2: Ints
    features: Floats
    logits: Floats


def forward(weights: Weights, images: Floats, rounding: Callable[[Floats], Floats] = on_grid) -> Pass:
    """The network on images [N, 28, 28, 1] between 0 and 1; `rounding` is applied to every layer's result."""
    columns1 = patches(images)
    active1 = np.maximum(rounding(convolve(columns1, weights.conv1)) + weights.bias1, 0)
    pooled1, best1 = pool(active1, 2)
    columns2 = patches(pooled1)
    active2 = np.maximum(rounding(convolve(columns2, weights.conv2)) + weights.bias2, 0)
    pooled2, best2 = pool(active2, 3)
    features = pooled2.transpose(0, 3, 1, 2).reshape(len(images), 256)
    logits = rounding(features @ weights.dense + weights.bias3)
    return Pass(
        columns1=columns1, active1=active1, best1=best1, columns2=columns2, active2=active2, best2=best2,
        features=features, logits=logits,
    )  # fmt: skip


def kernel_gradient(columns: Floats, gradient: Floats, shape: tuple[int, ...]) -> Floats:
    """The gradient of `convolve` by its kernel of `shape`."""
    flat = gradient.reshape(-1, gradient.shape[-1])
    return (flat.T @ columns.reshape(len(flat), -1)).reshape(shape)


def backward(weights: Weights, done: Pass, labels: Ints) -> Weights:
    """The gradient of the cross-entropy, summed over the batch, by every weight."""
    scores = np.exp(done.logits - done.logits.max(-1, keepdims=True))
    error = on_grid(scores / scores.sum(-1, keepdims=True) - np.eye(10)[labels])
    back = on_grid(error @ weights.dense.T).reshape(-1, 16, 4, 4).transpose(0, 2, 3, 1)
    error2 = unpool(back, done.best2, 3, done.active2.shape) * (done.active2 > 0)
    flipped = weights.conv2.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    error1 = unpool(on_grid(convolve(patches(error2), flipped)), done.best1, 2, done.active1.shape) * (done.active1 > 0)
    return Weights(
        conv1=kernel_gradient(done.columns1, error1, weights.conv1.shape),
        bias1=error1.sum((0, 1, 2)),
        conv2=kernel_gradient(done.columns2, error2, weights.conv2.shape),
        bias2=error2.sum((0, 1, 2)),
        dense=done.features.T @ error,
        bias3=error.sum(0),
    )


def as_floats(images: Bytes) -> Floats:
    """Images [N, 1, 28, 28] of bytes as [N, 28, 28, 1] between 0 and 1, which training is better conditioned on."""
    return images.transpose(0, 2, 3, 1) / PIXEL_MAX


def exact_logits(weights: Weights, digits: Digits) -> Floats:
    """What the model should give, in float64 and without the grid: [N, 10]."""
    return forward(weights, as_floats(digits.images), rounding=np.positive).logits


def batches(digits: Digits) -> Iterator[tuple[float, Digits]]:
    """Every batch of every epoch, shuffled anew each time, with the share of the training that is done."""
    random = np.random.default_rng(SEED + 2)
    count = len(digits.labels)
    for epoch in range(EPOCHS):
        order = random.permutation(count)
        for start in range(0, count, BATCH):
            yield (epoch + start / count) / EPOCHS, digits.take(order[start : start + BATCH])


def train(digits: Digits) -> Weights:
    """Gradient descent with momentum; the learning rate falls linearly to zero."""
    weights = Weights.initial()
    velocity = weights.map(function=np.zeros_like)
    for progress, batch in batches(digits):
        gradient = backward(weights, forward(weights, on_grid(as_floats(batch.images))), batch.labels)
        velocity = velocity.map(gradient, function=lambda v, g: MOMENTUM * v + g)
        rate = LEARNING_RATE / BATCH * (1 - progress)
        weights = weights.map(velocity, function=lambda w, v, r=rate: w - r * v)
    return weights


# --- the model --------------------------------------------------------------------------------------------------------


def for_pixels(weights: Weights) -> dict[str, npt.NDArray[np.float32]]:
    """The model's initializers: float32 in ONNX's shapes, with the division by 255 folded into the first kernel."""
    tensors = {
        "conv1.weight": weights.conv1 / PIXEL_MAX,
        "conv1.bias": weights.bias1.reshape(8, 1, 1),
        "conv2.weight": weights.conv2,
        "conv2.bias": weights.bias2.reshape(16, 1, 1),
        "dense.weight": weights.dense.reshape(16, 4, 4, 10),
        "dense.bias": weights.bias3.reshape(1, 10),
    }
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def nodes() -> list[onnx.NodeProto]:
    """The twelve nodes of the zoo's MNIST-8, in its order."""
    node = helper.make_node
    conv: dict[str, Any] = {
        "kernel_shape": [5, 5],
        "strides": [1, 1],
        "dilations": [1, 1],
        "group": 1,
        "auto_pad": "SAME_UPPER",
    }
    pool2: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "auto_pad": "NOTSET"}
    pool3: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [0, 0, 0, 0], "auto_pad": "NOTSET"}
    return [
        node("Reshape", ["dense.weight", "dense.weight.shape"], ["dense.matrix"], "dense_matrix"),
        node("Conv", ["image", "conv1.weight"], ["conv1"], "conv1", **conv),
        node("Add", ["conv1", "conv1.bias"], ["plus1"], "plus1"),
        node("Relu", ["plus1"], ["relu1"], "relu1"),
        node("MaxPool", ["relu1"], ["pool1"], "pool1", **pool2),
        node("Conv", ["pool1", "conv2.weight"], ["conv2"], "conv2", **conv),
        node("Add", ["conv2", "conv2.bias"], ["plus2"], "plus2"),
        node("Relu", ["plus2"], ["relu2"], "relu2"),
        node("MaxPool", ["relu2"], ["pool2"], "pool2", **pool3),
        node("Reshape", ["pool2", "features.shape"], ["features"], "features"),
        node("MatMul", ["features", "dense.matrix"], ["product"], "product"),
        node("Add", ["product", "dense.bias"], ["logits"], "logits"),
    ]


def make_model(weights: Weights) -> onnx.ModelProto:
    """The ONNX model at opset 13 and IR 7, which every ONNX Runtime from 1.6 on takes.

    image float32 [1, 1, 28, 28] with 0..255 to logits float32 [1, 10].
    """
    shapes = {"dense.weight.shape": [256, 10], "features.shape": [1, 256]}
    constants = for_pixels(weights) | {name: np.array(shape, np.int64) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes(),
        "mnist",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 28, 28])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(tensor, name) for name, tensor in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7, producer_name="mnist")
    onnx.checker.check_model(model, full_check=True)
    return model


def stored(weights: Weights) -> Weights:
    """The weights as the float32 of the model, back in float64 for images between 0 and 1."""
    scale = {"conv1": PIXEL_MAX}
    tensors = dict(zip((field.name for field in fields(weights)), for_pixels(weights).values(), strict=True))
    shapes = {field.name: getattr(weights, field.name).shape for field in fields(weights)}
    return Weights(**{n: (t.astype(np.float64) * scale.get(n, 1.0)).reshape(shapes[n]) for n, t in tensors.items()})


# --- the files --------------------------------------------------------------------------------------------------------


def write_tensor(path: Path, name: str, values: npt.NDArray[np.float32]) -> None:
    """One tensor in ONNX's layout of test data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(numpy_helper.from_array(values, name).SerializeToString(deterministic=True))


def write_test_data(folder: Path, digits: Digits, logits: npt.NDArray[np.float32]) -> None:
    """The first digits of the held-out part, each with its logits."""
    for index in range(TEST_DATA_SETS):
        data_set = folder / f"test_data_set_{index}"
        write_tensor(data_set / "input_0.pb", "image", digits.images[index : index + 1].astype(np.float32))
        write_tensor(data_set / "output_0.pb", "logits", logits[index : index + 1])


def write_digests(folder: Path) -> None:
    """SHA256SUMS over every data file, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".onnx", ".pb", ".npz"})
    digests = [(hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(folder).as_posix()) for path in files]
    lines = [f"{digest}  {name}" for digest, name in digests]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def make(folder: Path) -> float:
    """Trains, writes everything into `folder`, and gives the accuracy on the held-out part."""
    training, evaluation = split(load_digits())
    weights = train(training)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mnist.onnx").write_bytes(make_model(weights).SerializeToString(deterministic=True))
    logits = exact_logits(stored(weights), evaluation)
    write_test_data(folder, evaluation, logits.astype(np.float32))
    labels = evaluation.labels.astype(np.uint8)
    np.savez_compressed(folder / "evaluation.npz", inputs=evaluation.images, labels=labels)
    write_digests(folder)
    return float((logits.argmax(-1) == evaluation.labels).mean())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="make the MNIST example")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write to (default: beside this script)")
    print(f"accuracy on the held-out part: {make(parser.parse_args().output):.2%}")


if __name__ == "__main__":
    main()
