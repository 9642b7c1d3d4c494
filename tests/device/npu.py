"""The QNN provider's plugin as what a phone is given: with every library that its parts for computers need."""

from pathlib import Path

from device_runner.spec import Plugin


def plugin_files(plugin: Plugin, *, compiles: bool = False) -> list[str]:
    """The plugin's library, and the files beside it; 100 MB more where a phone compiles models itself."""
    folder = Path(plugin.library).parent
    parts = [folder / "libQnnSystem.so", *([folder / "libHtpPrepare.so"] if compiles else [])]
    return [plugin.library, *plugin.files, *map(str, (*parts, *folder.with_name("onnxruntime_qnn.libs").iterdir()))]
