"""The files and folders of a job's output folder."""

RESULTS = "results.json"
PAGE = "report.html"
REPORT = "report.md"
TRACE = "trace.json.gz"
TUNING = "tune.json"
"""What a search came to."""
DATABASE = "results.sqlite"
REVISION = "v0001"
"""The newest migration of a database: what this release reads and writes."""
KEPT = "campaign.json"
"""The ids of the folder's own campaigns, and their database where that is another."""

ARTIFACTS = "artifacts"
REFERENCES = "reference"
"""Raw tensors of the original models, one folder for each model."""
PROFILES = "profiles"
"""Traces of profile runs."""
BUNDLE = "bundle"
"""What ships."""
CONFIG_FILE = "required_operators.config"
TYPED_CONFIG_FILE = "required_operators_and_types.config"

WRITTEN = (
    RESULTS, PAGE, REPORT, CONFIG_FILE, TYPED_CONFIG_FILE, ARTIFACTS, REFERENCES, PROFILES, BUNDLE, TUNING, TRACE, KEPT,
)  # fmt: skip
"""What a job writes there, over what has these names."""
