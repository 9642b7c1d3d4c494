"""What the Swift class of a model needs for an app's own data in place of tensors: a picture, a text, samples."""

from collections.abc import Mapping, Sequence
from typing import Any

from device_runner.spec import ElementType
from pipeline.config import app_data
from pipeline.release import app_answers, app_streams, app_texts, source_code
from pipeline.release import manifest as bundle_manifest

METHODS: Mapping[app_data.AnswerKind, tuple[str, str]] = {
    app_data.AnswerKind.CLASSES: ("classify", "[Label]"),
    app_data.AnswerKind.BOXES: ("detect", "[Box]"),
    app_data.AnswerKind.TEXT: ("read", "String"),
    app_data.AnswerKind.EMBEDDING: ("embed", "[Float]"),
    app_data.AnswerKind.MASK: ("segment", "Mask"),
    app_data.AnswerKind.PROBABILITY: ("probability", "Float"),
}
"""The method of an answer and what it gives."""

Tensors = Sequence[Mapping[str, Any]]
"""Inputs or outputs as Model.swift gets them."""


def of_model(
    signature: bundle_manifest.ModelSignature, digests: Mapping[str, str], inputs: Tensors, outputs: Tensors
) -> dict[str, Any]:
    """What Model.swift needs of a model beside its tensors; `digests` are those of the bundle's files."""
    return {
        "answer": _answer(signature, outputs),
        "picture": _picture(signature, inputs),
        "text": _text(signature, digests, inputs),
        "stream": _stream(signature, inputs, outputs),
    }


def _answer(signature: bundle_manifest.ModelSignature, outputs: Tensors) -> dict[str, Any] | None:
    """The `kind` of a model's answer, of a `picture` or a text; its `method` and `type`; whether boxes are `labelled`,
    and the `fields` of the output by the names of outputs. None for a model that gives tensors.
    """
    answer = app_answers.answer_of(signature)
    if answer is None:
        return None
    method, kind = METHODS[answer.kind]
    return {
        "kind": answer.kind,
        "picture": answer.subject is app_answers.Subject.PICTURE,
        "labelled": answer.labelled,
        "method": method,
        "type": source_code.Code(kind),
        "fields": {output["name"]: output["identifier"] for output in outputs},
    }


def _picture(signature: bundle_manifest.ModelSignature, inputs: Tensors) -> dict[str, Any] | None:
    """The `channels` that a model takes of a picture, and the `arguments` of `run`; None where it takes tensors."""
    if not (signature.image and signature.takes_image):
        return None
    (given,) = inputs
    name, channels = source_code.identifier(given["identifier"]), signature.image.channels
    arguments = [source_code.Code("{}: pixels").format(name)]
    if not given["fixed"]:
        arguments.append(source_code.Code("{}Shape: [1, height, width, {}]").format(name, channels))
    return {"channels": channels, "arguments": arguments}


def _text(
    signature: bundle_manifest.ModelSignature, digests: Mapping[str, str], inputs: Tensors
) -> dict[str, Any] | None:
    """The tokenizer's resource, `most` and `length` as TextFeed has them, and the `arguments` of `run` with tensors."""
    feed = app_texts.feed_of(signature)
    if feed is None:
        return None
    stem, _, suffix = feed.name.rpartition(".")
    arguments = []
    for key, given in zip(feed.keys, inputs, strict=True):
        name, kind = source_code.identifier(given["identifier"]), source_code.identifier(given["element"])
        arguments.append(source_code.Code("{}: {}.map {{ {}($0) }}").format(name, source_code.identifier(key), kind))
        arguments += [] if given["fixed"] else [source_code.Code("{}Shape: [1, length]").format(name)]
    return {
        "stem": stem,
        "suffix": suffix,
        "sha256": digests[feed.file],
        "most": feed.most,
        "length": feed.length,
        "parts": feed.keys,
        "arguments": arguments,
    }


def _stream(signature: bundle_manifest.ModelSignature, inputs: Tensors, outputs: Tensors) -> dict[str, Any] | None:
    """What Model.swift needs of a model's stream; None for one without.

    `element` of samples, `hop` of them in a step, `rate`; `states` with a `field`, its `size`, the `first` value and
    the `output` that follows it; `arguments` of `run` with tensors; the `output` that the app gets of each step.
    """
    stream = app_streams.stream_of(signature)
    if stream is None:
        return None
    fields = {output["name"]: output["identifier"] for output in outputs}
    states: list[dict[str, Any]] = []
    arguments = []
    for feed, given in zip(stream.feeds, inputs, strict=True):
        name, value = source_code.identifier(given["identifier"]), source_code.Code("step")
        if feed.source is app_streams.Source.STATE:
            value = source_code.identifier(f"state{len(states)}")
            states.append({"field": value, "size": feed.size, "first": feed.value, "output": fields[feed.output]})
        elif feed.source is app_streams.Source.CONSTANT:
            kind = source_code.identifier(given["element"])
            value = source_code.Code("[{}](repeating: {}, count: {})").format(kind, feed.value, feed.size)
        arguments.append(source_code.Code("{}: {}").format(name, value))
        if not feed.tensor.fixed:
            arguments.append(source_code.Code("{}Shape: [{}]").format(name, source_code.joined(feed.shape)))
    samples = stream.samples
    element = next(given["element"] for given in inputs if given["name"] == samples.tensor.name)
    return {
        "element": element,
        "hop": samples.size,
        "rate": stream.rate,
        "states": states,
        "arguments": arguments,
        "output": fields[stream.output],
    }


def remedy(signature: bundle_manifest.ModelSignature) -> str:
    """What else than a tensor's type an app can do about samples that Swift cannot give; "" for other models."""
    integers = any(given.name == app_data.SAMPLES and given.dtype is ElementType.INT16 for given in signature.inputs)
    text = 'take `samples = "float"` and leave `divide` as it is: the app gives Float(sample), which has equal outputs'
    return text if integers else ""
