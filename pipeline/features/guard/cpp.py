"""The guard's headers for C++: files without values of a bundle, beside the code that uses them."""

from importlib import resources


def headers() -> dict[str, str]:
    """File name to source of the headers; an app includes ort_mobile_guard.h."""
    folder = resources.files("pipeline.features.guard") / "headers"
    return {file.name: file.read_text("utf-8") for file in sorted(folder.iterdir(), key=lambda file: file.name)}
