"""Variant to Artifact: conversion to ORT format with the stock onnxruntime, by content and within memory."""

from pipeline.convert.request import ConvertRequest, ConvertResult, OptimizerPlatform, VariantFailure, convert_model

__all__ = ["ConvertRequest", "ConvertResult", "OptimizerPlatform", "VariantFailure", "convert_model"]
