"""What a manifest says of a text that becomes inputs of a model."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from device_runner import spec as run_spec
from pipeline.core import documents
from pipeline.model.signature import TensorInfo


class TextTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How an app makes inputs of a text: `file` is the tokenizer's in the bundle, which `library` was asked for.

    `ids`, `mask` and `types` are the names of inputs, "" for none; a text becomes at most `most` tokens.
    """

    file: documents.ModelFile
    algorithm: Literal["wordpiece", "bpe"]
    library: documents.Line
    ids: run_spec.Text
    mask: run_spec.Text = ""
    types: run_spec.Text = ""
    most: int

    @property
    def inputs(self) -> dict[str, str]:
        """The names of inputs by what they get."""
        return {"ids": self.ids, "mask": self.mask, "types": self.types}

    def length(self, inputs: Iterable[TensorInfo]) -> int:
        """The number of tokens that a model with these inputs takes, neither more nor less; 0 where that is open."""
        sizes = (given.shape[-1] for given in inputs if given.shape)
        return next((size for size in sizes if isinstance(size, int)), 0)
