"""The ORT format: what ONNX Runtime's mobile builds load."""

from pipeline.model.ort_format.flatbuffer import Buffer
from pipeline.model.ort_format.reader import operator_histogram, parse_ort, read_ort
from pipeline.model.ort_format.values import (
    DEFAULT_DOMAIN,
    ELEMENT_TYPES,
    Attribute,
    AttributeValue,
    Dim,
    MapType,
    Metadata,
    OrtGraph,
    OrtModel,
    OrtNode,
    Resolver,
    ResolverArg,
    RuntimeOptimization,
    SequenceType,
    SparseTensor,
    Tensor,
    TensorType,
    TypeInfo,
)

__all__ = [
    "DEFAULT_DOMAIN",
    "ELEMENT_TYPES",
    "Attribute",
    "AttributeValue",
    "Buffer",
    "Dim",
    "MapType",
    "Metadata",
    "OrtGraph",
    "OrtModel",
    "OrtNode",
    "Resolver",
    "ResolverArg",
    "RuntimeOptimization",
    "SequenceType",
    "SparseTensor",
    "Tensor",
    "TensorType",
    "TypeInfo",
    "operator_histogram",
    "parse_ort",
    "read_ort",
]
