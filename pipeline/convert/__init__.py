"""Variant to Artifact: conversion to ORT format with the stock onnxruntime, by content and within memory."""

from pipeline.convert.request import ConvertRequest, ConvertResult, OptimizerPlatform, VariantFailure

__all__ = ["ConvertRequest", "ConvertResult", "OptimizerPlatform", "VariantFailure", "convert_model"]


def convert_model(request: ConvertRequest) -> ConvertResult:
    """Convert one model to the variants of the request; what fails for one variant costs no other.

    ModelError (ConfigError for a dimension that the model lacks) when the model itself cannot be used, DiskError
    when the disk is full. Runs in a process of its own where models are not trusted: onnxruntime can crash on them.
    """
    # The engine is for the process that does the work: who only asks for it starts in half the time without.
    from pipeline.convert import engine

    return engine.convert_model(request)
