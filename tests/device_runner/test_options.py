"""The lattice of run options: what is legal anywhere and on a device, and the reason for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.device import DeviceFacts
from device_runner.options import DEVICE_RULES, RULES, illegal, impossible_here, subsets
from device_runner.result import FailureKind
from device_runner.spec import Allocator, ExecutionMode, NnapiFlag, RunOptions
from tests.values import present

FP16, NCHW, NO_CPU, ONLY_CPU = NnapiFlag.USE_FP16, NnapiFlag.USE_NCHW, NnapiFlag.CPU_DISABLED, NnapiFlag.CPU_ONLY


def phone(level: int) -> DeviceFacts:
    return DeviceFacts(name="adb:1", platform="android", api_level=level, abis=("arm64-v8a",), nnapi=level >= 27)


MAC = DeviceFacts(name="local", platform="macos")
LINUX = DeviceFacts(name="local", platform="linux")
AFFINITIES = {"session.intra_op_thread_affinities": "1;2"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (RunOptions(provider="nnapi", flags=(NO_CPU, ONLY_CPU)), "contradict"),
        (RunOptions(provider="xnnpack", flags=(FP16,)), "flags are NNAPI's"),
        (RunOptions(provider="nnapi", provider_options={"a": "b"}), "no options of its own"),
        (RunOptions(session_config={"session.disable_cpu_ep_fallback": "1"}), "forbids the CPU"),
        (RunOptions(inter_op_threads=2), "parallel"),
        (RunOptions(intra_op_threads=2, session_config=AFFINITIES), "one group fewer"),
        (RunOptions(intra_op_threads=3, session_config={"session.intra_op_thread_affinities": "1;x"}), "read"),
        (RunOptions(intra_op_threads=3, session_config={"session.intra_op_thread_affinities": "0;1"}), "read"),
        *((RunOptions(thread_cores=text), "read") for text in ("0", "x", "5-2", "1,,2", "3-99", "big,1")),
        (RunOptions(intra_op_threads=3, thread_cores="big", session_config=AFFINITIES), "exclude each other"),
        (RunOptions(intra_op_threads=1, thread_nice=-4), "no pool"),
        (RunOptions(thread_cores="1"), "need a number of threads"),
        (RunOptions(session_config={"session.dynamic_block_base": "-4"}), "above 0"),
        (RunOptions(session_config={"session.dynamic_block_base": "four"}), "above 0"),
        (RunOptions(session_config={"": "x"}), "empty"),
        *((RunOptions(provider=name, device_tensors=True), "a memory of its own") for name in ("cpu", "nnapi")),
        (RunOptions(provider="cuda", provider_options={"cuda_graph": "1"}), "did you mean enable_cuda_graph?"),
        (RunOptions(provider="cuda", provider_options={"arena_extend_strategy": "1"}), "kNextPowerOfTwo or kSame"),
        (RunOptions(provider="tensorrt", provider_options={"trt_fp16_enable": "yes"}), "takes 0 or 1, True or False"),
    ],
)
def test_what_is_illegal_anywhere(options: RunOptions, reason: str) -> None:
    failure = present(illegal(options))
    assert failure.code is FailureKind.BAD_OPTIONS
    assert reason in failure.what
    assert failure.remedy


@pytest.mark.parametrize(
    ("options", "facts", "reason"),
    [
        (RunOptions(provider="nnapi"), phone(26), "NNAPI needs 27"),
        (RunOptions(provider="nnapi"), MAC, "CoreML"),
        (RunOptions(intra_op_threads=2, thread_cores="big"), MAC, "core masks"),
        (RunOptions(allocator=Allocator.JEMALLOC), phone(30), "allocator"),
        (
            RunOptions(intra_op_threads=2, thread_cores="2-3"),
            DeviceFacts(name="adb:2", platform="android", api_level=30, core_max_mhz=(1800, 1800)),
            "2 cores",
        ),
        (RunOptions(provider="coreml"), phone(30), "Apple"),
        (RunOptions(provider="cuda"), phone(30), "NVIDIA's: no device with android"),
        (RunOptions(provider="tensorrt"), MAC, "NVIDIA's"),
        (RunOptions(provider="nnapi", flags=(NCHW,)), phone(28), "USE_NCHW needs 29"),
        (RunOptions(provider="nnapi", flags=(ONLY_CPU,)), phone(28), "CPU_ONLY needs 29, and is ignored below"),
        (RunOptions(provider="nnapi", flags=(FP16,)), phone(27), "USE_FP16 needs 28, and is ignored below"),
        (RunOptions(provider="nnapi", flags=(NO_CPU,)), phone(28), "CPU_DISABLED needs 29"),
        (
            RunOptions(intra_op_threads=2, session_config={"session.intra_op_thread_affinities": "2-3"}),
            DeviceFacts(name="adb:2", platform="android", api_level=30, core_max_mhz=(1800, 1800)),
            "2 cores",
        ),
    ],
)
def test_what_a_device_cannot(options: RunOptions, facts: DeviceFacts, reason: str) -> None:
    failure = present(impossible_here(options, facts))
    assert failure.code is FailureKind.WRONG_DEVICE
    assert reason in failure.what


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (RunOptions(provider="nnapi", flags=(FP16, NCHW, NO_CPU)), phone(29)),
        (RunOptions(provider="nnapi", flags=(FP16,)), phone(28)),
        (RunOptions(provider="nnapi"), LINUX),
        (RunOptions(provider="tensorrt", provider_options={"trt_fp16_enable": "True"}), LINUX),
        (RunOptions(provider="coreml", provider_options={"ModelFormat": "MLProgram"}), MAC),
        (RunOptions(intra_op_threads=3, session_config=AFFINITIES), phone(26)),
        (RunOptions(inter_op_threads=2, execution_mode=ExecutionMode.PARALLEL), phone(30)),
    ],
)
def test_what_can_run(options: RunOptions, facts: DeviceFacts) -> None:
    assert impossible_here(options, facts) is None


def test_every_set_of_flags_once_smallest_first() -> None:
    sets = list(subsets())
    assert len(set(sets)) == len(sets) == 16
    assert sets[0] == ()
    assert [len(flags) for flags in sets] == sorted(len(flags) for flags in sets)


@pytest.mark.parametrize(("level", "legal"), [(26, 0), (27, 1), (28, 2), (29, 12), (35, 12)])
def test_every_set_of_flags_can_run_or_says_why_not(level: int, legal: int) -> None:
    failures = [impossible_here(RunOptions(provider="nnapi", flags=flags), phone(level)) for flags in subsets()]
    told = [failure for failure in failures if failure]
    assert len(failures) - len(told) == legal
    assert all(failure.what and failure.remedy for failure in told)


@given(level=st.integers(21, 40), flags=st.lists(st.sampled_from(list(NnapiFlag)), unique=True))
def test_more_api_levels_never_forbid(level: int, flags: list[NnapiFlag]) -> None:
    options = RunOptions(provider="nnapi", flags=tuple(flags))
    if impossible_here(options, phone(level)) is None:
        assert impossible_here(options, phone(level + 1)) is None


def test_every_rule_has_a_reason_and_a_remedy() -> None:
    assert all(rule.what and rule.remedy for rule in (*RULES, *DEVICE_RULES))
