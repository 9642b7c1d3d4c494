"""The library that stands in for a provider: built at first use, it claims the nodes that it is told."""

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from device_runner import build as runner_build
from device_runner.errors import UnavailableError
from pipeline.core import ort_session
from pipeline.partition.graph import Node

LIBRARY = "libort_mobile_claims.so"

VENDOR = "ort-mobile"

CLAIMS_PROVIDER = "OrtMobileClaims"

CLAIMS = "ort_mobile.claims"
"""The session config entry with the path of the list."""


@cache
def claims_devices() -> Mapping[str, Any]:
    """Its devices by the name of the provider, as sessions take them; built and loaded once in a process.

    WebGPU has one by its own name. UnavailableError where there is no compiler or onnxruntime does not take it,
    RunnerError when the compiler fails.
    """
    from onnxruntime.capi import _pybind_state as ort

    library = runner_build.build_library(Path(__file__).parent / "plugin", LIBRARY)
    refusals: tuple[type[Exception], ...] = (AttributeError, *ort_session.ort_errors())
    try:
        ort.register_execution_provider_library(VENDOR, str(library))
        return {device.ep_name: device for device in ort.get_ep_devices() if device.ep_vendor == VENDOR}
    except refusals as error:
        raise UnavailableError(
            "the installed onnxruntime does not load the provider that stands in for those of phones",
            where=str(library),
            why=ort_session.first_line(error),
            remedy="install onnxruntime 1.23 or later",
        ) from error


def node_key(node: Node) -> str:
    """What the provider knows a node by."""
    return f"{node.op_type} {node.first_output}"


def claims_file(keys: Collection[str]) -> bytes:
    """The list of nodes that it is to claim, as claims.c wants it."""
    return b"".join(sorted(key.encode() + b"\0" for key in keys))
