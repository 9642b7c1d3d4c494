"""A class of C++ for each model: its tensors, and where the bundle says so the app's own data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from device_runner.spec import ElementType
from pipeline.model.signature import TensorInfo
from pipeline.release import app_answers, app_streams, app_texts, code_names, source_code, tensor_texts
from pipeline.release import manifest as bundle_manifest

ELEMENTS: dict[ElementType, source_code.Code] = {
    ElementType.FLOAT32: source_code.Code("float"),
    ElementType.FLOAT64: source_code.Code("double"),
    ElementType.BOOL: source_code.Code("char"),
    ElementType.FLOAT16: source_code.Code("Ort::Float16_t"),
    ElementType.BFLOAT16: source_code.Code("Ort::BFloat16_t"),
    **{
        kind: source_code.Code("std::{}_t").format(source_code.identifier(kind.value))
        for kind in ElementType
        if kind.value.lstrip("u").startswith("int")
    },
}
"""Element types in C++, but for strings; a vector of bool has no array of them."""

TEXTS = source_code.Code("std::string")

TAKEN = frozenset({"Box", "Elements", "Label", "Mask", "Output", "Shape", "Stream", "Tokenizer"})
"""Classes of ours that no model's may be called as; so is what begins with `PREFIXES`."""
PREFIXES = ("Ort", "SizeOf")

WORDS = frozenset({
    "alignas", "alignof", "and", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char",
    "class", "compl", "concept", "const", "constexpr", "continue", "decltype", "default", "delete", "do", "double",
    "else", "enum", "errno", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
    "inline", "inputs", "int", "linux", "long", "mutable", "namespace", "new", "noexcept", "not", "nullptr",
    "operator", "or", "output", "outputs", "private", "protected", "public", "register", "requires", "return",
    "short", "signed", "sizeof", "static", "stderr", "stdin", "stdout", "struct", "switch", "template", "this",
    "throw", "true", "try", "typedef", "typeid", "typename", "union", "unix", "unsigned", "using", "virtual",
    "void", "volatile", "while", "xor",
})  # fmt: skip
"""What no tensor may be called: C++'s words, macros of its library, and the names that `Run` has for its own."""


def classes(
    functions: Mapping[str, str],
    models: Iterable[bundle_manifest.ModelSignature],
    guarded: Iterable[str],
) -> list[dict[str, Any]]:
    """What cpp-classes.jinja needs of each model that a function opens; for `guarded` there is one behind a guard, too.

    A model whose tensors C++ cannot make or read has no class. Raises ConfigError for two classes of one name.
    """
    behind_guard = frozenset(guarded)
    made = [
        {"function": functions[model.model], "guarded": model.model in behind_guard, **values}
        for model in models
        if model.model in functions and (values := _class(model))
    ]
    code_names.refuse_equal_names((values["model"], values["name"]) for values in made)
    return made


def _class(signature: bundle_manifest.ModelSignature) -> dict[str, Any] | None:
    if any(_element(tensor) is None for tensor in signature.inputs):
        return None
    inputs = list(_inputs(signature))
    outputs = list(_outputs(signature))
    if not outputs:
        return None
    image = signature.image if signature.takes_image else None
    return {
        "model": signature.model,
        "name": code_names.class_name(signature.model, TAKEN, PREFIXES),
        "inputs": inputs,
        "outputs": outputs,
        "parameters": [parameter for tensor in inputs for parameter in tensor["parameters"]],
        "channels": image.channels if image else 0,
        "answer": app_answers.answer_of(signature),
        "fields": {output["name"]: output["identifier"] for output in outputs},
        "text": _text(signature, inputs),
        "stream": _stream(signature, outputs),
    }


def _element(tensor: TensorInfo) -> source_code.Code | None:
    """What a tensor is a vector of; None for one that C++ has no type for."""
    if tensor.dtype is ElementType.STRING:
        return TEXTS
    return ELEMENTS.get(tensor.dtype) if tensor.dtype else None


def _inputs(signature: bundle_manifest.ModelSignature) -> Iterator[dict[str, Any]]:
    """Inputs as parameters of `Run`; where a shape is not `fixed`, it is one, too."""
    for tensor, own_name in code_names.identifiers(signature.inputs, WORDS):
        element = source_code.Code("bool") if tensor.dtype is ElementType.BOOL else _element(tensor)
        name = source_code.identifier(own_name)
        kind = source_code.Code("const std::vector<{}>&" if element == TEXTS else "Elements<{}>").format(element)
        shape = source_code.Code("{}Shape").format(name)
        yield {
            "name": tensor.name,
            "identifier": own_name,
            "element": element,
            "fixed": tensor.fixed,
            "doc": tensor_texts.input_text(tensor, signature),
            "shape": source_code.Code("{{{}}}").format(source_code.joined(tensor.shape or ()))
            if tensor.fixed
            else shape,
            "parameters": [
                source_code.Code("{} {}").format(kind, name),
                *([] if tensor.fixed else [source_code.Code("const Shape& {}").format(shape)]),
            ],
        }


def _outputs(signature: bundle_manifest.ModelSignature) -> Iterator[dict[str, Any]]:
    for tensor, own_name in code_names.identifiers(signature.outputs, WORDS, "values"):
        element = _element(tensor)
        if element is not None:
            yield {
                "name": tensor.name,
                "identifier": own_name,
                "element": element,
                "doc": tensor_texts.output_text(tensor, signature),
            }


def _text(signature: bundle_manifest.ModelSignature, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The tokenizer's file, the `most` tokens, and the `key` of what each input gets with its element and shape."""
    feed = app_texts.feed_of(signature)
    if feed is None:
        return None
    arguments = [
        source_code.Code("{}, {{1, static_cast<std::int64_t>(length)}}" if not given["fixed"] else "{}").format(
            source_code.identifier(key)
        )
        for key, given in zip(feed.keys, inputs, strict=True)
    ]
    return {
        "file": feed.name,
        "most": feed.most,
        "length": feed.length,
        "inputs": [{"key": key, "element": given["element"]} for key, given in zip(feed.keys, inputs, strict=True)],
        "arguments": arguments,
    }


def _stream(signature: bundle_manifest.ModelSignature, outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The `element` of samples, `hop` of them in a step, `rate`; `states` and constants with a `field`, its `size`, the
    `first` value and the `output` that follows a state; `arguments` of `Run`; the `output` that the app gets.
    """
    stream = app_streams.stream_of(signature)
    if stream is None:
        return None
    fields = {output["name"]: output["identifier"] for output in outputs}
    kept: list[dict[str, Any]] = []
    arguments = []
    for feed in stream.feeds:
        argument = source_code.Code("step_")
        if feed.source is not app_streams.Source.SAMPLES:
            argument = source_code.Code("kept{}_").format(len(kept))
            output = fields[feed.output] if feed.source is app_streams.Source.STATE else ""
            value = source_code.number(feed.value)
            if feed.tensor.dtype is ElementType.FLOAT32:
                value = source_code.Code("{}f").format(value)
            kept.append(
                {
                    "field": argument,
                    "element": _element(feed.tensor),
                    "size": feed.size,
                    "first": value,
                    "output": output,
                }
            )
        arguments.append(argument)
        if not feed.tensor.fixed:
            arguments.append(source_code.Code("{{{}}}").format(source_code.joined(feed.shape)))
    return {
        "element": _element(stream.samples.tensor),
        "hop": stream.samples.size,
        "rate": stream.rate,
        "kept": kept,
        "arguments": arguments,
        "output": fields[stream.output],
    }
