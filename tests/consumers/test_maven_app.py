"""From a bundle to a program of the JVM that runs its model: `ort-mobile release android`, then `mvn`."""

import shutil
from pathlib import Path

import pytest

from device_runner.files import cache_folder
from tests.consumers.android import check_logits, reference
from tests.consumers.jars import needs, run
from tests.consumers.releases import repository

pytestmark = pytest.mark.consumer


def test_maven_builds_a_program_that_computes_what_the_bundle_recorded(tmp_path: Path) -> None:
    needs("mvn", "javac")
    local = cache_folder() / "jars" / "maven"
    shutil.rmtree(local / "com/example", ignore_errors=True)  # what Maven has once, it takes again
    shutil.copytree(Path(__file__).with_name("maven_app"), tmp_path / "app")
    given = (f"-Dmodels={repository().as_uri()}", f"-Dimage={reference().image}", f"-Dmaven.repo.local={local}")
    run("mvn", "-B", "-q", "process-classes", *given, folder=tmp_path / "app")
    check_logits((tmp_path / "app/target/output").read_text())
