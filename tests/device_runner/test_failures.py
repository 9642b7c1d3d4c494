"""Error texts to kinds: each line of the table by a message as ONNX Runtime, a linker or a device says it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.errors import SpecError, UnavailableError
from device_runner.failures import KINDS, TEXTS, Topic, explain, failure_of, text_of_message
from device_runner.result import Failure, FailureKind

K = FailureKind
SAID = [
    (K.MODEL_LOAD, "Could not find an implementation for FusedConv(1) node with name 'c'", K.MODEL_LOAD, "kernel"),
    (K.MODEL_LOAD, "Failed to find kernel for com.microsoft.FusedConv(1)", K.MODEL_LOAD, "kernel"),
    (K.MODEL_LOAD, "The ORT format model version [4] is not supported in this build 1.31.1.", K.MODEL_LOAD, "version"),
    (K.MODEL_LOAD, "ORT model verification failed.", K.MODEL_LOAD, "truncated"),
    (K.MODEL_LOAD, "Load model from a failed:INVALID_PROTOBUF : Protobuf parsing failed.", K.MODEL_LOAD, ".ort"),
    (K.MODEL_LOAD, "bad allocation", K.OUT_OF_MEMORY, "memory"),
    (K.MODEL_LOAD, "std::bad_alloc", K.OUT_OF_MEMORY, "memory"),
    (K.MODEL_LOAD, "Failed to compose Qnn graph.", K.MODEL_LOAD, "no implementation"),
    (K.MODEL_LOAD, "Unsupported model IR version: 14, max supported IR version: 13", K.MODEL_LOAD, "IR version"),
    (K.MODEL_LOAD, "Fatal error: my:Op(-1) is not a registered function/op", K.MODEL_LOAD, "custom domain"),
    (K.PROVIDER_REFUSED, "XNNPACK execution provider is not supported in this build. ", K.PROVIDER_MISSING, "without"),
    (K.PROVIDER_REFUSED, "Unknown provider name 'x'. Currently supported values are", K.PROVIDER_MISSING, "name"),
    (K.PROVIDER_REFUSED, "Both NNAPI_FLAG_CPU_DISABLED and NNAPI_FLAG_CPU_ONLY are set", K.BAD_OPTIONS, "exclude"),
    (K.MODEL_LOAD, "Number of affinities does not equal to thread_pool_size minus one", K.BAD_OPTIONS, "invalid"),
    (
        K.MODEL_LOAD, "Schema was not found for fused node. Domain:com.ms.internal.nhwc OpType:Conv SinceVersion:11",
        K.PROVIDER_REFUSED, "XNNPACK",
    ),
    (
        K.MODEL_LOAD, "The input/initializer of graph doesn't have valid type, name: w type: 3",
        K.PROVIDER_REFUSED, "could not build",
    ),
    (
        K.MODEL_LOAD, "The input/initializer of graph has unsupported quantized type, name: y type: 2",
        K.PROVIDER_REFUSED, "could not build",
    ),
    (K.RUN_ERROR, "Invalid rank for input: x Got: 1 Expected: 2", K.BAD_INPUT, "shape"),
    (K.RUN_ERROR, "Unexpected input data type. Actual: (tensor(double))", K.BAD_INPUT, "type"),
    (K.MISSING_LIBRARY, "x.so: cannot open shared object file: No such file", K.MISSING_LIBRARY, "missing"),
    (K.MISSING_LIBRARY, 'dlopen failed: library "libc++_shared.so" not found', K.MISSING_LIBRARY, "depends"),
    (K.MISSING_LIBRARY, "x.so: wrong ELF class: ELFCLASS32", K.WRONG_LIBRARY, "processor"),
    (K.MISSING_LIBRARY, '"x" is for EM_AARCH64 (183) instead of EM_X86_64', K.WRONG_LIBRARY, "processor"),
    (
        K.MISSING_LIBRARY, "program alignment (4096) cannot be smaller than system page size (16384)",
        K.WRONG_LIBRARY, "16 KB",
    ),
    (K.MISSING_LIBRARY, "/lib/libc.so.6: version `GLIBC_2.38' not found", K.WRONG_LIBRARY, "newer system"),
    (K.MISSING_LIBRARY, "version `VERS_1.23.2' not found", K.WRONG_LIBRARY, "mixed"),
    (
        K.PROVIDER_REFUSED, "Failed to get a WebGPU device: Couldn't get proc vkGetAndroidHardwareBufferProperties",
        K.PROVIDER_REFUSED, "driver",
    ),
    (K.DEVICE_ERROR, "write: No space left on device", K.NO_SPACE, "full"),
]  # fmt: skip


ENFORCED = (
    "/onnxruntime_src/onnxruntime/core/providers/webgpu/webgpu_context.cc:101 auto onnxruntime::webgpu::WebGpuContext::"
    "Initialize(const WebGpuContextConfig &)::(anonymous class)::operator()() const adapter_result.status == "
    "wgpu::RequestAdapterStatus::Success was false. "
)
"""How release 1.29 for Android begins its message where there is no GPU."""


def test_without_a_gpu_webgpu_says_so_and_shows_no_source_path() -> None:
    message = "Failed to get a WebGPU adapter: No supported adapters"
    failure = explain(Failure(kind=K.PROVIDER_REFUSED, message=f"{ENFORCED}{message}\n"))
    assert failure.message == message
    assert "no GPU" in failure.cause
    assert "provider_options" not in failure.remedy
    assert explain(failure) == failure


def test_what_no_text_explains_keeps_the_place_in_the_sources() -> None:
    message = f"{ENFORCED}something new"
    assert explain(Failure(kind=K.RUN_ERROR, message=message)).message == message


@pytest.mark.parametrize(("kind", "message", "becomes", "cause"), SAID)
def test_texts_become_kinds_with_cause_and_remedy(kind: K, message: str, becomes: K, cause: str) -> None:
    failure = explain(Failure(kind=kind, message=message))
    assert failure.kind is becomes
    assert cause in failure.cause
    assert failure.remedy


def test_a_crash_stays_a_crash_whatever_was_said_before_it() -> None:
    assert explain(Failure(kind=K.CRASH, message="SIGABRT; stderr: std::bad_alloc")).kind is K.CRASH


def test_what_the_reporter_knows_stays() -> None:
    failure = explain(Failure(kind=K.MODEL_LOAD, message="ORT model verification failed.", cause="c", remedy="r"))
    assert (failure.cause, failure.remedy) == ("c", "r")


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_kind_has_words_of_its_own(kind: K) -> None:
    assert all(KINDS[kind])
    assert explain(Failure(kind=kind, message="nothing known")).remedy


def test_the_table_is_well_formed() -> None:
    for text in TEXTS:
        re.compile(text.fragment)
        assert text.cause
        assert text.remedy


def test_a_cause_repeats_what_the_message_names_and_nothing_that_acts() -> None:
    found = text_of_message("No Op registered for Ge\x1blu with domain_version of 13")
    assert found is not None
    assert found.cause == r"operator Ge\x1blu does not exist in opset 13 of this release"
    assert text_of_message("No Op registered for Gelu", Topic.FORMAT) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SpecError("a"), K.BAD_OPTIONS),
        (UnavailableError("a"), K.MISSING_LIBRARY),
        (OSError(28, "No space left on device"), K.NO_SPACE),
    ],
)
def test_errors_on_the_way_become_failures(error: Exception, kind: K) -> None:
    assert failure_of(error).kind is kind


@given(st.text(max_size=200), st.sampled_from(list(FailureKind)))
def test_any_text_is_explained(message: str, kind: K) -> None:
    failure = explain(Failure(kind=kind, message=message))
    assert failure.message == message
    assert failure.cause
