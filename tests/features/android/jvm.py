"""A program that opens and runs a released model, compiled by the real compiler and run by the real JVM."""

import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from device_runner.errors import RunnerError
from device_runner.library import find_archive
from pipeline.features.android.package import SIGNATURES
from pipeline.release.manifest import read_manifest
from tests.command import ort_mobile
from tests.features.android.samples import JAVAC, needs_java

REFERENCE = """
import com.example.demo.Model;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

public class Reference {
    public static void main(String[] arguments) throws Exception {
        ByteBuffer mapped;
        try (FileChannel aar = FileChannel.open(Paths.get(arguments[0]))) {
            long start = Long.parseLong(arguments[1]);
            mapped = aar.map(FileChannel.MapMode.READ_ONLY, start, Long.parseLong(arguments[2]));
        }
        ByteBuffer input = ByteBuffer.wrap(Files.readAllBytes(Paths.get(arguments[3])));
        FloatBuffer pixels = input.order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer();
        Model[] models = {Model.open(mapped), Model.open(Paths.get(arguments[4]).toFile())};
        for (int i = 0; i < models.length; i++) {
            try (Model model = models[i]; Model.Result result = model.run(pixels)) {
                FloatBuffer values = result.@OUTPUT@();
                ByteBuffer bytes = ByteBuffer.allocate(4 * values.remaining()).order(ByteOrder.LITTLE_ENDIAN);
                bytes.asFloatBuffer().put(values);
                Files.write(Paths.get(arguments[5] + i), bytes.array());
                System.out.println(model.way());
            }
        }
        System.exit(0);
    }
}
"""


def fetched(name: str) -> Path:
    """The archive of a release with everything that it needs; a skip that says what is missing."""
    needs_java()
    try:
        return find_archive(name)
    except RunnerError as error:
        done = ort_mobile("library", "get", name, code=None)
        if done.code:
            pytest.skip(f"{error.what}: {done.err.strip()[-200:]}")
        return find_archive(name)


def released(bundle: Path, *more: str) -> Path:
    """The AAR of a bundle as com.example:demo, its classes beside it in classes.jar."""
    repository = bundle.parent / "repo"
    named = ("--output", str(repository), "--group", "com.example", "--artifact", "demo", "--version", "1.0")
    ort_mobile("release", "android", bundle, *named, *more)
    (aar,) = (repository / "com/example/demo").rglob("*.aar")
    with zipfile.ZipFile(aar) as archive:
        archive.extract("classes.jar", aar.parent)
    return aar


def place_of(aar: Path, asset: str) -> tuple[str, str]:
    """Where a stored asset begins in the AAR, and its size."""
    with zipfile.ZipFile(aar) as archive:
        content = archive.read(f"assets/ort_mobile/com.example/demo/{asset}")
    return str(aar.read_bytes().index(content)), str(len(content))


def run(
    source: str,
    arguments: Sequence[str],
    path: Sequence[Path],
    folder: Path,
    *,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """The lines that the public class in `source` prints, compiled and run with these archives."""
    name = source.split("public class ")[1].split()[0]
    (folder / f"{name}.java").write_text(source)
    classes = ":".join(map(str, (*path, folder)))
    compiler = [*JAVAC, "-cp", classes, "-sourcepath", str(SIGNATURES), "-implicit:none", "-d", str(folder)]
    made = subprocess.run([*compiler, str(folder / f"{name}.java")], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    ran = subprocess.run(
        ["java", *options, "-cp", classes, name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=dict(environment) if environment else None,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def check_reference(
    bundle: Path,
    library: Path | Callable[[], Path],
    *more: str,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Release a bundle with `more` options and run it, mapped and from a file; the session options in use.

    `library` has the classes of ONNX Runtime. Fails where an output for the input that the bundle keeps is further from
    the original model's than the bundle allows.
    """
    aar, folder = released(bundle, *more), bundle.parent
    manifest = read_manifest(bundle)
    reference = manifest.references[0]
    source = REFERENCE.replace("@OUTPUT@", reference.outputs[0].name)
    one = manifest.content.ships[0].file
    given, wanted = (bundle / reference.inputs[0].path, bundle / reference.outputs[0].path)
    arguments = (str(aar), *place_of(aar, Path(one).name), str(given), str(bundle / one), str(folder / "output"))
    path = (library() if callable(library) else library, aar.parent / "classes.jar")
    ways = run(source, arguments, path, folder, options=options, environment=environment)
    expected = np.fromfile(wanted, np.float32)
    for place in range(2):
        found = np.fromfile(folder / f"output{place}", np.float32)
        assert np.abs(found - expected).max() <= reference.tolerance.max_relative_error * np.abs(expected).max()
    return ways
