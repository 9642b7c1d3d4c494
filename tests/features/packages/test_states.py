"""Classes for apps say which output a state goes back from, and how a stream begins."""

import pytest

from pipeline.features.android.package import java_sources
from pipeline.features.apple.sources import swift_sources
from pipeline.features.languages import snippet
from pipeline.release.manifest import ModelSignature
from tests.features.android.samples import manifest, shipped, signature, tensor


def states() -> ModelSignature:
    """A model of two states, one of which begins with ones, and whose names could end a comment."""
    return signature(
        inputs=(tensor("x", 1, 4), tensor("h*/", 1, 2), tensor("c", 1, 2)),
        outputs=(tensor("y", 1, 4), tensor("h1\n}", 1, 2), tensor("c1", 1, 2)),
        state={"h1\n}": "h*/", "c1": "c"},
        values={"c": 1},
    )


@pytest.mark.parametrize("language", ["java", "swift"])
def test_classes_say_where_states_come_from_and_go_to(language: str) -> None:
    if language == "java":
        content = manifest((shipped(),), (states(),))
        text = "".join(java_sources(content, "phone", "org.a", "m").values())
    else:
        content = manifest((shipped(platform="ios", runs=(shipped().runs[1],)),), (states(),))
        text = "".join(swift_sources(content, "phone", "A").values())
    for line in (
        "h__: float32, 1 x 2; at the start of a stream zeros, then the output h1__ of the run before",
        "c: float32, 1 x 2; at the start of a stream 1 in each element, then the output c1 of the run before",
        "h1__: float32, 1 x 2; the input h__ of the next run of a stream",
        "c1: float32, 1 x 2; the input c of the next run of a stream",
    ):
        assert line in text, line
    assert "x: float32, 1 x 4\n" in text


@pytest.mark.parametrize("language", snippet.LANGUAGES)
def test_code_of_other_apps_says_what_goes_back_in(language: str) -> None:
    content = manifest((shipped(),), (states(),)).content
    opened = snippet.openings(content, "phone", None)
    text = str(snippet.snippet(language, opened, (), (), snippet.state_texts(content.models)))
    for line in (
        "the output h1_n_ is the input h_/ of the next inference, which begins with zeros",
        "the output c1 is the input c of the next inference, which begins with 1 in each element",
    ):
        assert line in text, text
