"""A planned run: a file with run options on a device, and what it is measured with."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from device_runner import options as runner_options
from device_runner import spec as run_spec
from device_runner.spec import RunOptions, TensorFile
from pipeline import config as configs
from pipeline.campaign.record import RecordedRun, RunKey, Skipped
from pipeline.campaign.run_options import options_name
from pipeline.core.variant import Artifact

ALL_FILES = "files"
"""What stands for the model where files are measured as they are: every file is compared with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a model is measured with, and the labelled set (samples stacked along a first axis) that it answers.

    With a `stream` the steady measurement is its steps, which begin with `tensors`.

    `outputs_limit_bytes` is what its outputs may have at most: the host knows how large the original's are.
    """

    tensors: tuple[TensorFile, ...] = ()
    labelled: TensorFile | None = None
    stream: run_spec.Stream | None = None
    dimensions: dict[str, int] = field(default_factory=dict)
    outputs_limit_bytes: int = run_spec.OUTPUTS_LIMIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What is measured over all rounds: a file with run options on a device.

    `variant` is its variant's name, `file` its path or that in the folder of artifacts. `source` names the model in its
    precision, whose inputs it is given. `session_options` are those that the file needs. `mapped` runs read the file
    where it lies in memory, as apps for Android do. `library` is libonnxruntime to run with in place of the device's,
    `inputs` what it is given in place of its source's.
    """

    device: str
    model: str
    variant: str
    source: str
    file: str
    sha256: str
    size_bytes: int
    options: RunOptions
    session_options: Mapping[str, str] = field(default_factory=dict)
    mapped: bool = False
    mode: configs.MeasureMode = configs.MeasureMode.STEADY
    library: str | None = None
    inputs: Inputs | None = None

    @property
    def run_options(self) -> RunOptions:
        """What is really run with: how the file is loaded, its own session options, and those asked for before them."""
        loading = runner_options.MAPPED if self.mapped else {}
        session_config = {**loading, **self.session_options, **self.options.session_config}
        return msgspec.structs.replace(self.options, session_config=session_config)

    @property
    def way(self) -> str:
        """`VARIANT/PROVIDER…`, as baselines in configs and tables name it."""
        return f"{self.variant}/{options_name(self.options)}"

    @property
    def key(self) -> RunKey:
        """What is run where, by names, as rows and failures have it."""
        return RunKey(device=self.device, model=self.model, variant=self.variant, run=options_name(self.options))

    @property
    def text(self) -> str:
        """Unique in a campaign: device, model, variant, options, and the mode where it is not the steady state."""
        mode = "" if self.mode is configs.MeasureMode.STEADY else f"@{self.mode}"
        return f"{self.device}/{self.model}/{self.way}{mode}"

    @property
    def id(self) -> str:
        """Its identity in specs and in the database: the text, or that's digest where it is long."""
        return self.text if len(self.text) <= 200 else hashlib.sha256(self.text.encode()).hexdigest()

    def recorded(self, *, baseline: bool, same_as: str) -> RecordedRun:
        """As it is stored with its campaign."""
        return RecordedRun(
            **self.key.parts,
            id=self.id,
            options=self.options,
            baseline=baseline,
            same_as=same_as,
            mode=self.mode,
            mapped=self.run_options.session_config.get(runner_options.BYTES_KEY) == "1",
        )

    def skipped(self, reason: str, remedy: str = "") -> Skipped:
        """That it is not possible there, why, and what to do."""
        return Skipped(**self.key.parts, what=reason, remedy=remedy)


def run_of(device: str, artifact: Artifact, options: RunOptions, *, mapped: bool = False) -> PlannedRun:
    """An artifact with run options on a device."""
    return PlannedRun(
        device=device,
        model=artifact.model,
        variant=artifact.variant.name,
        source=artifact.source,
        file=artifact.file,
        sha256=artifact.sha256,
        size_bytes=artifact.total_bytes,
        options=options,
        session_options=artifact.session_options,
        mapped=mapped,
    )
