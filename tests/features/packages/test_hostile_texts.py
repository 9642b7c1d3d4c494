"""Texts that are code, in every text field of a manifest, never become code of an app: neither where the manifest is
read, nor, behind that, where what it says is written out."""

import contextlib
import itertools
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from device_runner.spec import ElementType, RunOptions
from device_runner.untrusted_files import decode_json
from pipeline.campaign.tuned import TunedClass
from pipeline.check.compare import Categorical, OutputCheck, Tolerance
from pipeline.config import AppleRelease
from pipeline.config.tables import PreprocessConfig
from pipeline.core.errors import PipelineError
from pipeline.core.variant import AwareBy, Level, Variant, Way
from pipeline.features.android import library
from pipeline.features.android.package import ASSETS, ai_pack, java_sources
from pipeline.features.android.protection import Protection
from pipeline.features.apple import package as apple
from pipeline.features.languages import snippet
from pipeline.model.signature import TextTokens
from pipeline.release.app_code import code_for
from pipeline.release.kept import KeptReference, KeptTensor, KeptVector, KeptVectors
from pipeline.release.manifest import AppRule, Content, Manifest, ModelSignature
from pipeline.release.selection import selection
from pipeline.release.sizes import sizes_of
from pipeline.release.source_code import render_source
from tests.features.android.samples import (
    CPU,
    FLAGSHIP,
    NNAPI,
    OLD_CHIP,
    manifest,
    npu_context,
    shipped,
    signature,
    tensor,
)
from tests.features.apple.samples import COREML, for_ios
from tests.release.lexers import outside

PAYLOADS = (
    "*/P.x()/*", '"+P.x()+"', "'+P.x()+'", "\\u000aP.x()", "\\u0022+P.x()+\\u0022", "*\\u002fP.x()", '\\"+P.x()',
    "${P.x()}", "#{P.x()}", "\\(P.x())", "\nP.x()", "\rP.x()", "\u2028P.x()", "\x85P.x()", '"};P.x()={"', '"""\nP.x()',
    "'''\nP.x()", "`P.x()`", "P??/\nP.x()", "P??/", "P.x()\\", "<P.x()/>", "]]>P.x()", "-->P.x()", "P.x()]\n[P",
    "\x00P.x()", "@P.x()", "%{P.x()}", "{{ P.x() }}", "{% P.x() %}", "1.24.0\nP.x()", "models/m.ort\"+P.x()+\"",
    "com.P:P:1\")\nP.x()", "*/}P.x();{/*", "//P.x()", "/*P.x()",
)  # fmt: skip
"""What ends a literal or a comment, or is read in one: in Java, Kotlin, Swift, Ruby, Gradle, TOML, XML and others."""


def everything() -> Content:
    """A content that fills every field of a manifest."""
    ways = (
        NNAPI, CPU, RunOptions(provider="webgpu", provider_options={"preferredLayout": "NHWC"}),
        RunOptions(provider="xnnpack", provider_options={"intra_op_num_threads": "2"}, custom_ops=("libops.so",)),
        RunOptions(thread_cores="5-8", intra_op_threads=4, session_config={"session.dynamic_block_base": "4"}),
    )  # fmt: skip
    more: dict[str, Any] = {
        "aware_by": AwareBy(way=Way.LIBRARY, release="1.29.0", sha256="4" * 64, rules="1.29", abi="x86_64"),
        "steps": ("fp16",), "library": "libonnxruntime.so", "library_kind": "full",
        "variant": Variant(level=Level.BASIC, providers=("nnapi",), precision="fp16", chip="SM8650"),
    }  # fmt: skip
    android = (
        shipped(runs=ways, abis=("arm64-v8a",), weights="models/m.weights", **more),
        shipped(file="models/m.layout.ort", weights="models/m.weights", runs=(CPU,)),
        shipped("m-8", weights="models/m.weights"),
    )
    ios = (for_ios(target="iphone", runs=(COREML, CPU)), for_ios("m-8", target="iphone"))
    ships = (*android, *ios)
    classes = ((OLD_CHIP,), (FLAGSHIP,), (), (TunedClass(chip="Apple M1", api_level=0, abi="arm64"),), ())
    models = (
        ModelSignature(
            model="m", inputs=(tensor("x in", 1, "width"),), outputs=(tensor("y out", 1, "rows"),),
            dimensions={"batch": 1}, guessed=("batch",), preprocess=PreprocessConfig(input="x in"),
            values={"x in": "a text"}, padding={"x in": -1.5}, license="MIT",
            optional_inputs=(tensor("scale", 1),), constant_inputs=("zero point",), state={"y out": "x in"},
        ),
        ModelSignature(
            model="words", inputs=(tensor("ids in", 1, "n"), tensor("mask in", 1, "n"), tensor("types in", 1, "n")),
            outputs=(tensor("y out", 1, "rows"),),
            text=TextTokens(
                file="tokenizers/words.tokens", algorithm="wordpiece", library="tokenizers 0.23.3", ids="ids in",
                mask="mask in", types="types in", most=128,
            ),
        ),
        signature("m-8", inputs=(tensor("x in", 1, 8),), outputs=(tensor("y out", 1, 8),), size_of="m"),
    )  # fmt: skip
    rule = AppRule(
        target="phone", lowest_release="1.28.0", below_release="1.29", format_version=5, providers=("nnapi",),
        custom_domains=("my.domain",), operators_sha256="5" * 64, signature_sha256="6" * 64, library_license="MIT",
    )  # fmt: skip
    return manifest(
        ships, models, [npu_context(steps=("fp16",), not_run="another reason")],
        name="demo", made_with={"onnxruntime": "1.31.1"}, requires=(rule,),
        selection=tuple(selection(ships, classes)), do_not_ship=("a reason",),
    ).content  # fmt: skip


