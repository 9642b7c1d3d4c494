"""Contexts for Snapdragon's NPU: what one is, and what the loader on a phone says to it, by the loader's own rule.

Sources: the provider's cache compatibility manager (onnxruntime-qnn 2.7), and contexts made with it (docs/npu.md).
"""

import importlib.util
import re
from enum import StrEnum
from pathlib import Path

import msgspec

from device_runner import providers as runner_providers
from device_runner import untrusted_files
from device_runner.probe import elf as elf_file
from pipeline.core import releases as ort_releases
from pipeline.core import variant as core_variant
from pipeline.core.errors import ModelError
from pipeline.core.variant import Variant

COMPATIBILITY_KEY = "ep_compatibility_info.QNNExecutionProvider"
"""The metadata of a context's ONNX file under which its provider says what it is for."""

HTP = 6
"""The backend of NPUs in QNN's numbers of backends."""


PLUGINS = {
    "2.48.0": ("2.4.0", "1.26"),
    "2.49.0": ("2.5.0", "1.26"),
    "2.50.0": ("2.6.0", "1.27"),
    "2.51.0": ("2.7.0", "1.27"),
}
"""By the release of QAIRT, its runtime: the plugin, and the first ONNX Runtime that will do.

As published by Qualcomm for Android; a plugin finds nothing in an older runtime than its own.
"""


NO_NPU = frozenset({"2.4.0"})
"""Plugins that find no NPU in an Android app: they look for it in /dev, which no app may list.

As the provider's developers say, who have since then asked Android for the chip's maker (2.5.0).
"""

FAILING_ARCHS = frozenset({68})
"""NPUs on which contexts that were compiled on a computer are reported to fail, while the phone's own run."""


PLUGIN_OPTIONS = {
    "2.7.0": b"htp_reused_io_limit_mb",
    "2.6.0": b"enable_htp_graph_splitting",
    "2.5.0": b"skip_backend_op_validation",
    "2.4.0": b"enable_framework_op_trace",
}
"""By the plugin's release, the newest first, an option that came with it: no text in the library says its release.

Found in the plugin of the wheels 2.3.0 to 2.7.0.
"""


def plugin_release(content: elf_file.Buffer) -> str:
    """The release of a plugin for QNN, by the options that it knows; "" for none, or one before 2.4.0."""
    return next((release for release, option in PLUGIN_OPTIONS.items() if content.find(option) >= 0), "")


WRITTEN = re.compile(r"v2:(\d{1,3}):(\d+\.\d+\.\d+):\d+\.\d+\.\d+:(\d+(?:,\d+)*):\d+(?:,\d+)*:\d{1,4}:\d+")
"""What a context was compiled for, as its provider writes it: v2:6:2.51.0:5.51.0:75:57:0:0.

Behind the format's version stand the backend, the release of QAIRT, that of the backend's API, the architectures of the
NPU, the chips, and megabytes of the NPU's own memory (0: the chip's default).
"""

BuiltFor = tuple[int, str, tuple[int, ...]]
"""The backend, the release of QAIRT, and the architectures of the NPU that a context was compiled for."""


def built_for(text: str, where: str = "") -> BuiltFor:
    """Read the text; ModelError for another."""
    match = WRITTEN.fullmatch(text[:500])
    if match is None:
        raise ModelError(
            "this is no context whose chip is known",
            where=where,
            why=f"its metadata say {text[:100]!r}" if text else f"its metadata have no {COMPATIBILITY_KEY}",
            remedy="make it again: `ort-mobile convert MODEL --context CHIP`",
        )
    backend, qairt, archs = match.groups()
    return int(backend), qairt, tuple(map(int, archs.split(",")))


