"""Which answer the classes for apps give in place of tensors."""

import pytest

from device_runner.spec import ElementType
from pipeline.config.app_data import OUTPUTS_OF, AnswerKind, ImageBytes
from pipeline.model.signature import TensorInfo, TextTokens
from pipeline.release.app_answers import answer_of
from pipeline.release.manifest import ModelSignature
from tests.features.android.samples import signature, tensor

PICTURE = tensor("image", 1, "height", "width", 4, dtype=ElementType.UINT8)
IDS = tensor("ids", 1, "n", dtype=ElementType.INT64)
TEXT = TextTokens(file="tokenizers/m.tokens", algorithm="bpe", library="tokenizers", ids="ids", most=8)


def outputs(answer: AnswerKind) -> tuple[TensorInfo, ...]:
    return tuple(tensor(name, 1, "n", dtype=kind) for name, kind in OUTPUTS_OF[answer].items())


def of_text(answer: AnswerKind | None, found: tuple[TensorInfo, ...]) -> ModelSignature:
    return signature(inputs=(IDS,), outputs=found, text=TEXT, answer=answer)


@pytest.mark.parametrize("kind", AnswerKind)
def test_a_picture_has_every_answer(kind: AnswerKind) -> None:
    model = signature(inputs=(PICTURE,), outputs=outputs(kind), image=ImageBytes.RGBA, answer=kind)
    answer = answer_of(model)
    assert answer
    assert (answer.kind, answer.subject, answer.labelled) == (kind, "picture", kind is AnswerKind.CLASSES)


@pytest.mark.parametrize("kind", AnswerKind)
def test_a_text_has_those_that_are_of_no_place_in_a_picture(kind: AnswerKind) -> None:
    given = kind in (AnswerKind.CLASSES, AnswerKind.EMBEDDING, AnswerKind.PROBABILITY)
    assert bool(answer_of(of_text(kind, outputs(kind)))) == given


def test_a_row_of_floats_is_an_embedding_only_where_gives_says_so() -> None:
    assert answer_of(of_text(None, outputs(AnswerKind.EMBEDDING))) is None


def test_outputs_of_other_names_or_types_are_no_answer() -> None:
    assert answer_of(of_text(AnswerKind.EMBEDDING, (tensor("y", 1, 8),))) is None
    assert answer_of(of_text(AnswerKind.EMBEDDING, (tensor("embedding", 1, 8, dtype=ElementType.FLOAT16),))) is None


def test_tensors_have_no_answer() -> None:
    assert answer_of(signature(outputs=outputs(AnswerKind.EMBEDDING), answer=AnswerKind.EMBEDDING)) is None
