"""Executes RunSpecs on devices and gives RunResults. Usable alone: it knows nothing of the pipeline.

Importing it switches the telemetry of ONNX Runtime off, in this process and in all that it starts (docs/privacy.md).
"""

import os
from typing import Final

TELEMETRY_VARIABLE: Final = "ORT_DISABLE_TELEMETRY"
"""Switches telemetry off in every release that has it, when it is 1 before the library is loaded."""

NO_TELEMETRY: Final = f"{TELEMETRY_VARIABLE}=1"
"""The same as a shell assigns it."""

os.environ[TELEMETRY_VARIABLE] = "1"
