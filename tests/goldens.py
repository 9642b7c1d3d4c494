"""What users get, recorded before the code is moved and compared after: `python -m tests.goldens record|compare FILE`.

A golden is a name with a value: digests of artifacts, of the example's bundle and of every answer of `partition --json`
over the real models of the ground truth, the content of results.json less what belongs to the moment and the machine,
exit codes with their messages, and the help of every command. `compare` prints what differs and exits with 1 then.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.ground_truth import ORACLE

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "build_configs" / "mnist.toml"
PROVIDERS = ("nnapi", "coreml-nn", "coreml-mlprogram", "xnnpack")
CONVERTED = (
    "mobilenet_v2.base",
    "distilbert.base",
    "face_embedding.fp16",
    "blazeface.qdq_u8u8",
    "lstm_classifier.dyn",
)
OF_THE_MOMENT = ("version", "campaign", "created_at", "host", "versions", "ended_at", "started_at")
"""Keys of results.json that no two jobs share, and its version, which may rise with new fields."""

MISTAKES = {
    "no command": ["nonsense"],
    "no config": ["run", "nope.toml"],
    "no model": ["convert", "nope.onnx", "--output", "out"],
    "no such level": ["convert", "digits.onnx", "--output", "out", "--level", "best"],
    "no such release": ["partition", "digits.onnx", "--ep", "nnapi", "--ort-release", "banana"],
    "no such dimension": ["convert", "digits.onnx", "--output", "out", "--dimension", "bacth=1"],
    "no bundle": ["verify", "nowhere"],
    "no such device": ["perf", "digits.onnx", "--device", "abd:1"],
    "no such library": ["library", "show", "nope.aar"],
    "no such session": ["report", "nowhere"],
}


def ort_mobile(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """One call of the command of this checkout."""
    start = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module('pipeline', run_name='__main__')"
    command = [sys.executable, "-P", "-c", start]
    return subprocess.run([*command, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def real_models(folder: Path) -> Path:
    """The real models of the ground truth, unpacked."""
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        archive.extractall(folder / "real", [name for name in archive.namelist() if name.endswith(".onnx")])
    return folder / "real"


def digest(value: Any) -> str:
    """sha256 of a JSON value, keys sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def bundle_of_the_example(folder: Path) -> Iterator[tuple[str, Any]]:
    """The whole job but for measuring, as the README runs it."""
    done = ort_mobile("run", str(EXAMPLE), "--convert-only", "--output", "example", cwd=folder)
    yield "example: exit code", done.returncode
    output = folder / "example"
    for path in sorted((output / "artifacts").glob("*.ort")):
        yield f"example: {path.name}", hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted((output / "bundle").rglob("*")):
        if path.is_file() and not path.name.startswith("manifest") and path.suffix != ".md":
            yield f"bundle: {path.relative_to(output)}", hashlib.sha256(path.read_bytes()).hexdigest()
    results = json.loads((output / "results.json").read_text())
    for key, value in results.items():
        if key not in OF_THE_MOMENT:
            yield f"results.json: {key}", json.loads(json.dumps(value).replace(str(ROOT), "ROOT"))


def artifacts_of_real_models(folder: Path) -> Iterator[tuple[str, Any]]:
    """Artifacts and operator configs of some real models, plain and NNAPI-aware."""
    models = [str(folder / "real" / f"{name}.onnx") for name in CONVERTED]
    for name, options in {
        "plain": [],
        "nnapi": ["--ep", "nnapi", "--ort-release", "1.23", "--reference", "none"],
    }.items():
        done = ort_mobile("convert", *models, "--output", name, *options, cwd=folder)
        yield f"convert {name}: exit code", done.returncode
        for path in sorted((folder / name).glob("*")):
            if path.is_file():
                yield f"convert {name}: {path.name}", hashlib.sha256(path.read_bytes()).hexdigest()


def partitions_of_real_models(folder: Path) -> Iterator[tuple[str, Any]]:
    """Claims, partitions, loading and reasons' codes of every real model and provider, at release 1.23."""
    for provider in PROVIDERS:
        done = ort_mobile("partition", "real", "--ep", provider, "--ort-release", "1.23", "--json", "-", cwd=folder)
        yield f"partition {provider}: exit code", done.returncode
        for model in json.loads(done.stdout)["models"]:
            claims = {key: model[key] for key in ("nodes", "claimed", "partitions", "subgraphs", "load", "error")}
            claims["codes"] = [(d["outputs"], d["claimed"], d.get("code", "")) for d in model["decisions"]]
            yield f"partition {provider}: {Path(model['path']).name}", digest(claims)


def answers_to_mistakes(folder: Path) -> Iterator[tuple[str, Any]]:
    """Exit codes and messages of wrong calls."""
    shutil.copy(ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx", folder / "digits.onnx")
    for name, arguments in MISTAKES.items():
        done = ort_mobile(*arguments, cwd=folder)
        yield f"mistake: {name}", [done.returncode, done.stdout, done.stderr.replace(str(folder), "HERE")]


def help_of_commands(folder: Path) -> Iterator[tuple[str, Any]]:
    """The help of every command, of those of groups too; what only looks like a command repeats its group's."""
    waiting: list[tuple[str, ...]] = [()]
    found: set[str] = set()
    while waiting:
        words = waiting.pop()
        shown = ort_mobile(*words, "--help", cwd=folder)
        if shown.returncode == 0 and shown.stdout not in found:
            found.add(shown.stdout)
            yield f"help: {' '.join(words)}", shown.stdout
            waiting += [(*words, name) for name in re.findall(r"^  ([a-z][\w-]*)  +[A-Z]", shown.stdout, re.MULTILINE)]


PARTS: tuple[Callable[[Path], Iterator[tuple[str, Any]]], ...] = (
    bundle_of_the_example, artifacts_of_real_models, partitions_of_real_models, answers_to_mistakes, help_of_commands,
)  # fmt: skip


def goldens() -> dict[str, Any]:
    """Every golden of this checkout by its name."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="goldens-") as name:
        real_models(Path(name))
        for part in PARTS:
            found.update(part(Path(name)))
            print(f"{part.__name__}: {len(found)} so far", file=sys.stderr)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What is not the same, a line each."""
    for name in dict.fromkeys([*before, *after]):
        if name not in after or name not in before:
            yield f"{'gone' if name not in after else 'new'}: {name}"
        elif before[name] != after[name]:
            yield f"differs: {name}\n    before {str(before[name])[:300]}\n    after  {str(after[name])[:300]}"


def main() -> int:
    """Record goldens into a file, or compare this checkout's with a file's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    found = goldens()
    if chosen.action == "record":
        chosen.file.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    before = json.loads(chosen.file.read_text())
    lines = list(differences(before, found))
    print("\n".join([*lines, f"{len(before)} goldens, {len(lines)} differ"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
