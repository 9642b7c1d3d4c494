"""Trained models as users' functions give them: `ort-mobile import trained:NAME`."""

from pathlib import Path
from typing import Any


def torch_convolutions() -> Any:
    """A batch and a height that stay open, under names of their own."""
    import torch

    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
    net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8, 5))
    open_sizes = {0: torch.export.Dim("batch", min=1), 2: torch.export.Dim("height", min=8)}
    return net, torch.randn(2, 3, 16, 16), {"dynamic_shapes": (open_sizes,)}


def torch_lstm() -> Any:
    """Whole numbers in, a nested state in and out."""
    import torch

    class Tagger(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm = torch.nn.Embedding(50, 8), torch.nn.LSTM(8, 16, batch_first=True)

        def forward(self, words: Any, state: Any) -> dict[str, Any]:
            found, after = self.lstm(self.embed(words), state)
            return {"found": found, "state": after}

    return Tagger(), (torch.randint(0, 50, (1, 12)), (torch.zeros(1, 1, 16), torch.zeros(1, 1, 16)))


def torch_other_when_exported() -> Any:
    """What an export computes is not what the module computes."""
    import torch

    class Net(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x * 2 if torch.compiler.is_compiling() else x * 3

    return Net(), torch.randn(2, 3)


def torch_own_operator() -> Any:
    """An operator that ONNX does not have, in a layer of a name."""
    import torch

    @torch.library.custom_op("samples::odd", mutates_args=())  # type: ignore[untyped-decorator]
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    odd.register_fake(torch.empty_like)

    class Odd(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.ops.samples.odd(x)

    return torch.nn.Sequential(torch.nn.Linear(3, 3), Odd()), torch.randn(2, 3)


def forest() -> Any:
    import numpy as np
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    return make_pipeline(StandardScaler(), RandomForestClassifier(20, random_state=0)).fit(x, y), x[:20]


def own_step() -> Any:
    """A step that skl2onnx does not know."""
    import numpy as np
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    class Twice(TransformerMixin, BaseEstimator):  # type: ignore[misc]
        def fit(self, _x: Any, _y: Any = None) -> "Twice":
            return self

        def transform(self, x: Any) -> Any:
            return 2 * x

    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    return make_pipeline(Twice(), Ridge()).fit(x, x[:, 0]), x


def tensorflow_convolutions() -> Any:
    """A Keras model without example inputs."""
    import tensorflow as tf

    tf.random.set_seed(0)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.Input((12, 12, 3)), layers.Conv2D(4, 3, activation="relu"), layers.GlobalAveragePooling2D(),
         layers.Dense(3, activation="softmax")]
    ), ()  # fmt: skip


def tensorflow_own_layer() -> Any:
    """An operator of TensorFlow that ONNX does not have, in a layer of a name."""
    import tensorflow as tf

    class Beta(tf.keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return tf.math.betainc(tf.abs(x), tf.abs(x), tf.sigmoid(x))

    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((4,)), layers.Dense(4), Beta(name="beta"), layers.Dense(2)]), ()


def torch_on_gpu() -> Any:
    import torch

    return torch.nn.Linear(3, 2).cuda(), torch.randn(1, 3).cuda()


def refused_kernel() -> Any:
    """What torch says of a quantized model that gets floats; it names every backend that it has."""
    raise NotImplementedError(
        "Could not run 'quantized::linear' with arguments from the 'CPU' backend. 'quantized::linear' is only "
        "available for these backends: [Meta, QuantizedCPU]. AutocastCUDA: fallthrough registered there"
    )


def absent_weights() -> Any:
    """A file of the user's that is not there."""
    return Path("gpu/cuda_net.pth").read_bytes()


def leaving() -> Any:
    """What a script does that is called without its arguments."""
    raise SystemExit(3)


def crashing() -> Any:
    """What a library of a framework may do."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def nothing() -> Any:
    return 3


def no_framework() -> Any:
    return object(), ()


def broken() -> Any:
    """What a function of a user may do."""
    raise ValueError("there are no weights")
