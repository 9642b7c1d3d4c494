"""The claims provider: what it claims, what it refuses, how it is built, and its table of ONNX Runtime's functions."""

import importlib.util
import platform
import re
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import helper
from onnxruntime.capi import _pybind_state

from device_runner.build import build_library
from device_runner.errors import UnavailableError
from device_runner.probe.elf import read_elf
from pipeline.core.ort_session import load_session, ort_errors, session_options
from pipeline.core.variant import Level
from pipeline.model.ort_format import read_ort
from pipeline.partition import shown
from pipeline.partition.stand_in import CLAIMS, CLAIMS_PROVIDER, LIBRARY, claims_devices, claims_file
from tests.debian_packages import unpacked
from tests.onnx_samples import make, value, weight

SOURCES = Path(shown.__file__).parent / "plugin"


def convs(*names: str) -> onnx.ModelProto:
    """Conv and Relu by turns; the CPU fuses each pair, whose outputs have a name and `NAME/r`."""
    nodes, last = [], "x"
    for name in names:
        nodes += [
            helper.make_node("Conv", [last, "w"], [name], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [name], [f"{name}/r"]),
        ]
        last = f"{name}/r"
    return make(nodes, [value("x", [1, 4, 8, 8])], [value(last, [1, 4, 8, 8])], [weight("w", 4, 4, 3, 3)])


def saved(model: onnx.ModelProto, folder: Path, claims: list[str] | None) -> list[str]:
    """The operators of the file that a session saves with these claims; None: without a list."""
    target, told = folder / "model.ort", folder / "claims"
    config = {"session.save_model_format": "ORT", CLAIMS: str(told)}
    if claims is not None:
        told.write_bytes(claims_file(claims))
    settings = session_options(Level.EXTENDED, save_to=target, config=config, device=claims_devices()[CLAIMS_PROVIDER])
    load_session(model.SerializeToString(), settings).initialize_session([], [], set())
    return sorted(node.op_type for node in read_ort(target).graph.nodes)


def test_a_claimed_node_is_not_fused(tmp_path: Path) -> None:
    assert saved(convs("a", "b"), tmp_path, []) == ["FusedConv", "FusedConv"]
    assert saved(convs("a", "b"), tmp_path, ["Conv b", "Relu b/r"]) == ["Conv", "FusedConv", "Relu"]


def test_nodes_go_by_operator_and_output_of_any_characters(tmp_path: Path) -> None:
    strange = "ä\n b\t"
    assert saved(convs(strange, "b"), tmp_path, ["Relu a", f"Relu {strange}", "Conv", ""]) == ["FusedConv"] * 2
    assert saved(convs(strange, "b"), tmp_path, ["Relu z", f"Conv {strange}"]) == ["Conv", "FusedConv", "Relu"]


def test_a_list_that_cannot_be_read_ends_the_session(tmp_path: Path) -> None:
    with pytest.raises(ort_errors(), match="the list of claims cannot be opened"):
        saved(convs("a"), tmp_path, None)


def test_it_is_loaded_once() -> None:
    assert claims_devices() is claims_devices()


def test_without_a_compiler_or_with_an_old_wheel_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = claims_devices.__wrapped__
    with monkeypatch.context() as patched:
        patched.setenv("ORT_MOBILE_CACHE", str(tmp_path))
        patched.setattr(shutil, "which", lambda name: None)
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UnavailableError, match="no C compiler") as caught:
            load()
        assert "ziglang" in caught.value.remedy
    monkeypatch.delattr(_pybind_state, "register_execution_provider_library")
    with pytest.raises(UnavailableError, match="does not load the provider") as caught:
        load()
    assert "1.23" in caught.value.remedy


@pytest.mark.long
def test_ziglang_builds_it_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    made = build_library(SOURCES, LIBRARY)
    assert made.is_relative_to(tmp_path)
    if platform.system() == "Linux":
        shown = {name for name, section in read_elf(made).symbols if section}
        assert {"CreateEpFactories", "ReleaseEpFactory"} <= shown


CHECKED = """
#include <onnxruntime_c_api.h>
#define OrtApiBase OurApiBase
#define OrtEp OurEp
#define OrtEpFactory OurEpFactory
#include "ep_table.h"
#undef OrtApiBase
#undef OrtEp
#undef OrtEpFactory
#define PLACE(name, index, result, parameters) \\
    _Static_assert(offsetof(OrtApi, name) == index * sizeof(void (*)(void)), "place of " #name);
#define EP_PLACE(name, index, result, parameters) \\
    _Static_assert(offsetof(OrtEpApi, name) == index * sizeof(void (*)(void)), "place of " #name);
ORT_CALLS(PLACE)
EP_CALLS(EP_PLACE)
#define MEMBER(type, name) _Static_assert(offsetof(Ort##type, name) == offsetof(Our##type, name), #type "." #name);
"""


@pytest.mark.network
@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_the_table_and_the_structures_are_those_of_a_real_header(tmp_path: Path) -> None:
    headers = unpacked("libonnxruntime-dev", with_dependencies=False, suite="sid") / "usr/include/onnxruntime"
    text = (SOURCES / "ep_table.h").read_text()
    members = [
        f"MEMBER({kind}, {name})"
        for kind, body in re.findall(r"struct Ort(Ep|EpFactory) \{(.*?)\n\};", text, re.DOTALL)
        for name in [*re.findall(r"\(\*(\w+)\)\(", body), *re.findall(r"\b([A-Z]\w+)(?=[,;])", body)]
    ]
    assert len(members) > 20
    (tmp_path / "check.c").write_text(CHECKED + "\n".join(members) + "\n")
    command = ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{SOURCES}", f"-I{headers}", str(tmp_path / "check.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
