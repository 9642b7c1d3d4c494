"""Aware files by the installed onnxruntime's own provider.

No stock wheel for Linux has NNAPI or CoreML. The session, the saving and the comparison are driven with the one other
provider that it has, which claims nothing.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime
import pytest

from device_runner.providers import PROVIDERS
from pipeline.convert import ConvertRequest, convert_model, steps
from pipeline.convert.request import AwareSpec, has_installed
from pipeline.core.releases import has_rules, installed_release, rules_of
from pipeline.core.variant import AwareBy, Level, Variant, Way, aware_lines
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import make_settings

MNIST = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist" / "mnist.onnx"
AWARE = Variant(level=Level.EXTENDED, providers=("nnapi",))
RULES = str(rules_of(installed_release()))
OURS = AwareBy(way=Way.PLUGIN, rules="" if has_rules(installed_release()) else RULES)
INSTALLED = AwareSpec(by=AwareBy(way=Way.INSTALLED))
AUTO = AwareSpec(by=AwareBy(way=Way.INSTALLED), optional=True)
PLAIN = Variant(level=Level.EXTENDED)


def by_library(path: Path, **fields: Any) -> AwareSpec:
    return AwareSpec(by=AwareBy(way=Way.LIBRARY, release="1.29.0", sha256="0" * 64), library=str(path), **fields)


def request(folder: Path, aware: AwareSpec) -> ConvertRequest:
    return ConvertRequest(
        source=SourceModel(path=str(MNIST)), variants=(AWARE, PLAIN), stem="m", output_folder=str(folder / "out"),
        work_folder=str(folder / "work"), aware=msgspec.structs.replace(aware, providers=(make_settings("nnapi"),)),
    )  # fmt: skip


def test_a_wheel_without_the_provider_says_so(tmp_path: Path) -> None:
    if has_installed(make_settings("nnapi")):
        pytest.skip("this onnxruntime has NNAPI")
    result = convert_model(request(tmp_path, INSTALLED))
    (failure,) = result.failures
    assert failure.variant == AWARE
    assert "has no NnapiExecutionProvider" in failure.what
    assert "claims of our rules" in failure.remedy
    assert [artifact.variant for artifact in result.artifacts] == [PLAIN], "the CPU's file needs no provider"


def test_its_own_session_saves_the_file_and_differing_claims_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROVIDERS, "nnapi", replace(PROVIDERS["nnapi"], ort_name="AzureExecutionProvider"))
    result = convert_model(request(tmp_path, AUTO))
    aware, plain = result.artifacts
    assert result.failures == ()
    assert aware.operators == plain.operators, "the provider claimed nothing, so this is the stock optimization"
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not tell its claims")
    assert aware.claimed == {"nnapi": 0}
    assert "8 nodes are claimed by the installed onnxruntime or by our rules alone" in aware.notes[0]
    assert aware.aware_by == AwareBy(way=Way.INSTALLED, release=onnxruntime.__version__)
    assert plain.aware_by is None


def test_what_onnxruntime_does_not_tell_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 1.24."""
    monkeypatch.setitem(PROVIDERS, "nnapi", replace(PROVIDERS["nnapi"], ort_name="AzureExecutionProvider"))
    monkeypatch.setattr(steps, "_taken", lambda session, provider: None)
    aware, _ = convert_model(request(tmp_path, AUTO)).artifacts
    assert aware.claimed == {"nnapi": 8}
    assert "not compared" in aware.notes[0]


def test_auto_keeps_our_claims_without_it(tmp_path: Path) -> None:
    ours, again = (
        convert_model(request(tmp_path / str(number), wish)) for number, wish in enumerate((AUTO, AwareSpec()))
    )
    assert ours.artifacts[0].aware_by == OURS
    assert ours.artifacts[0].claimed == {"nnapi": 8}
    assert ours.artifacts[0].sha256 == again.artifacts[0].sha256


def test_a_library_that_cannot_save_it_is_told_and_what_is_made_without_is_not_kept(tmp_path: Path) -> None:
    """Under `auto`. The next time the library may be there, so the cache does not remember what was made without."""
    gone = by_library(tmp_path / "gone.so", optional=True)
    wanted = msgspec.structs.replace(request(tmp_path, gone), cache_folder=str(tmp_path / "cache"))
    first, second = (convert_model(wanted) for _ in range(2))
    aware = next(artifact for artifact in second.artifacts if artifact.variant == AWARE)
    assert aware.aware_by == OURS
    assert "our rules decided, because no library at" in aware.notes[-1]
    assert (first.reused, second.reused) == (0, 1), "the plain variant alone is found again"


def test_a_library_that_is_named_must_save_it(tmp_path: Path) -> None:
    result = convert_model(request(tmp_path, by_library(tmp_path / "gone.so")))
    (failure,) = result.failures
    assert (failure.variant, [artifact.variant for artifact in result.artifacts]) == (AWARE, [PLAIN])
    assert "no library at" in failure.what


def test_a_library_serves_its_own_provider_and_costs_no_variant_of_another(tmp_path: Path) -> None:
    """`--ep nnapi,coreml-nn --reference LIBRARY`: Android's libraries have no CoreML."""
    coreml = Variant(level=Level.EXTENDED, providers=("coreml-nn",))
    both = (make_settings("nnapi"), make_settings("coreml-nn"))
    source = by_library(tmp_path / "libonnxruntime.so")
    asked = request(tmp_path, source)
    aware = msgspec.structs.replace(source, providers=both)
    result = convert_model(msgspec.structs.replace(asked, aware=aware, variants=(coreml, PLAIN)))
    (failure,) = result.failures
    assert failure.variant == coreml
    assert "aware of NNAPI alone" in failure.what
    assert [artifact.variant for artifact in result.artifacts] == [PLAIN]


def test_files_say_whose_rules_decided_for_a_release_without_its_own(tmp_path: Path) -> None:
    asked = request(tmp_path, AwareSpec())
    for release, words in (("1.29", "saved with our claims"), ("1.31", "saved with our claims, by the rules of 1.29")):
        aware = msgspec.structs.replace(asked, aware=AwareSpec(providers=(make_settings("nnapi", release=release),)))
        made_by = convert_model(aware).artifacts[0].aware_by
        assert made_by
        assert made_by.text == words


def test_one_line_for_each_way(tmp_path: Path) -> None:
    (artifact, plain) = convert_model(request(tmp_path, AwareSpec())).artifacts
    library = AwareBy(way=Way.LIBRARY, release="1.29.0", sha256="1fbfff77a79d" + 52 * "0")
    saved = msgspec.structs.replace(artifact, aware_by=library)
    assert aware_lines([artifact, saved, saved, plain]) == [
        f"provider-aware artifacts {OURS.text}: 1",
        "provider-aware artifacts saved by libonnxruntime 1.29.0 (sha256 1fbfff77a79d): 2",
    ]
