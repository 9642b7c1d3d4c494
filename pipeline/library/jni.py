"""Whether Java classes and the native library behind them belong together: by names alone, without a table of releases.

A native method is found by the name of its function, and native code looks classes and methods up by text in it: what
is not there throws UnsatisfiedLinkError, NoClassDefFoundError or NoSuchMethodError in the app. Source: the Java Native
Interface Specification, "Resolving native method names"; ONNX Runtime's java/src/main/native.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from device_runner.probe import elf as elf_file
from pipeline.library.java_class import JavaClass

PACKAGE = "ai/onnxruntime"
"""ONNX Runtime's Java package; GenAI, the extensions and telemetry have one below it."""
PREFIX = "Java_ai_onnxruntime_"
ESCAPES = {"/": "_", "_": "_1", ";": "_2", "[": "_3"}
OVERLOAD, SEPARATOR = re.compile(r"__(?![0-3])"), re.compile(r"_(?![0-3])")
"""What divides the name of a function: an underscore before 0 to 3 is part of an escape."""
NAMES = re.compile(rb"ai/onnxruntime/[\w/$]+(?=\0)")
DESCRIPTORS = re.compile(rb"\([\[\w/$;]{0,500}\)[\[\w/$;]{1,200}(?=\0)")
"""A compiler may put a text right behind other data: only its end is certain."""
INNER = re.compile(r"L(ai/onnxruntime/[\w/$]+);")
THROWN = "(Ljava/lang/String;)V"
"""Of the constructor that JNI's ThrowNew calls."""
SHOWN = 4


@dataclass(frozen=True, slots=True)
class JniLibrary:
    """What a native library has for Java: functions, and the classes and the types of methods that it looks up.

    Functions are without the types that overloaded ones end with.
    """

    functions: frozenset[str]
    names: frozenset[str]
    descriptors: frozenset[str]

    @property
    def classes(self) -> frozenset[str]:
        """Those of its functions, as in Java_ai_onnxruntime_OnnxTensor."""
        return frozenset(map(_outer, self.functions))

    @property
    def packages(self) -> frozenset[str]:
        """The Java packages of its functions, as in Java_ai_onnxruntime."""
        return frozenset(map(_outer, self.classes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """What classes and libraries lack of each other.

    `unlinked` are native methods without a function, `absent` classes that native code looks up, `unmade` those whose
    constructors it does not find, or the types of a method that no class has.
    """

    unlinked: tuple[str, ...]
    absent: tuple[str, ...]
    unmade: tuple[str, ...]

    @property
    def text(self) -> str:
        """What is missing, and what that throws."""
        rows = (
            (self.unlinked, "no native library has a function for {}: UnsatisfiedLinkError"),
            (self.absent, "native code looks classes up by name that are not there ({}): NoClassDefFoundError"),
            (self.unmade, "native code looks up constructors that are not there ({}): NoSuchMethodError"),
        )
        return "; ".join(text.format(_some(names)) for names, text in rows if names)


def read_jni(content: elf_file.Buffer, defined: Collection[str]) -> JniLibrary | None:
    """What a library that defines these symbols has for ONNX Runtime's classes; None where it has no function."""
    functions = frozenset(OVERLOAD.split(name)[0] for name in defined if name.startswith(PREFIX))
    if not functions:
        return None
    names = frozenset(match[0].decode() for match in NAMES.finditer(content))
    types = frozenset(match[0].decode() for match in DESCRIPTORS.finditer(content)) if names else frozenset()
    return JniLibrary(functions, names, types)


def function_of(class_name: str, method: str = "") -> str:
    """The name of the function that a native method is linked with, or what those of a class begin with."""
    path = "/".join(filter(None, (class_name, method)))
    return "Java_" + "".join(
        char if char.isascii() and char.isalnum() else ESCAPES.get(char, f"_0{ord(char):04x}") for char in path
    )


def misfit(classes: Collection[JavaClass], libraries: Collection[JniLibrary]) -> Misfit | None:
    """What classes and libraries lack of each other; None where nothing.

    Of a class without any function nothing is said: releases have such that nobody calls. Nor of functions without a
    native method, which releases have as well; what only Java packages without native methods here would need counts
    neither.
    """
    functions = {name for library in libraries for name in library.functions}
    linked = {name for library in libraries for name in library.classes}
    unlinked = {
        f"{java_class.name}.{method.name}"
        for java_class in classes
        if function_of(java_class.name) in linked
        for method in java_class.natives
        if function_of(java_class.name, method.name) not in functions
    }
    packages = {java_class.package for java_class in classes if java_class.natives}
    present = {java_class.name for java_class in classes}
    methods = {method.descriptor for java_class in classes for method in java_class.methods}
    names = {name for library in libraries for name in library.names}
    types = {text for library in libraries for text in library.descriptors}
    named_by = {text: set(INNER.findall(text)) for text in types}
    absent = {
        name for name in names.union(*named_by.values()) if name.rpartition("/")[0] in packages and name not in present
    }
    unmade = {
        java_class.name
        for java_class in classes
        if java_class.name in names
        and not java_class.abstract
        and not any(method.descriptor in types or method.descriptor == THROWN for method in java_class.methods)
    }
    unmade |= {text for text, inner in named_by.items() if inner and inner <= present and text not in methods}
    if not unlinked | absent | unmade:
        return None
    return Misfit(unlinked=_dotted(unlinked), absent=_dotted(absent), unmade=_dotted(unmade))


def _outer(name: str) -> str:
    """The class of a function, or the package of a class."""
    return name[: [match.start() for match in SEPARATOR.finditer(name)][-1]]


def _dotted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(name.replace("/", ".") for name in names))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
