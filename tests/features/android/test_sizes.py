"""The class that picks the smallest size of a model: compiled in every type, and run by a real JVM."""

import zipfile
from pathlib import Path

import pytest

from device_runner.spec import ElementType
from pipeline.release.manifest import ModelSignature
from tests.command import ort_mobile
from tests.features.android.jvm import fetched, released, run
from tests.features.android.samples import bundle, needs_java, shipped, signature, tensor
from tests.features.android.test_facade import compiled, sources
from tests.features.android.test_npu import phone_classes
from tests.features.sizes import PICKED, expected, two_sizes

MAIN = """
import android.content.ContentResolver;
import android.content.Context;
import android.content.pm.ApplicationInfo;
import android.content.res.AssetManager;
import com.example.demo.M;
import com.example.demo.MSizes;
import java.io.File;
import java.nio.FloatBuffer;
import java.util.Locale;

public class Sizes {
    public static void main(String[] arguments) throws Exception {
        Context app = new Context() {
            @Override public Context getApplicationContext() { return this; }
            @Override public Object getSystemService(String name) { return null; }
            @Override public ContentResolver getContentResolver() { return null; }
            @Override public ApplicationInfo getApplicationInfo() { return new ApplicationInfo(); }
            @Override public AssetManager getAssets() { return new AssetManager(); }
            @Override public File getNoBackupFilesDir() { return new File(arguments[0]); }
        };
        MSizes model = new MSizes(app);
        for (int i = 1; i < arguments.length; i += 2) {
            int height = Integer.parseInt(arguments[i]), width = Integer.parseInt(arguments[i + 1]);
            long[] shape = {1, height, width};
            FloatBuffer x = FloatBuffer.allocate(1 + height * width);  // which begins in front of its position
            for (int element = 0; element < height * width; element++) x.put(1 + element, element);
            x.position(1);
            StringBuilder line = new StringBuilder(MSizes.sizeFor(shape));
            try (M.Result result = model.run(x, shape)) {
                long[] size = result.yShape();
                line.append(" ").append(size[0]).append("x").append(size[1]).append("x").append(size[2]);
                for (FloatBuffer y = result.y(); y.hasRemaining(); ) {
                    line.append(String.format(Locale.ROOT, " %.1f", y.get()));
                }
            }
            System.out.println(line);
        }
        try {
            model.run(FloatBuffer.allocate(5), new long[] {1, 2, 2});
        } catch (IllegalArgumentException error) {
            System.out.println(error.getMessage());
        }
        model.close();
        try {
            model.run(FloatBuffer.allocate(4), new long[] {1, 2, 2});
        } catch (IllegalStateException error) {
            System.out.println(error.getMessage());
        }
        System.exit(0);
    }
}
"""


@pytest.mark.network
@pytest.mark.long
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_an_input_goes_to_the_smallest_size_that_it_fits_into(shared: bool, tmp_path: Path) -> None:
    library = fetched("jvm:1.28.0")
    aar = released(two_sizes(tmp_path, shared=shared), "--no-guard")
    with zipfile.ZipFile(aar) as archive:
        archive.extractall(tmp_path / "aar")
    shapes = [str(axis) for shape in PICKED for axis in shape[1:]]
    path = (library, phone_classes(tmp_path), aar.parent / "classes.jar")
    options = ("-Dchip=SM8550", f"-Dassets={tmp_path / 'aar/assets'}")
    earlier = tmp_path / "private" / "com.example.demo.M" / "m-0123456789ab.weights"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    lines = run(MAIN, (str(tmp_path / "private"), *shapes), path, tmp_path, options=options)
    copies = [file.suffix for file in sorted((tmp_path / "private").rglob("*.*")) if file.is_file()]
    assert sorted(copies) == ([".onnx", ".onnx", ".onnx", ".weights"] if shared else [".ort"] * 3)
    assert lines == [*map(expected, PICKED), "5 elements do not fill [1, 2, 2]", "closed"]


def test_the_class_that_picks_a_size_is_listed(tmp_path: Path) -> None:
    needs_java()
    models = (signature("m", inputs=(tensor("x", 1, "n"),)), signature("m-8", inputs=(tensor("x", 1, 8),), size_of="m"))
    bundle(tmp_path, (shipped(), shipped("m-8")), models)
    named = ("--group", "com.example", "--artifact", "demo", "--version", "1.0")
    done = ort_mobile("release", "android", tmp_path / "bundle", "--output", tmp_path / "repo", *named)
    assert "classes  com.example.demo.M, com.example.demo.M8, com.example.demo.MSizes\n" in done.text


def test_every_type_is_filled_up_without_a_warning(tmp_path: Path) -> None:
    needs_java()
    kinds = [kind for kind in ElementType if kind not in ("string", "uint16", "uint32", "uint64")]
    padding = {f"{kind}-in": 1 if kind == "bool" else -1.5 if "float" in kind else 7 for kind in kinds}

    def sized(name: str, size: int | str, of: str = "") -> ModelSignature:
        inputs = tuple(tensor(f"{kind}-in", 2, size, dtype=kind) for kind in kinds)
        inputs += (tensor("size", size), tensor("fixed", 3))  # one that is not filled up, one that is always as large
        return signature(name, inputs=inputs, padding=padding, size_of=of)

    found = sources(sized("a", "n"), sized("a-9", 9, "a"), sized("a-2", 2, "a"))
    assert compiled(found, tmp_path) == ""
    assert 'SIZES = {"a-2", "a-9", "a"}' in found["ASizes.java"]
    assert "(short) 48640L" in found["ASizes.java"]  # -1.5 as a float16's bits
