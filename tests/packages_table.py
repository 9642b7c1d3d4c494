"""Real apps' packages of npm and PyPI, as `ort-mobile app` reads them and as other tools do.

As a program: `python -m tests.packages_table [PART...]` fetches the packages whose names have one of the parts,
compares every native library with what readelf, llvm-objdump, strings and zipinfo say of it, and prints docs/app.md's
table; exit code 1 where something differs. Needs npm, pip, binutils, llvm and zipinfo.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.command import ort_mobile
from tests.npm_packages import fetched
from tests.python_packages import download

PACKAGES = (
    ("npm com.github.asus4.onnxruntime@0.4.9", "Plugins/Android/onnxruntime.aar"),
    ("npm com.github.asus4.onnxruntime@0.4.9", "Plugins/iOS~/onnxruntime.xcframework"),
    ("npm com.github.asus4.onnxruntime-genai@0.4.9", "Plugins/Android/onnxruntime-genai.aar"),
    ("npm com.github.asus4.onnxruntime-genai@0.4.9", "Plugins/iOS~/onnxruntime-genai.xcframework"),
    ("npm com.github.asus4.onnxruntime-extensions@0.4.9", "Plugins/Android/onnxruntime-extensions.aar"),
    ("npm com.github.asus4.onnxruntime-extensions@0.4.9", "Plugins/iOS~/onnxruntime_extensions.xcframework"),
    ("npm react-native-sherpa-onnx-offline-tts@0.2.6", "android/libs/sherpa-onnx-1.10.35.aar"),
    ("pip onnxruntime==1.24.4 manylinux_2_28_aarch64", ""),
    ("pip onnxruntime-genai==0.18.0 manylinux_2_28_aarch64", ""),
    ("pip onnxruntime-ep-webgpu==0.4.0 manylinux_2_28_x86_64", ""),
    ("pip sherpa-onnx-core==2.0.1 manylinux2014_aarch64", ""),
    ("pip onnxruntime-extensions==0.15.2 macosx_11_0_universal2", ""),
)
"""Where a package is served, and what of it is an app's; "" for all."""
MACHINES = {
    "AArch64": "arm64-v8a",
    "ARM": "armeabi-v7a",
    "Advanced Micro Devices X86-64": "x86_64",
    "Intel 80386": "x86",
}
SYSTEMS = {"iossimulator": "ios simulator", "macCatalyst": "ios maccatalyst"}
PAGE_BYTES = 16384
TELEMETRY = "events.data.microsoft.com"


