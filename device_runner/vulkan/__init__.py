"""Vulkan drivers that compute on the CPU: with one of them WebGPU runs on a computer that has no GPU.

The driver is opened by a libvulkan of ours (vulkan.c), which is found before the system's. What comes of it are a GPU's
outputs; its times and its memory are nothing that a phone has.
"""

import os
import platform
from pathlib import Path
from typing import Final

from device_runner import build as runner_build
from device_runner.errors import UnavailableError

VARIABLE: Final = "ORT_MOBILE_VULKAN"
"""For users the driver to take, by name or path; for vulkan.c the path of its library."""

ADAPTER: Final = {"ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1"}
"""Without it the plugin offers no device where Linux lists no GPU (onnxruntime PR 32287)."""


SWIFTSHADER: Final = "libvk_swiftshader.so"
LAVAPIPE: Final = "libvulkan_lvp.so"
"""The libraries of the drivers. Lavapipe's shaders may use half precision, SwiftShader's not."""

DRIVERS: Final = {
    "swiftshader": (SWIFTSHADER, ("usr/lib/chromium", "usr/lib/chromium-browser", "opt/google/chrome")),
    "lavapipe": (LAVAPIPE, (f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib64", "usr/lib")),
}
"""A driver's library by its name, and the folders into which Debian's packages put it. Best first where none is named:
SwiftShader compiles shaders in a third of the time, and is never too old."""

REMEDY = (
    "`apt-get install chromium-common` brings SwiftShader, mesa-vulkan-drivers of Mesa 25 or newer lavapipe; "
    f"or name an unpacked one, as in vulkan=FILE behind the device's question mark or {VARIABLE}=FILE"
)


def find_driver(driver_name: str = "") -> Path:
    """A driver's library, by its name, file, or the folder that a package was unpacked into; "": the first there is.

    Without a name the variable's counts. Raises UnavailableError with the packages to install.
    """
    driver_name = driver_name or os.environ.get(VARIABLE, "")
    rows = [driver for name, driver in DRIVERS.items() if driver_name in ("", name)]
    places = [Path("/", folder, file) for file, folders in rows for folder in folders]
    if not rows:
        root = Path(driver_name)
        places = [Path(root, folder, file) for file, folders in DRIVERS.values() for folder in ("", *folders)]
        places += [root for file, _ in DRIVERS.values() if file == root.name]
    driver = next((path.absolute() for path in places if path.is_file()), None)
    if driver is None:
        what = "no Vulkan driver that computes on the CPU"
        why = "WebGPU needs a GPU, or such a driver in its place" + f"; {driver_name!r} is none" * bool(driver_name)
        raise UnavailableError(what, where=f"{platform.system()} {platform.machine()}", why=why, remedy=REMEDY)
    return driver


NAMES: Final = ("libvulkan.so.1", "libvulkan.so")
"""As programs for Linux and for Android open it."""


def vulkan_environment(driver: Path, libraries: str = "") -> dict[str, str]:
    """Variables with which a process finds no Vulkan but the driver's; `libraries` is its LD_LIBRARY_PATH so far.

    A driver that was unpacked finds what it needs beside it. Our libvulkan is built unless it is in the cache. Raises
    UnavailableError without a compiler.
    """
    compiler, identity = runner_build.host_compiler(" for the libvulkan that WebGPU runs with here")
    folder = Path(__file__).parent
    start = (
        *compiler,
        *runner_build.STANDARD,
        "-O2",
        "-s",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        str(folder / "vulkan.c"),
    )
    ours = runner_build.built(
        runner_build.BuildRecipe(
            what="the libvulkan of software drivers",
            place="vulkan",
            parts=NAMES,
            compiler=identity,
            steps=tuple((*start, "-o", f"{{out}}/{name}", f"-Wl,-soname,{name}", "-ldl") for name in NAMES),
            sources=folder,
            inputs=(folder / "vulkan.c",),
        )
    )
    _, folders = next(known for known in DRIVERS.values() if known[0] == driver.name)
    own_folder = () if driver.parent in (Path("/", folder) for folder in folders) else (str(driver.parent),)
    paths = filter(None, (libraries, str(ours), *own_folder))
    return {VARIABLE: str(driver), "LD_LIBRARY_PATH": ":".join(paths), **ADAPTER}
