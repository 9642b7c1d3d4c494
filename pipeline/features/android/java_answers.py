"""What the Java class of a model gives in place of tensors, and the classes of what it finds."""

from collections.abc import Iterable

from pipeline.config import app_data
from pipeline.release import app_answers
from pipeline.release import manifest as bundle_manifest

CLASSES = {
    app_data.AnswerKind.CLASSES: "Label.java",
    app_data.AnswerKind.BOXES: "Box.java",
    app_data.AnswerKind.MASK: "Mask.java",
}
"""The template of the class of what a model finds, where Java has none."""

LISTED = (app_data.AnswerKind.CLASSES, app_data.AnswerKind.BOXES)
"""Answers of which a model gives several."""


def of_model(signature: bundle_manifest.ModelSignature) -> dict[str, object]:
    """As Model.java needs it: the `answer` of a model, and whether it is `listed`."""
    answer = app_answers.answer_of(signature)
    return {"answer": answer, "listed": answer is not None and answer.kind in LISTED}


def templates(answers: Iterable[app_answers.AppAnswer | None]) -> list[str]:
    """The templates of classes of what models find."""
    return sorted({CLASSES[answer.kind] for answer in answers if answer and answer.kind in CLASSES})
