"""Vulkan drivers that compute on the CPU: with one of them WebGPU runs on a computer that has no GPU.

The driver is opened by a libvulkan of ours (vulkan.c), which is found before the system's. What comes of it are a GPU's
outputs; its times and its memory are nothing that a phone has.
"""

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from device_runner.build import STANDARD, BuildRecipe, built, host_compiler
from device_runner.errors import UnavailableError

VARIABLE: Final = "ORT_MOBILE_VULKAN"
"""For users the driver to take, by name or path; for vulkan.c the path of its library."""

ADAPTER: Final = {"ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1"}
"""Without it the plugin offers no device where Linux lists no GPU (onnxruntime PR 32287)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VulkanDriver:
    """A driver that computes on the CPU: `file` is its library, which Debian's package puts into one of `folders`.

    `float16`: shaders may use half precision. `library` is where it was found.
    """

    name: str
    file: str
    folders: tuple[str, ...]
    float16: bool
    library: str = ""


DRIVERS: Final = (
    VulkanDriver(
        name="swiftshader", file="libvk_swiftshader.so", float16=False,
        folders=("usr/lib/chromium", "usr/lib/chromium-browser", "opt/google/chrome"),
    ),
    VulkanDriver(
        name="lavapipe", file="libvulkan_lvp.so", float16=True,
        folders=(f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib64", "usr/lib"),
    ),
)  # fmt: skip
"""Best first where none is named: SwiftShader compiles shaders in a third of the time, and is never too old."""

REMEDY = (
    "`apt-get install chromium-common` brings SwiftShader, mesa-vulkan-drivers of Mesa 25 or newer lavapipe; "
    f"or name an unpacked one, as in vulkan=FILE behind the device's question mark or {VARIABLE}=FILE"
)


def find_driver(driver_name: str = "") -> VulkanDriver:
    """The driver by name, by its library or by the folder that a package was unpacked into; "": the first there is.

    Without a name the variable's counts. Raises UnavailableError with the packages to install.
    """
    driver_name = driver_name or os.environ.get(VARIABLE, "")
    rows = [row for row in DRIVERS if driver_name in ("", row.name)]
    places = [(row, Path("/", folder, row.file)) for row in rows for folder in row.folders]
    if not rows:
        root = Path(driver_name)
        places = [(row, Path(root, folder, row.file)) for row in DRIVERS for folder in ("", *row.folders)]
        places += [(row, root) for row in DRIVERS if row.file == root.name]
    driver = next((replace(row, library=str(path.absolute())) for row, path in places if path.is_file()), None)
    if driver is None:
        what = "no Vulkan driver that computes on the CPU"
        why = "WebGPU needs a GPU, or such a driver in its place" + f"; {driver_name!r} is none" * bool(driver_name)
        raise UnavailableError(what, where=f"{platform.system()} {platform.machine()}", why=why, remedy=REMEDY)
    return driver


NAMES: Final = ("libvulkan.so.1", "libvulkan.so")
"""As programs for Linux and for Android open it."""


def vulkan_environment(driver: VulkanDriver, libraries: str = "") -> dict[str, str]:
    """Variables with which a process finds no Vulkan but the driver's; `libraries` is its LD_LIBRARY_PATH so far.

    A driver that was unpacked finds what it needs beside it. Our libvulkan is built unless it is in the cache. Raises
    UnavailableError without a compiler.
    """
    compiler, identity = host_compiler(" for the libvulkan that WebGPU runs with here")
    folder = Path(__file__).parent
    start = (*compiler, *STANDARD, "-O2", "-s", "-fPIC", "-shared", "-fvisibility=hidden", str(folder / "vulkan.c"))
    ours = built(
        BuildRecipe(
            what="the libvulkan of software drivers",
            place="vulkan",
            parts=NAMES,
            compiler=identity,
            steps=tuple((*start, "-o", f"{{out}}/{name}", f"-Wl,-soname,{name}", "-ldl") for name in NAMES),
            sources=folder,
            inputs=(folder / "vulkan.c",),
        )
    )
    place = Path(driver.library).parent
    own_folder = () if place in (Path("/", folder) for folder in driver.folders) else (str(place),)
    paths = filter(None, (libraries, str(ours), *own_folder))
    return {VARIABLE: driver.library, "LD_LIBRARY_PATH": ":".join(paths), **ADAPTER}