def references() -> tuple[KeptReference, ...]:
    check = OutputCheck(
        output="y out", passed=False, constants=("x in",), reason="why", remedy="what", metric="top1", session="s"
    )
    kept = KeptTensor(
        path="reference/m/y.bin", size_bytes=4, sha256="7" * 64, name="y out", dtype=ElementType.FLOAT32, shape=(1,)
    )
    tolerance = Tolerance(
        max_relative_error=0.1, spans={"y out": 1.0}, unsteady=("y out",), constants=("x in",), refuted=(check,),
        drawn={"y out": "a dropout"}, categorical={"y out": Categorical(elements=1)}, scales=("y out",),
        sorted_rows=("y out",),
    )  # fmt: skip
    return (KeptReference(model="m", inputs=(kept,), outputs=(kept,), tolerance=tolerance),)


def vectors() -> tuple[KeptVectors, ...]:
    given, answer = (
        KeptTensor(
            path=f"vectors/m/{name}.bin", size_bytes=4, sha256="8" * 64, name=f"{name} v", dtype=ElementType.FLOAT32,
            shape=(1,),
        )
        for name in ("x", "y")
    )  # fmt: skip
    vector = KeptVector(text="some text", inputs=(given,), outputs=(answer,))
    made = {"target": "phone", "model": "m", "file": "models/m.basic-fixed.ort", "ort_release": "1.29.0"}
    options = RunOptions(session_config={"session.dynamic_block_base": "4"})
    return (KeptVectors(**made, options=options, place="local", vectors=(vector,), none="a cause"),)


@dataclass(frozen=True, slots=True)
class Place:
    """A text of a manifest: the struct and field that it is of, and what stands there."""

    field: str
    text: str


FITTING: dict[type, type] = {inspect.StrType: str, inspect.StructType: dict, inspect.VarTupleType: list}
"""What JSON makes of the alternatives of a type that may hold texts."""


def places(kind: inspect.Type, node: Any, field: str) -> Iterator[Place]:
    """Every text below a value of a type; keys of dictionaries are texts, too."""
    if isinstance(kind, inspect.Metadata):
        yield from places(kind.type, node, field)
    elif isinstance(kind, inspect.StructType):
        for part in (part for part in kind.fields if part.encode_name in node):
            yield from places(part.type, node[part.encode_name], f"{kind.cls.__name__}.{part.name}")
    elif isinstance(kind, inspect.StrType):
        yield Place(field, node)
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            if isinstance(node, FITTING.get(type(option), ())):
                yield from places(option, node, field)
    elif isinstance(kind, inspect.DictType):
        for key, value in node.items():
            yield from places(kind.key_type, key, f"{field} key")
            yield from places(kind.value_type, value, field)
    elif isinstance(kind, inspect.VarTupleType):
        for value in node:
            yield from places(kind.item_type, value, field)


