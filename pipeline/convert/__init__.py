"""Variant to Artifact: conversion to ORT format with the stock onnxruntime, by content and within memory."""

from pipeline.convert.engine import convert_model
from pipeline.convert.request import ConvertRequest, ConvertResult, OptimizerPlatform, VariantFailure

__all__ = ["ConvertRequest", "ConvertResult", "OptimizerPlatform", "VariantFailure", "convert_model"]
