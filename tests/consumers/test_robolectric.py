"""Android's own AssetManager opens the model out of an app: mapped where it is stored, else from one copy."""

import zipfile
from pathlib import Path

import pytest

from tests.consumers.android import FRAMEWORK, check_logits, guide_code, libraries, model_file, reference, unpacked_aar
from tests.consumers.jars import classpath, jars, needs, run
from tests.consumers.test_packages import APP, linked

pytestmark = pytest.mark.consumer

ROBOLECTRIC = ("org.robolectric:robolectric:4.16", "junit:junit:4.13.2")
GRAPHICS = "org.robolectric:nativeruntime-dist-compat"
"""Libraries for drawing and SQLite, 159 MB: no asset needs them."""

GUIDE = """\
import android.content.Context;
import com.example.mnist_models.Mnist;
import java.nio.FloatBuffer;

class Guide {{
    static void example(Context context, FloatBuffer pixels) throws Exception {{
        {code}
    }}
}}
"""
SETTINGS = """\
android_resource_apk={apk}
android_merged_manifest={manifest}
android_merged_assets={folder}/none
android_custom_package=com.example.app
"""


def robolectric(folder: Path) -> list[Path]:
    """Its JARs; those within AARs are unpacked."""
    found = []
    for file in jars(*ROBOLECTRIC, without=GRAPHICS):
        if file.suffix == ".aar":
            with zipfile.ZipFile(file) as archive:
                place = folder / f"{file.stem}.jar"
                place.write_bytes(archive.read("classes.jar"))
                found.append(place)
        else:
            found.append(file)
    return found


def on_android(folder: Path, path: str, apk: Path, program: str, **given: object) -> list[str]:
    """What a program says in an app with these assets; `given` are its properties."""
    settings = folder / apk.stem / "com/android/tools/test_config.properties"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS.format(apk=apk, manifest=folder / f"{apk.name}.xml", folder=folder))
    (framework,) = jars(FRAMEWORK, alone=True)
    frameworks = folder / apk.stem / "frameworks"  # Robolectric does not open one in a folder with blanks
    frameworks.mkdir()
    (frameworks / framework.name).symlink_to(framework.resolve())
    properties = {
        "robolectric.offline": "true",
        "robolectric.dependency.dir": frameworks,
        "said": folder / f"{apk.stem}.said",
        **given,
    }
    words = [f"-D{name}={value}" for name, value in properties.items()]
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("io", "lang")]
    tests = ("-cp", classpath(folder / apk.stem, Path(path)), "org.junit.runner.JUnitCore", program)
    run("java", *opened, *words, *tests, folder=folder)
    return (folder / f"{apk.stem}.said").read_text().splitlines()


def test_the_model_is_mapped_where_the_app_stores_it_and_copied_once_where_not(tmp_path: Path) -> None:
    needs("javac")
    path = classpath(tmp_path / "out", robolectric(tmp_path), unpacked_aar() / "classes.jar", libraries())
    program = Path(__file__).with_name("OnAndroid.java")
    (tmp_path / "Guide.java").write_text(GUIDE.format(code=guide_code("java")))
    run("javac", "-nowarn", "-cp", path, "-d", tmp_path / "out", program, tmp_path / "Guide.java", folder=tmp_path)
    assets = ("-A", unpacked_aar() / "assets")
    stored, packed = (
        on_android(tmp_path, path, linked(tmp_path, APP, name, *assets, *words), "OnAndroid", image=reference().image)
        for name, words in (("stored.apk", ("-0", "ort")), ("packed.apk", ()))
    )
    assert (stored[0], packed[0]) == (f"stored {model_file().stat().st_size}", "compressed")
    for lines in (stored, packed):
        check_logits("\n".join(lines[1:3]))
        check_logits("\n".join(lines[4:6]))
    assert (stored[3], stored[6]) == ("", "")
    assert packed[3].endswith(".ort")
    assert packed[6] == packed[3]
