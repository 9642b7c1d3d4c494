"""Contradictions that are found before a build."""

import pytest

from pipeline.config import Platform
from pipeline.config.tables import BuildKind, Dependencies
from pipeline.core.errors import Severity
from pipeline.core.variant import Style
from pipeline.ort_build.lint import lint
from pipeline.ort_build.request import Request
from pipeline.required_ops import EMPTY, parse
from tests.ort_build.build_requests import OPERATORS, request

ML = parse("ai.onnx;13;Relu\nai.onnx.ml;1;Normalizer\n", "c")
NCHWC = parse("com.microsoft.nchwc;1;Conv\n", "c")
UNTYPED = parse("ai.onnx;13;Relu,Add\n", "c")
SYSTEM = Dependencies.SYSTEM
LINUX, IOS, MACOS = Platform.LINUX, Platform.IOS, Platform.MACOS

ERRORS = [
    (request(operators=ML, ml_ops=False), "drops ai.onnx.ml, and the operator config needs Normalizer"),
    (request(contrib_ops=False), "drops com.microsoft, and the operator config needs FusedConv"),
    (request(contrib_ops=False, providers=("xnnpack",), operators=None), "XNNPACK cannot be built without"),
    (request(kind=BuildKind.MINIMAL, providers=("nnapi", "xnnpack")), "minimal build cannot contain nnapi, xnnpack"),
    (request(kind=BuildKind.MINIMAL, styles=(Style.RUNTIME,)), "does not replay saved runtime optimizations"),
    (request(kind=BuildKind.MINIMAL, styles=(Style.ONNX,)), "a build of kind minimal loads no ONNX file"),
    (request(kind=BuildKind.EXTENDED, styles=(Style.ONNX,)), "a build of kind extended loads no ONNX file"),
    (request(kind=BuildKind.FULL, operators=EMPTY), "the operator config lists no operator"),
    (request(LINUX, wheel=True, kind=BuildKind.MINIMAL), "wheel cannot be minimal"),
    (request(wheel=True), "no Python wheel for android"),
    (request(kind=BuildKind.FULL, exceptions=False), "full build needs exceptions"),
    (request(providers=("coreml",)), "coreml cannot be part of a build of kind extended for android"),
    (request(LINUX, providers=("nnapi",)), "nnapi cannot be part of a build of kind extended for linux"),
    (request(abis=("x86",), providers=("qnn",)), "qnn cannot be"),
    (request(version="1.12.1", providers=("xnnpack",)), "1.12.1 cannot be built with xnnpack"),
    (request(dependencies=SYSTEM, onnx_source="/onnx"), "cannot be built into a library for android"),
    (
        request(LINUX, dependencies=SYSTEM, onnx_source="/onnx", kind=BuildKind.FULL),
        "are for minimal and extended builds",
    ),
    (request(LINUX, dependencies=SYSTEM), "needs the source of ONNX"),
]
WARNINGS = [
    (request(api_level=21), "android 21 is below what ONNX Runtime 1.23.2 supports"),
    (request(IOS, os_version="14.9"), "ios 14.9 is below"),
    (request(MACOS, "1.24.0", os_version="13.4"), "macos 13.4 is below"),
    (request(api_level=26, providers=("nnapi",)), "below API level 27 NNAPI supports no node"),
    (request(operators=UNTYPED), "types are to be reduced, and the operator config lists none"),
    (request(operators=None), "no operator config"),
    (request(operators=NCHWC, reduce_types=False), "lists Conv of com.microsoft.nchwc"),
]
CLEAN = [
    request(),
    request(api_level=27, providers=("nnapi", "xnnpack")),
    request(IOS, os_version="15.1", providers=("coreml", "xnnpack")),
    request(MACOS, "1.24.0", os_version="14"),
    request(LINUX, wheel=True, providers=("nnapi",)),
    request(LINUX, dependencies=SYSTEM, onnx_source="/onnx"),
    request(operators=ML, reduce_types=False),
    request(operators=None, kind=BuildKind.FULL),
    request(operators=UNTYPED.with_global_types(["float"])),
    request(operators=OPERATORS, styles=(Style.RUNTIME,)),
    request(abis=("arm64-v8a",), providers=("qnn",)),
    request(operators=NCHWC, reduce_types=False, styles=(Style.ONNX,)),
]


@pytest.mark.parametrize(("asked", "what"), ERRORS)
def test_errors(asked: Request, what: str) -> None:
    found = [finding for finding in lint(asked) if finding.severity is Severity.ERROR]
    assert any(what in finding.what for finding in found), found
    assert all(finding.where == "target t" and finding.remedy for finding in found)


@pytest.mark.parametrize(("asked", "what"), WARNINGS)
def test_warnings(asked: Request, what: str) -> None:
    assert [finding.severity for finding in lint(asked)] == [Severity.WARNING]
    assert what in lint(asked)[0].what


@pytest.mark.parametrize("asked", CLEAN)
def test_nothing_speaks_against_the_usual(asked: Request) -> None:
    assert lint(asked) == ()
