"""What a bundle keeps beside its content: tensors of the original models, and test vectors of what ships."""

from typing import Annotated

import msgspec
from msgspec import Meta

from device_runner import spec as run_spec
from device_runner.spec import ElementType, RunOptions
from pipeline.check import compare as output_compare
from pipeline.core import documents


class BundledFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the bundle by its path inside it."""

    path: documents.FilePath
    """Relative, with `/`, and never out of the bundle: a manifest may come from anywhere."""
    size_bytes: Annotated[int, Meta(ge=0)]
    sha256: run_spec.Sha256


class KeptTensor(BundledFile, frozen=True, kw_only=True):
    """A tensor in a file of the bundle: raw little-endian elements in C order."""

    name: run_spec.Text
    dtype: ElementType
    shape: tuple[Annotated[int, Meta(ge=0)], ...]


class KeptReference(msgspec.Struct, frozen=True, kw_only=True):
    """What the original of a model made of some inputs, and how far artifacts may be from that.

    Tensors that are large are not kept: `inputs` or `outputs` are then empty. `tolerance` has everything that decides
    whether an output passes.
    """

    model: documents.ReferenceName
    """The name of the model; of one in another precision with that behind, as in mnist@u8s8pc."""
    inputs: tuple[KeptTensor, ...] = ()
    outputs: tuple[KeptTensor, ...] = ()
    tolerance: output_compare.Tolerance


class KeptVector(msgspec.Struct, frozen=True, kw_only=True):
    """What an app gives a file that ships, and what that made of it.

    With `steps` it is a stream from its start: tensors have the steps as a first axis, but for the first values of
    states. What states become is not kept.
    """

    text: run_spec.Text = ""
    """What the inputs were made of; "" where the app has no text."""
    steps: Annotated[int, Meta(ge=0, le=100_000)] = 0
    inputs: Annotated[tuple[KeptTensor, ...], Meta(max_length=1000)]
    outputs: Annotated[tuple[KeptTensor, ...], Meta(max_length=1000)]


class KeptVectors(msgspec.Struct, frozen=True, kw_only=True):
    """Test vectors of a model for a target: whoever calls the file as the app does must get the same values.

    They are the same in all bits with the same release on a processor with the same instructions. `place` says what
    computed them. Without any, `none` says why.
    """

    target: documents.Name
    model: documents.ModelName
    file: documents.ModelFile
    options: RunOptions
    ort_release: documents.AnyRelease
    place: documents.Line = ""
    vectors: tuple[KeptVector, ...] = ()
    none: run_spec.Text = ""
