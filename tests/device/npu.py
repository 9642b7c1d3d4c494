"""The QNN provider's plugin as what a phone is given: with every library that its parts for computers need."""

from pathlib import Path

from device_runner.spec import Plugin


def plugin_files(plugin: Plugin) -> list[str]:
    """The plugin's library, and the files beside it."""
    folder = Path(plugin.library).parent
    parts = (folder / "libHtpPrepare.so", folder / "libQnnSystem.so")
    return [plugin.library, *plugin.files, *map(str, (*parts, *folder.with_name("onnxruntime_qnn.libs").iterdir()))]
