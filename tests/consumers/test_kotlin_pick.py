"""The Kotlin of a bundle's README picks what the product picks, whatever letters follow the name of a chip."""

import json
from pathlib import Path

import pytest

from pipeline.release.selection import PICKING
from tests.consumers.jars import classpath, jars, run
from tests.consumers.test_kotlin import COMPILER

pytestmark = pytest.mark.consumer

JSON = "org.json:json:20240303"

BUILD = """
package android.os;

public class Build {
    public static String SOC_MODEL = System.getProperty("soc");
    public static String SOC_MANUFACTURER = "Qualcomm", MODEL = "Phone", BOARD = "board", HARDWARE = "qcom";
    public static String[] SUPPORTED_ABIS = {"arm64-v8a"};

    public static class VERSION {
        public static int SDK_INT = Integer.getInteger("level");
    }
}
"""
MAIN = """
public fun main(arguments: Array<String>) {
    val manifest = JSONObject(java.io.File(arguments[0]).readText())
    println(pick(manifest, "phone", "m").getString("file"))
}
"""
ROWS = [
    {"soc": "Qualcomm SM8750", "abi": "arm64-v8a", "min_api_level": 31, "ships": 1},
    {"soc": "SM8550", "abi": "", "min_api_level": 0, "ships": 2},
    {"soc": "phone board", "abi": "", "min_api_level": 0, "ships": 3},
    {"soc": "board", "abi": "", "min_api_level": 0, "ships": 4},
    {"soc": "", "abi": "", "min_api_level": 0, "ships": 0},
]
PICKED = {
    ("SM8750", 34): "8750", ("SM8750P", 34): "8750", ("SM8750-AC", 34): "8750", ("SM8550-AC", 33): "8550",
    ("SM8750P", 30): "board", ("SM87500", 34): "all", ("SM875", 34): "all", ("XSM8750P", 34): "all",
    ("s5e9945", 34): "all", ("unknown", 34): "board",
}  # fmt: skip
"""Build.SOC_MODEL and the API level to the file that is opened."""


def test_the_kotlin_of_a_bundle_picks_by_the_chip_without_letters(tmp_path: Path) -> None:
    compiler, json_library = jars(COMPILER), jars(JSON, alone=True)
    (tmp_path / "Build.java").write_text(BUILD)
    run("javac", "-d", tmp_path / "android", tmp_path / "Build.java", folder=tmp_path)
    code = PICKING.split("```kotlin\n")[1].split("```")[0]
    (tmp_path / "Pick.kt").write_text(f"package app\nimport android.os.Build\nimport org.json.JSONObject\n{code}{MAIN}")
    stdlib = [path for path in compiler if path.name.startswith("kotlin-stdlib")]
    path = classpath(tmp_path / "android", json_library, stdlib)
    kotlin = ("java", "-cp", classpath(compiler), "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler")
    run(
        *kotlin, "-no-stdlib", "-no-reflect", "-cp", path, "-d", tmp_path / "out", tmp_path / "Pick.kt", folder=tmp_path
    )
    ships = [{"file": name} for name in ("all", "8750", "8550", "phone", "board")]
    rows = [{"target": "phone", "model": "m", **row} for row in ROWS]
    (tmp_path / "manifest.json").write_text(json.dumps({"content": {"selection": rows, "ships": ships}}))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "getprop").write_text("#!/bin/sh\n")  # as on a phone whose maker sets none of the properties
    (tmp_path / "bin" / "getprop").chmod(0o755)
    picked = {}
    for chip, level in PICKED:
        words = ("env", f"PATH={tmp_path / 'bin'}:/usr/bin:/bin", "java", f"-Dsoc={chip}", f"-Dlevel={level}")
        run_path = ("-cp", classpath(tmp_path / "out", Path(path)), "app.PickKt")
        said = run(*words, *run_path, tmp_path / "manifest.json", folder=tmp_path)
        picked[chip, level] = said.strip()
    assert picked == PICKED
