"""What the Java class of a model that takes a picture gives in place of tensors: a method, and what that finds."""

from collections.abc import Iterable

from pipeline.config import app_data
from pipeline.release import manifest as bundle_manifest

CLASSES = {
    app_data.AnswerKind.CLASSES: "Label.java",
    app_data.AnswerKind.BOXES: "Box.java",
    app_data.AnswerKind.MASK: "Mask.java",
}
"""The template of the class of what a model finds in a picture, where Java has none."""

LISTED = (app_data.AnswerKind.CLASSES, app_data.AnswerKind.BOXES)
"""Answers of which a model gives several."""


def of_picture(signature: bundle_manifest.ModelSignature) -> dict[str, object]:
    """As Model.java needs it: `answer`, what is made of a picture; whether it is `listed`, and boxes `labelled`."""
    answer = signature.answer if signature.takes_image and signature.answer else None
    labelled = answer is app_data.AnswerKind.BOXES and any(output.name == "labels" for output in signature.outputs)
    answer = answer if answer and signature.gives(answer) else None
    return {"answer": answer, "labelled": labelled, "listed": answer in LISTED}


def templates(answers: Iterable[app_data.AnswerKind | None]) -> list[str]:
    """The templates of classes of what models find."""
    return sorted({CLASSES[answer] for answer in answers if answer in CLASSES})