class NpuContext(msgspec.Struct, frozen=True, kw_only=True):
    """A model compiled ahead for the NPU of one chip: a small ONNX file, and the binary beside it that it names.

    `compatibility` is what the provider wrote of it (see `WRITTEN`); `plugin` and `onnxruntime` are the releases that
    made it. `npu_nodes` are the model's nodes in the context, `partitions` its parts, and `cpu_nodes` what stayed in
    the ONNX file for the CPU. `seconds` of processor time and `memory_bytes` are what compiling took. `shared` names
    the contexts with which it has the binary in common: sizes of one model, whose weights are in it once.
    """

    model: str
    variant: Variant
    file: str
    size_bytes: int
    sha256: str
    binary: str
    binary_bytes: int
    binary_sha256: str
    compatibility: str
    plugin: str
    onnxruntime: str
    npu_nodes: int
    partitions: int
    cpu_nodes: int
    seconds: float
    memory_bytes: int
    shared: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """The passes that the model went through first, as the command line writes them."""

    @property
    def not_run(self) -> str:
        """Why it is made and not run here; "" where it can be."""
        return f"made, not run here: it shares its binary with {', '.join(self.shared)}" if self.shared else ""

    @property
    def chip(self) -> runner_providers.Chip:
        """The chip that it is for."""
        return runner_providers.CHIPS[self.variant.chip]

    @property
    def qairt(self) -> str:
        """The release of QAIRT that made it."""
        _, release, _ = built_for(self.compatibility)
        return release

    @property
    def source(self) -> str:
        """The name of the model in the context's precision: what its reference is called."""
        return core_variant.in_precision(self.model, self.variant.precision)

    @property
    def total_bytes(self) -> int:
        """Of both files."""
        return self.size_bytes + self.binary_bytes


class Loading(StrEnum):
    """What the loader says to a context."""

    OPTIMAL = "optimal"
    """It is for this very NPU."""
    SUPPORTED = "supported"
    """It is for an earlier NPU: it loads, and compiling again is preferred."""
    REFUSED = "refused"


def loader_answer(context: BuiltFor, chip: runner_providers.Chip, qairt: str = "") -> tuple[Loading, str, str]:
    """What the loader on phones with a chip says, in an app with a runtime of QAIRT ("" for the context's own).

    With the reason, and the remedy where it refuses.

    The backend's API counts up with QAIRT, so that the order of QAIRT's releases is that of the loader's rule.
    """
    backend, made_by, archs = context
    arch = max((arch for arch in archs if arch <= chip.htp_arch), default=min(archs))
    for refused, why, remedy in (
        (backend != HTP, f"it is for another backend ({backend})", "compile it for the NPU"),
        (
            bool(qairt) and ort_releases.numbers_of(qairt) < ort_releases.numbers_of(made_by),
            f"it was made by QAIRT {made_by}, and the runtime of the app is {qairt}, which is older",
            f"ship qnn-runtime {made_by}, or make it by the onnxruntime-qnn that belongs to {qairt}",
        ),
        (
            arch < runner_providers.NEW_LAYOUT <= chip.htp_arch,
            f"it is for V{arch}, and from V{runner_providers.NEW_LAYOUT} on no earlier context is taken",
            f"make one for {chip.name}",
        ),
        (arch > chip.htp_arch, f"it is for V{arch}, and {chip.name} has V{chip.htp_arch}", f"make one for {chip.name}"),
    ):
        if refused:
            return Loading.REFUSED, why, remedy
    if chip.htp_arch in archs:
        return Loading.OPTIMAL, f"it is for V{chip.htp_arch}", ""
    return Loading.SUPPORTED, f"it is for V{arch}, and {chip.name} has V{chip.htp_arch}", ""


def installed_qairt() -> str:
    """The QAIRT of the compiler and simulator that is installed here; "" for none, or one that does not tell."""
    package = importlib.util.find_spec("onnxruntime_qnn")
    if package is None or package.origin is None:
        return ""
    try:
        text = untrusted_files.read_regular(
            Path(package.origin).with_name("build_and_package_info.py"), 1 << 16
        ).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    match = re.search(r"^qnn_version = '([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else ""
