"""What the classes of models need that take texts: the tokenizer's class and resource, and what becomes of ids."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.model.signature import TensorInfo
from pipeline.release import manifest as bundle_manifest
from pipeline.release import source_code

TOKENIZERS = {"wordpiece": "WordPiece", "bpe": "BytePairs"}
"""The class of a tokenizer by its algorithm."""


def tokenizers(models: Iterable[bundle_manifest.ModelSignature]) -> list[tuple[str, str]]:
    """The algorithms of models that take texts, with the class of each."""
    algorithms = {model.text.algorithm for model in models if model.text and model.takes_text}
    return [(name, TOKENIZERS[name]) for name in sorted(algorithms)]


def resource(assets: str, text_file: str) -> str:
    """The path of a tokenizer among an app's Java resources; `assets` is the folder of the package's models."""
    return f"{assets}/{text_file.rpartition('/')[2]}"


def of_text(
    signature: bundle_manifest.ModelSignature,
    digests: Mapping[str, str],
    assets: str,
    java_type: Callable[[TensorInfo], source_code.Code | None],
) -> dict[str, Any] | None:
    """What Model.java needs of a model's text; None where it takes tensors.

    `resource` and its `sha256`; `most` tokens; `length` where it takes so many, neither more nor less, else 0; `inputs`
    in their order, the `key` of what each gets and the `buffer` for it; whether a `shape` is needed, and the
    `arguments` of `run` with tensors.
    """
    if not (signature.text and signature.takes_text):
        return None
    text, length = signature.text, signature.text.length(signature.inputs)
    keys = {name: key for key, name in text.inputs.items()}
    arguments = []
    for given in signature.inputs:
        arguments += [keys[given.name], *([] if given.fixed else ["shape"])]
    return {
        "resource": resource(assets, text.file),
        "sha256": digests[text.file],
        "most": min(text.most, length or text.most),
        "length": length,
        "inputs": [{"key": keys[given.name], "buffer": java_type(given)} for given in signature.inputs],
        "shape": not all(given.fixed for given in signature.inputs),
        "arguments": [source_code.identifier(name) for name in arguments],
    }
