"""What a profile run says, beside what was predicted: plain data, a part of results.json."""

import msgspec

from device_runner.profile import Coverage
from device_runner.result import Profile
from pipeline.campaign.record import Prediction


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact or file with one set of run options, run once more with ONNX Runtime's profiler on.

    `name` is the file, or MODEL / VARIANT of a campaign. `file` is the trace for Perfetto, `failure` why there is
    none. `coverage` is the provider's own word on what it took; `finding` says where that is not what was predicted.
    `provider` is the one that was asked for.
    """

    name: str
    run: str
    device: str = ""
    file: str = ""
    profile: Profile | None = None
    coverage: Coverage | None = None
    prediction: Prediction | None = None
    finding: str = ""
    failure: str = ""
    model: str = ""
    variant: str = ""
    provider: str = "cpu"

    @property
    def brief(self) -> "Profiled":
        """Without what is known of each node: what reports are made from."""
        profile = self.profile and msgspec.structs.replace(self.profile, nodes=())
        return msgspec.structs.replace(self, profile=profile, prediction=self.prediction and self.prediction.brief)
