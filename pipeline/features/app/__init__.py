"""`ort-mobile app`: what is in an app or a library package, judged before it reaches a phone."""

RULE_NAMES = (
    "abi-gap", "app-store", "custom-operators", "damaged", "duplicate-class", "external-data", "java-classes", "model",
    "no-runtime", "null-api", "other-release", "other-system", "packed-library", "pages", "plugin", "processors",
    "provider-files", "qnn-context", "qnn-release", "same-path", "shrunk-classes", "telemetry", "trial-program",
    "two-runtimes", "zip-alignment",
)  # fmt: skip
"""What findings of a package are called."""