def fields(kind: inspect.Type, field: str, seen: frozenset[type]) -> Iterator[str]:
    """Every field of a type that holds a text, as `places` names them."""
    if isinstance(kind, inspect.Metadata):
        yield from fields(kind.type, field, seen)
    elif isinstance(kind, inspect.StructType) and kind.cls not in seen:
        for part in kind.fields:
            yield from fields(part.type, f"{kind.cls.__name__}.{part.name}", seen | {kind.cls})
    elif isinstance(kind, inspect.StrType):
        yield field
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from fields(option, field, seen)
    elif isinstance(kind, inspect.DictType):
        yield from fields(kind.key_type, f"{field} key", seen)
        yield from fields(kind.value_type, field, seen)
    elif isinstance(kind, inspect.VarTupleType):
        yield from fields(kind.item_type, field, seen)


def replaced(node: Any, old: str, new: str) -> Any:
    """The same with a text in place of another wherever that stands, so that what names it still does."""
    if isinstance(node, dict):
        return {replaced(key, old, new): replaced(value, old, new) for key, value in node.items()}
    if isinstance(node, list):
        return [replaced(value, old, new) for value in node]
    return new if node == old else node


def built(kind: inspect.Type, node: Any) -> Any:
    """The value of a type without its checks: what is behind the reader must hold alone."""
    if isinstance(kind, inspect.Metadata):
        return built(kind.type, node)
    if isinstance(kind, inspect.StructType) and isinstance(node, dict):
        given = (part for part in kind.fields if part.encode_name in node)
        return kind.cls(**{part.name: built(part.type, node[part.encode_name]) for part in given})
    if isinstance(kind, inspect.UnionType):
        struct = [option for option in kind.types if isinstance(option, inspect.StructType | inspect.VarTupleType)]
        enum = [option for option in kind.types if isinstance(option, inspect.EnumType)]
        if node is None or not ((isinstance(node, dict | list) and struct) or enum):
            return node
        return built((struct or enum)[0], node)
    if isinstance(kind, inspect.EnumType):
        return kind.cls(node)
    if isinstance(kind, inspect.DictType):
        return {key: built(kind.value_type, value) for key, value in node.items()}
    if isinstance(kind, inspect.VarTupleType | inspect.TupleType):
        items = kind.item_types if isinstance(kind, inspect.TupleType) else [kind.item_type] * len(node)
        return tuple(built(item, value) for item, value in zip(items, node, strict=True))
    return node


MANIFEST = inspect.type_info(Manifest)


def document() -> dict[str, Any]:
    """The manifest that fills every field, as JSON has it."""
    whole = Manifest(
        content=everything(), content_sha256="3" * 64, references=references(), vectors=vectors(),
        evidence={"key": "value"},
        made_at="2026-01-01T00:00:00.000Z",
    )  # fmt: skip
    return decode_json(msgspec.json.encode(whole), dict[str, Any])


SNIPPETS = {
    "kotlin": "kotlin", "react-native": "javascript", "flutter": "dart", "maui": "csharp", "cpp": "cpp",
    "python": "python",
}  # fmt: skip
SUFFIXES = {".java": "java", ".swift": "swift", ".podspec": "ruby", ".md": "markdown", ".kts": "kotlin", ".xml": "xml"}


def written(found: Manifest, folder: Path) -> Iterator[tuple[str, Callable[[], Mapping[str, str]]]]:
    """What writes the files for apps, each by a language or "" where the names of the files say it."""
    content = found.content
    android, ios = content.ships[0].target, content.ships[-1].target
    yield "", lambda: java_sources(found, android, "com.example.models", ASSETS)
    yield "", lambda: texts(apple._package(folder, found, AppleRelease(), ios, None, folder / "zip", None).files)
    yield "", lambda: texts(ai_pack(folder / "models_pack", folder, found, android, "com.example.models", ASSETS))
    yield "xml", lambda: {"pom": pom(android_library(found, android, folder).modules[0])}
    for kind, language in SNIPPETS.items():
        yield language, partial(_snippet, kind, content, android)
    for row in content.ships:
        for name, lines in code_for(row.platform, row.runs[0], row.file.rpartition("/")[2]).items():
            yield {"C++": "cpp"}.get(name, name.lower()), partial(dict, {f"{name} of a README": "\n".join(lines)})


