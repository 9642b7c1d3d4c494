"""The published classes in a real JVM with the real ONNX Runtime, and the repository in the real Maven."""

import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli
from pipeline.release.android.package import SIGNATURES
from tests.release.android.samples import bundle, needs_java
from tests.release.test_app_code import jar

pytestmark = pytest.mark.network

MAIN = """
import com.example.demo_app_models.M;
import java.io.File;
import java.io.FileInputStream;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.channels.FileChannel;

public class Main {
    static void show(M model) throws Exception {
        for (int i = 0; i < 20; i++) {
            System.gc();  // what the session reads must not go
            byte[] fill = new byte[1 << 20];
        }
        float[] x = new float[64];
        for (int i = 0; i < x.length; i++) x[i] = i / 10f - 3;
        System.out.println(model.way());
        try (M.Result result = model.run(FloatBuffer.wrap(x))) {
            StringBuilder line = new StringBuilder();
            for (long size : result.yShape()) line.append(size).append(' ');
            System.out.println(line);
            line.setLength(0);
            FloatBuffer y = result.y();
            while (y.hasRemaining()) line.append(y.get()).append(' ');
            System.out.println(line);
        }
        model.close();
    }

    static M mapped(String aar, long offset, long size) throws Exception {
        try (FileChannel channel = new FileInputStream(aar).getChannel()) {
            return M.open(channel.map(FileChannel.MapMode.READ_ONLY, offset, size));
        }
    }

    public static void main(String[] arguments) throws Exception {
        show(mapped(arguments[0], Long.parseLong(arguments[1]), Long.parseLong(arguments[2])));
        show(M.open(new File(arguments[3])));
        try {
            M.open(ByteBuffer.allocateDirect(64));
        } catch (ai.onnxruntime.OrtException error) {
            System.out.println("refused, earlier " + error.getSuppressed().length);
        }
        System.exit(0);
    }
}
"""

CONSUMER = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>app</groupId><artifactId>app</artifactId><version>1</version>
  <repositories><repository><id>models</id><url>{url}</url>
    <releases><checksumPolicy>fail</checksumPolicy></releases></repository></repositories>
  <dependencies><dependency>
    <groupId>com.example</groupId><artifactId>demo-app-models</artifactId><version>1.0</version><type>aar</type>
    <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
  </dependency></dependencies>
</project>
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    needs_java()
    bundle(tmp_path)
    named = ("--output", str(tmp_path / "repo"), "--group", "com.example", "--version", "1.0")
    assert CliRunner().invoke(cli, ["release", "android", str(tmp_path / "bundle"), *named]).exit_code == 0
    return tmp_path / "repo"


def test_the_model_runs_mapped_out_of_the_package_and_from_a_file(repository: Path, tmp_path: Path) -> None:
    library = jar()
    aar = next(repository.rglob("*.aar"))
    with zipfile.ZipFile(aar) as archive:
        archive.extract("classes.jar", tmp_path)
        model = archive.getinfo("assets/ort_mobile/m.basic-fixed.ort")
        content = archive.read(model)
    offset = aar.read_bytes().index(content)
    (tmp_path / "Main.java").write_text(MAIN)
    path = f"{library}:{tmp_path / 'classes.jar'}:{tmp_path}"
    compiled = subprocess.run(
        [
            "javac",
            "-cp",
            path,
            "-sourcepath",
            str(SIGNATURES),
            "-implicit:none",
            "-d",
            str(tmp_path),
            str(tmp_path / "Main.java"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    places = (str(aar), str(offset), str(len(content)), str(tmp_path / "m.ort"))
    ran = subprocess.run(["java", "-cp", path, "Main", *places], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    x = (np.arange(64, dtype=np.float32) / np.float32(10) - np.float32(3)).reshape(1, 1, 8, 8)
    (expected,) = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    lines = ran.stdout.splitlines()
    for way, shape, values in (lines[:3], lines[3:6]):
        assert way == "cpu"  # the JAR has no NNAPI: the first way fails, the second is taken
        assert shape.split() == ["1", "2", "8", "8"]
        np.testing.assert_allclose(np.array(values.split(), np.float32), expected.ravel(), rtol=1e-5, atol=1e-6)
    assert lines[6] == "refused, earlier 1"


def test_maven_takes_the_package_with_checksums_enforced(repository: Path, tmp_path: Path) -> None:
    if not shutil.which("mvn"):
        pytest.skip("no mvn: install Maven")
    (tmp_path / "pom.xml").write_text(CONSUMER.format(url=repository.as_uri()))
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    command = [
        "mvn",
        "-B",
        "-q",
        goal,
        f"-DoutputDirectory={tmp_path / 'found'}",
        f"-Dmaven.repo.local={tmp_path / 'm2'}",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert [file.name for file in (tmp_path / "found").iterdir()] == ["demo-app-models-1.0.aar"]
    assert (tmp_path / "found/demo-app-models-1.0.aar").read_bytes() == next(repository.rglob("*.aar")).read_bytes()
