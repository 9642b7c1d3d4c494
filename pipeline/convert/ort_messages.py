"""What ONNX Runtime's error messages mean: fragments of its texts (1.21 to 1.31.1) with the cause and a remedy."""

import re

from pipeline.core.errors import ModelError

CHECKER = "check it with `onnx.checker.check_model(model, full_check=True)`"
# (fragment of the message, what it means, remedy); the first that fits is taken.
MEANINGS: tuple[tuple[str, str, str], ...] = (
    (r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
     "the model's IR version {0} is newer than this onnxruntime reads (at most {1})",
     "export with an older IR version, or install a newer onnxruntime"),
    (r"Opset \d+ is under development|only \*guarantees\* support for models stamped",
     "the model's opset is newer than this onnxruntime supports",
     "export with a lower opset, or install a newer onnxruntime"),
    (r"No Op registered for (\S+) with domain_version of (-?\d+)",
     "operator {0} does not exist in opset {1}", "export the model again with a consistent opset"),
    (r"(\S+?):(\S+?)\(-1\) is not a registered function/op",
     "operator {1} of domain {0} is unknown: it is custom, or misspelt",
     "replace it by standard operators; libraries of custom operators are not loaded here"),
    (r"[Mm]issing opset in the model|opset import.*(?:missing|not)|no opset import for domain",
     "the model does not say which opset it uses", "export the model again"),
    (r"Could not find an implementation for (\S+) node|Failed to find kernel for (\S+)",
     "onnxruntime has no kernel for one of its operators with these types", "use another data type or operator"),
    (r"We do not support type \[9\]", "it has values of optional type, which the ORT format cannot hold",
     "remove optional inputs, outputs and operators of type Optional"),
    (r"Failed to save ORT format model", "the file could not be written: the disk is full, or it passed 2 GiB",
     "free some space, or quantize the model"),
    (r"No space left on device", "the disk is full", "free some space, or choose another folder with --output"),
    (r"bad_alloc|[Ff]ailed to allocate memory|Not enough memory|ArenaExtend|Requested.*exceeds",
     "it asks for more memory than there is", "look for constants of an enormous shape in the model"),
    (r"Protobuf parsing failed|INVALID_PROTOBUF", "it is no valid ONNX protobuf", "export it again"),
    (r"Type Error|TypeInferenceError|[Tt]ype.*mismatch", "the types in its graph contradict each other", CHECKER),
    (r"ShapeInferenceError|[Mm]ismatch between number of|[Ii]nvalid (?:shape|rank|dimension)|incompatible dimensions",
     "the shapes in its graph contradict each other", CHECKER),
    (r"This is an invalid model|INVALID_GRAPH|Invalid model", "its graph breaks ONNX's rules", CHECKER),
)  # fmt: skip
GENERAL = ("onnxruntime refuses the model", CHECKER)
MAX_WHY = 400


def explain(error: BaseException, where: str) -> ModelError:
    """The error that onnxruntime raised for a model as one of ours: the cause if known, its own words, a remedy."""
    text = str(error)
    what, remedy = _meaning(text)
    return ModelError(what, where=where, why=_shorten(text), remedy=remedy)


def _meaning(text: str) -> tuple[str, str]:
    for pattern, what, remedy in MEANINGS:
        if found := re.search(pattern, text):
            return what.format(*(_shorten(g or "", 80) for g in found.groups())), remedy
    return GENERAL


def _shorten(text: str, limit: int = MAX_WHY) -> str:
    """One printable line without onnxruntime's prefix and its build machine's source paths."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S*onnxruntime/\S+\.(?:cc|h):\d+ .*?(?=\s[A-Z])", "", text)
    text = "".join(c if c.isprintable() else " " for c in text)
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"