def pom(module: library.MavenModule) -> str:
    return render_source("pipeline.features.android", "library.pom", module=module)


def texts(files: Mapping[str, object]) -> dict[str, str]:
    return {name: text for name, text in files.items() if isinstance(text, str)}


def _snippet(kind: str, content: Content, target: str) -> dict[str, str]:
    opened = snippet.openings(content, target, None)
    notes = snippet.state_texts(content.models)
    sizes, models = sizes_of(content, target), content.models
    return {kind: snippet.snippet(kind, opened, content.contexts, sizes, notes, models=models, digest="3" * 64)}


def android_library(found: Manifest, target: str, folder: Path) -> library.AndroidLibrary:
    return library.AndroidLibrary(
        named=library.maven_module("com.example", library.default_artifact(found.content.name), "1.0"),
        package="com.example.models", sources={}, contexts=found.content.contexts, bundle=folder, manifest=found,
        ships=tuple(row for row in found.content.ships if row.target == target), telemetry=True, runtime=(),
        protection=Protection(), pack=None, pack_folder=None,
    )  # fmt: skip


def structure(text: str, language: str) -> object:
    """What a compiler sees of a file beside literals and comments."""
    if language == "xml":
        return [(node.tag, sorted(node.keys())) for node in ET.fromstring(text).iter()]
    if language == "markdown":
        return [line for line in text.splitlines() if line.startswith("```")], len(text.splitlines())
    return outside(text, language)


def structures(found: Manifest, folder: Path) -> dict[str, object]:
    """By the names of files without what texts decide, as by the places of files in their order."""
    for file in found.content.files:
        with contextlib.suppress(OSError, ValueError):
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.path).touch()
    kept: dict[str, object] = {}
    for number, (language, write) in enumerate(written(found, folder)):
        try:
            files = write()
        except (PipelineError, ValueError, KeyError, OSError) as error:
            kept[f"{number}"] = type(error).__name__
            continue
        for place, (name, text) in enumerate(files.items()):
            kept[f"{number} {place}"] = structure(text, language or SUFFIXES[Path(name).suffix])
    return kept


def test_every_text_field_of_a_manifest_is_filled() -> None:
    """So that a new one is covered by itself, or named here."""
    tree = document()
    filled = {place.field for place in places(MANIFEST, tree, "") if place.text}
    assert set(fields(MANIFEST, "", frozenset())) - filled == {"Manifest.evidence key"} - filled


def cases(payloads: Sequence[str], every: int = 1) -> Iterator[tuple[Place, str]]:
    """Each text of the manifest, or every so many, with each payload."""
    found = sorted({place for place in places(MANIFEST, document(), "") if place.text}, key=lambda place: place.field)
    return itertools.product(found[::every], payloads)


def sweep(chosen: Iterable[tuple[Place, str]], folder: Path) -> Counter[str]:
    """What came of manifests with a payload in place of a text; fails where it is code of a file.

    A harmless text with the same letters gives the same names of classes, so that all beside literals and comments must
    be equal. What is refused behind the reader gives no file.
    """
    counted: Counter[str] = Counter()
    plain: dict[tuple[str, str], dict[str, object]] = {}
    for place, payload in chosen:
        tree = replaced(document(), place.text, payload)
        counted["manifests"] += 1
        try:
            msgspec.convert(tree, Manifest)
        except msgspec.ValidationError:
            counted["refused when read"] += 1
        key = place.text, re.sub(r"[^A-Za-z0-9 ]+", ".", payload)
        if key not in plain:
            plain[key] = structures(built(MANIFEST, replaced(document(), *key)), folder)
        files = {name: found for name, found in structures(built(MANIFEST, tree), folder).items() if " " in name}
        counted["files"] += len(files)
        changed = [name for name, found in files.items() if found != plain[key][name]]
        assert not changed, (place, payload, changed)
    return counted


def test_texts_that_are_code_stay_in_literals_and_comments(tmp_path: Path) -> None:
    assert sweep(cases(PAYLOADS[:1], 25), tmp_path)["files"] > 100


@pytest.mark.nightly
def test_any_text_that_is_code_stays_in_literals_and_comments(tmp_path: Path) -> None:
    assert sweep(cases(PAYLOADS), tmp_path)["manifests"] > 2000
