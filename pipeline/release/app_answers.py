"""What the classes for apps give in place of tensors: which answer, and of what; the same in every language."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pipeline.config import app_data
from pipeline.release import manifest as bundle_manifest


class Subject(StrEnum):
    """What an app has of which it wants an answer."""

    PICTURE = "picture"
    TEXT = "text"


ANSWERS: Mapping[Subject, frozenset[app_data.AnswerKind]] = {
    Subject.PICTURE: frozenset(app_data.AnswerKind),
    Subject.TEXT: frozenset(
        {app_data.AnswerKind.CLASSES, app_data.AnswerKind.EMBEDDING, app_data.AnswerKind.PROBABILITY}
    ),
}
"""What is answered of each: boxes, masks and what is written are of pictures only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppAnswer:
    """The answer of a model, which one method of its class gives; `labelled`: its boxes have labels."""

    kind: app_data.AnswerKind
    subject: Subject
    labelled: bool


def answer_of(signature: bundle_manifest.ModelSignature) -> AppAnswer | None:
    """The answer of a model; None for one that gives tensors, or takes them."""
    kind = signature.answer
    subject = Subject.PICTURE if signature.takes_image else Subject.TEXT if signature.takes_text else None
    if kind is None or subject is None or kind not in ANSWERS[subject] or not signature.gives(kind):
        return None
    return AppAnswer(kind=kind, subject=subject, labelled=any(output.name == "labels" for output in signature.outputs))
