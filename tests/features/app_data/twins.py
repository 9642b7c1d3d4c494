"""Programs that print the ids of texts by the classes that apps get: compiled from the templates as they are."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipeline.core.files import sha256_of
from pipeline.features.android.package import SIGNATURES
from pipeline.features.android.text_inputs import TOKENIZERS
from pipeline.features.app_data.tokenizer import Tokenizer
from pipeline.release import source_code
from tests.features.android.samples import JAVAC, needs_java

COMMON = {"bundle": "demo", "digest": "0" * 64, "package": "com.example.demo", "module": "Demo"}
BETWEEN = "\x01"

JAVA_MAIN = """
package com.example.demo;

import java.nio.file.Files;
import java.nio.file.Paths;

public class Texts {
    public static void main(String[] arguments) throws Exception {
        Tokenizer tokenizer = Tokenizer.of(arguments[0], arguments[1]);
        StringBuilder out = new StringBuilder();
        for (String text : new String(Files.readAllBytes(Paths.get(arguments[2])), "UTF-8").split("\\u0001", -1)) {
            for (int id : tokenizer.ids(text, Integer.parseInt(arguments[3]))) {
                out.append(id).append(' ');
            }
            out.append('\\n');
        }
        System.out.print(out);
    }
}
"""
CPP_MAIN = """
#include <iostream>
#include <iterator>
int main(int, char** arguments) {
    const Tokenizer tokenizer(arguments[1]);
    std::ifstream file(arguments[2], std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(file)), {});
    for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
        end = all.find('\\x01', at);
        for (auto id : tokenizer.Ids(all.substr(at, end - at), std::stoul(arguments[3]))) std::cout << id << ' ';
        std::cout << '\\n';
    }
}
"""

Ids = list[list[int]]


def python(tokens: bytes, texts: Sequence[str], most: int, folder: Path) -> Ids:
    twin = Tokenizer(tokens)
    return [twin.ids(text, most) for text in texts]


def java(tokens: bytes, texts: Sequence[str], most: int, folder: Path) -> Ids:
    needs_java()
    sources = folder / "java"
    (sources / "com/example/demo").mkdir(parents=True)
    names = {"tokenizers": list(TOKENIZERS.items())}
    for name in ("Tokenizer", *TOKENIZERS.values()):
        text = source_code.render_source("pipeline.features.android", f"{name}.java", **COMMON, **names)
        (sources / f"com/example/demo/{name}.java").write_text(text, "utf-8")
    (sources / "com/example/demo/Texts.java").write_text(JAVA_MAIN, "utf-8")
    files = [str(file) for file in sources.rglob("*.java")]
    compiler = [*JAVAC, "-sourcepath", str(SIGNATURES), "-implicit:none", "-d", str(folder)]
    subprocess.run([*compiler, *files], check=True)
    file, given = written(tokens, texts, folder)
    command = ["java", "-cp", str(folder), "com.example.demo.Texts", file.name, sha256_of(file), str(given), str(most)]
    return numbers(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def cpp(tokens: bytes, texts: Sequence[str], most: int, folder: Path) -> Ids:
    compiler = next((path for name in ("g++", "clang++") if (path := shutil.which(name))), None)
    if not compiler:
        pytest.skip("no C++ compiler")
    text = source_code.render_source("pipeline.features.languages", "cpp-tokenizer.jinja")
    (folder / "texts.cc").write_text(f"#include <vector>\n{text}{CPP_MAIN}", "utf-8")
    options = ["-std=c++17", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    subprocess.run([compiler, *options, "-o", folder / "texts", folder / "texts.cc"], check=True)
    file, given = written(tokens, texts, folder)
    command = [str(folder / "texts"), str(file), str(given), str(most)]
    return numbers(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


LANGUAGES: dict[str, Callable[[bytes, Sequence[str], int, Path], Ids]] = {"python": python, "java": java, "cpp": cpp}


def written(tokens: bytes, texts: Sequence[str], folder: Path) -> tuple[Path, Path]:
    """The tokenizer's file and the one of texts, which no text has the separator of."""
    file, given = folder / "demo.tokens", folder / "texts.bin"
    file.write_bytes(tokens)
    given.write_bytes(BETWEEN.join(texts).encode())
    return file, given


def numbers(lines: str) -> Ids:
    return [[int(number) for number in line.split()] for line in lines.split("\n")[:-1]]
