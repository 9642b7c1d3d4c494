"""Bundles of strangers: texts that are code are refused when they are read, a key proves who made one, and what is
packed is what was verified."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pipeline.features.android import library
from pipeline.features.apple import package
from pipeline.features.apple import sources as apple_sources
from tests.command import ort_mobile
from tests.features.android.samples import bundle, needs_java, shipped
from tests.features.apple.samples import for_ios
from tests.release.test_bundle import reseal
from tests.release.test_signature import write_keys

RELEASES: dict[str, tuple[str, ...]] = {
    "android": ("--output", "repo", "--group", "com.example", "--version", "1.0"),
    "ai pack": ("--output", "repo", "--group", "com.example", "--version", "1.0", "--ai-pack", "pack"),
    "apple": ("--output", "swift"),
    "snippet": ("--for", "cpp", "--target", "phone"),
}
OUTPUTS = ("repo", "pack", "swift")


def arguments(kind: str, *more: str) -> tuple[str, ...]:
    command = "android" if kind == "ai pack" else kind
    return ("release", command, "bundle", *RELEASES[kind], *more)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A bundle for Android and iOS, with a library of custom operators for Android."""
    bundle(tmp_path, (shipped(), for_ios(target="iphone")))
    return tmp_path


def ships(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["content"]["ships"][-1].update(changed)


def variant(**changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["content"]["ships"][0]["variant"].update(changed)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (variant(precision="fp16.*/ final class P { } /*"), "ships[0].variant.precision"),
        (variant(chip="x\nlet p: Int = { 1 }()\n///"), "ships[0].variant.chip"),
        (variant(providers=["*/ P"]), "ships[0].variant.providers[0]"),
        (ships(file='models/m.ort"+P\\u002erun()+"'), "ships[1].file"),
        (ships(weights='m"+P+"'), "ships[1].weights"),
        (ships(ort_release="1.24.0'+`touch P`+'"), "ships[1].ort_release"),
        (ships(ort_release="1.24.0\n"), "ships[1].ort_release"),
        (ships(min_os_version='15.1"), .macOS("14'), "ships[1].min_os_version"),
        (ships(min_os_version="15.x"), "ships[1].min_os_version"),
        (ships(platform="dos"), "ships[1].platform"),
        (ships(abis=["../x"]), "ships[1].abis[0]"),
        (ships(runs=[{"thread_cores": "abc"}]), "ships[1].runs[0].thread_cores"),
        (ships(runs=[{"session_config": {'a")\nP': "1"}}]), "ships[1].runs[0].session_config"),
        (ships(runs=[{"provider": "coreml\nP"}]), "ships[1].runs[0].provider"),
        (ships(runs=[{"custom_ops": ["x\nP"]}]), "ships[1].runs[0].custom_ops[0]"),
        (lambda document: document["content"]["files"][0].update(sha256="0" * 64 + "\n"), "files[0].sha256"),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_ours_is_refused_when_it_is_read(
    place: Path, change: Callable[[dict[str, Any]], None], field: str
) -> None:
    reseal(place / "bundle", change)
    assert f" `$.content.{field}`" in ort_mobile("bundle", "verify", "bundle", cwd=place, code=4).err


@pytest.mark.parametrize("kind", RELEASES)
def test_a_bundle_that_a_key_did_not_sign_is_refused(place: Path, kind: str) -> None:
    write_keys(place)
    write_keys(place, "else")
    unsigned = ort_mobile(*arguments(kind, "--key", "key.pub"), cwd=place, code=4)
    assert unsigned.err == ort_mobile("bundle", "verify", "bundle", "--key", "key.pub", cwd=place, code=4).err
    ort_mobile("bundle", "sign", "bundle", "--key", "else.pem", cwd=place)
    ort_mobile(*arguments(kind, "--key", "key.pub"), cwd=place, code=4)
    assert not any((place / name).exists() for name in OUTPUTS)


def test_a_bundle_that_a_key_signed_is_packed(place: Path) -> None:
    write_keys(place)
    ort_mobile("bundle", "sign", "bundle", "--key", "key.pem", cwd=place)
    for kind in ("apple", "snippet"):
        ort_mobile(*arguments(kind, "--key", "key.pub"), cwd=place)
    assert (place / "swift/Package.swift").is_file()


def changing(place: Path, then: Callable[..., Any]) -> Callable[..., Any]:
    """A step of packing before which somebody changes the model, the length of the file alone stays."""

    def step(*given: Any, **named: Any) -> Any:
        model = place / "bundle/models/m.basic-fixed.ort"
        content = bytearray(model.read_bytes())
        content[1000] ^= 0xFF
        model.write_bytes(content)
        return then(*given, **named)

    return step


@pytest.mark.parametrize("kind", ["android", "ai pack", "apple"])
def test_a_model_that_changes_while_it_is_packed_is_an_error_and_nothing_is_written(place: Path, kind: str) -> None:
    def none(_package: str, _sources: Mapping[str, str], _work: Path) -> dict[str, bytes]:
        return {}

    needs_java()
    with (
        mock.patch.object(library, "compiled", none if kind == "ai pack" else changing(place, none)),
        mock.patch.object(library, "android_library", changing(place, library.android_library))
        if kind == "ai pack"
        else mock.patch.object(package, "swift_sources", changing(place, apple_sources.swift_sources)),
    ):
        result = ort_mobile(*arguments(kind), cwd=place, code=4)
    assert "a file changed while it was packed" in result.err
    assert "bundle/models/m.basic-fixed.ort" in result.err
    assert not [path for name in OUTPUTS for path in (place / name).rglob("*") if path.is_file()]
    # What the error asks for helps: the bundle as it was
    shutil.rmtree(place / "bundle")
    bundle(place, (shipped(), for_ios(target="iphone")))
    with mock.patch.object(library, "compiled", none):
        ort_mobile(*arguments(kind), cwd=place)
