"""Inputs and outputs of a model in comments of code for apps, with what is a state."""

from pipeline.model.signature import TensorInfo
from pipeline.release.manifest import ModelSignature
from pipeline.release.source_code import Code, comment, joined, word


def tensor_text(tensor: TensorInfo) -> Code:
    """Name, type and shape, for a comment."""
    axes = [Code("?") if axis is None else word(str(axis)) for axis in tensor.shape or ()]
    shape = Code("any shape") if tensor.shape is None else joined(axes, " x ") if axes else Code("a scalar")
    return Code("{}: {}, {}").format(word(tensor.name), word(str(tensor.dtype)), shape)


def input_text(tensor: TensorInfo, signature: ModelSignature) -> Code:
    """An input for a comment; of a state, what it is first and later."""
    source = signature.source_of(tensor.name)
    if source is None:
        return tensor_text(tensor)
    first = comment(signature.first_value(tensor.name))
    return Code("{}; at the start of a stream {}, then the output {} of the run before").format(
        tensor_text(tensor), first, word(source)
    )


def output_text(tensor: TensorInfo, signature: ModelSignature) -> Code:
    """An output for a comment; of a state, where it goes."""
    name = signature.state.get(tensor.name)
    text = tensor_text(tensor)
    return text if name is None else Code("{}; the input {} of the next run of a stream").format(text, word(name))
