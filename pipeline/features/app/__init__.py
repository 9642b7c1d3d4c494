"""`ort-mobile app`: what is in an app or a library package, judged before it reaches a phone."""

RULE_NAMES = (
    "custom-operators", "damaged", "model", "no-runtime", "null-api", "other-release", "other-system",
    "packed-library", "pages", "plugin", "processors", "provider-files", "qnn-release", "same-path", "telemetry",
    "two-runtimes", "zip-alignment",
)  # fmt: skip
"""What findings of a package are called."""