def output_of(*command: object) -> str:
    """What a tool prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace", check=True)
    return done.stdout


def fetch(source: str, folder: Path) -> Path:
    """The package: a wheel, or the folder of an npm package."""
    registry, name, *platform = source.split()
    if registry == "pip":
        return download(name, folder, platform=platform[0])
    with tarfile.open(fetched(name)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def elf_facts(file: Path) -> dict[str, Any]:
    """What readelf and strings say of an ELF file, in our words."""
    header, segments, dynamic, symbols = (output_of("readelf", f"-{kind}W", file) for kind in ("h", "l", "d", "s"))
    machine = re.search(r"Machine:\s+(.*)", header)
    loads = [int(match[1], 16) for match in re.finditer(r"^\s+LOAD .* (0x[0-9a-f]+)$", segments, re.MULTILINE)]
    soname = re.search(r"SONAME.*\[(.*)\]", dynamic)
    rows = [line.split() for line in symbols.partition(".symtab")[0].splitlines()]
    api = [row for row in rows if len(row) > 7 and row[7].partition("@")[0] == "OrtGetApiBase"]
    release = re.search(r"@@VERS_(\d+\.\d+\.\d+)", " ".join(row[7] for row in api))
    needed = re.findall(r"@VERS_(\d+\.\d+\.\d+)", " ".join(row[7] for row in rows if len(row) > 7 and row[6] == "UND"))
    return {
        "abi": MACHINES.get(machine[1] if machine else "", "?"),
        "page_bytes": min(loads),
        "soname": soname[1] if soname else "",
        "needed": re.findall(r"NEEDED.*\[(.*)\]", dynamic),
        "exports": any(row[6] != "UND" for row in api),
        **({"release": release[1]} if release else {}),
        "asks": needed[0] if needed else "",
        "telemetry": TELEMETRY in output_of("strings", "-n", "10", file),
    }


def comparisons(path: Path, document: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """How a package's document differs from what other tools say ("" for not), and how many things were compared."""
    ours = {(row["path"], row["abi"]): row for row in document["libraries"]}
    with tempfile.TemporaryDirectory() as scratch:
        folder, places = path, {}
        if path.is_file():
            folder, places = Path(scratch), places_of(path)
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.is_symlink()]
        elves = {file.relative_to(folder).as_posix(): file for file in files if file.read_bytes()[:4] == b"\x7fELF"}
        kinds = {file: output_of("file", "-b", file) for file in files}
        apple = {file.relative_to(folder).as_posix(): file for file in files if "Mach-O" in kinds[file]}
        paths = {name for name, _ in ours}
        unlike = sorted(paths ^ (elves.keys() | apple.keys()))
        yield f"libraries: {unlike}" if unlike else "", 1
        for name, file in elves.items():
            facts = elf_facts(file)
            row = ours.get((name, facts["abi"]), {})
            expected = facts | {"size_bytes": file.stat().st_size} | places.get(name, {})
            for key, value in expected.items():
                yield "" if row.get(key) == value else f"{name}: {key} is {value}, not {row.get(key)}", 1
            wide = facts["abi"] in ("arm64-v8a", "x86_64") and row.get("system") == "android"
            refused = any(found["rule"] == "pages" and found["where"] == name for found in document["findings"])
            yield "" if refused is (wide and facts["page_bytes"] < PAGE_BYTES) else f"{name}: pages", 1
        for name, file in apple.items():
            images = {(row["abi"], row["system"]) for row in document["libraries"] if row["path"] == name}
            yield "" if images == apple_images(file) else f"{name}: {apple_images(file)}, not {images}", len(images) * 2


def apple_images(file: Path) -> set[tuple[str, str]]:
    """Architecture and system of each image of a Mach-O file or archive."""
    images, architecture = set(), output_of("file", "-b", file).rpartition("[")[2].split(":")[0]
    for line in output_of("llvm-objdump", "--macho", "--private-headers", "--arch=all", file).splitlines():
        if match := re.search(r"\(architecture (\w+)\)", line):
            architecture = match[1]
        elif match := re.match(r"\s+platform (\w+)", line):
            images.add((architecture, SYSTEMS.get(match[1], match[1])))
    return images


def places_of(path: Path) -> dict[str, dict[str, Any]]:
    """Sizes of an archive's members by zipinfo, and that packed ones have no place."""
    places = {}
    entries = re.split(r"^Central directory entry #\d+:\n-+\n", output_of("zipinfo", "-v", path), flags=re.MULTILINE)
    for text in entries[1:]:
        size, packed = (int(re.search(rf"{kind} size:\s+(\d+)", text)[1]) for kind in ("uncompressed", " compressed"))  # type: ignore[index]
        stored = "none (stored)" in text
        places[text.strip().splitlines()[0].strip()] = {
            "size_bytes": size, "packed_bytes": packed, **({} if stored else {"offset": -1}),
        }  # fmt: skip
    return places


def main() -> None:
    """Print the table."""
    wrong = 0
    print("| package | what of it | libraries | compared | different |\n|---|---|---|---|---|")
    for source, member in PACKAGES:
        if sys.argv[1:] and not any(part in source + member for part in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            path = fetch(source, Path(scratch)) / member
            document = ort_mobile("app", path, "--json", "-").document()
            rows = list(comparisons(path, document))
        different = [text for text, _ in rows if text]
        wrong += len(different)
        counts = len(document["libraries"]), sum(count for _, count in rows), len(different)
        print(f"| {source} | {member or 'all'} | {' | '.join(map(str, counts))} |", flush=True)
        for text in different:
            print(f"  different: {text}", file=sys.stderr)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
