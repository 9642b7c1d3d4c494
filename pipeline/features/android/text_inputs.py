"""What the Java classes of models need that take texts: the tokenizer's class and resource, and what becomes of ids."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.model.signature import TensorInfo
from pipeline.release import app_texts, source_code
from pipeline.release import manifest as bundle_manifest

TOKENIZERS = {"wordpiece": "WordPiece", "bpe": "BytePairs"}
"""The class of a tokenizer by its algorithm."""


def tokenizers(models: Iterable[bundle_manifest.ModelSignature]) -> list[tuple[str, str]]:
    """The algorithms of models that take texts, with the class of each."""
    algorithms = {feed.algorithm for model in models if (feed := app_texts.feed_of(model))}
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
    """What Model.java needs of a model's text; None where it takes something else.

    `resource` and its `sha256`; `most` and `length` as TextFeed has them; `inputs` in their order, the `key` of what
    each gets and the `buffer` for it; whether a `shape` is needed, and the `arguments` of `run` with tensors.
    """
    feed = app_texts.feed_of(signature)
    if feed is None:
        return None
    arguments = []
    for key, given in zip(feed.keys, signature.inputs, strict=True):
        arguments += [key, *([] if given.fixed else ["shape"])]
    return {
        "resource": resource(assets, feed.file),
        "sha256": digests[feed.file],
        "most": feed.most,
        "length": feed.length,
        "inputs": [
            {"key": key, "buffer": java_type(given)} for key, given in zip(feed.keys, signature.inputs, strict=True)
        ],
        "shape": not all(given.fixed for given in signature.inputs),
        "arguments": [source_code.identifier(name) for name in arguments],
    }
