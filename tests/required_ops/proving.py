"""The proof of a model's operator config both ways, and ONNX Runtime's own parser as the judge of what is rendered."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from pipeline.convert import ConvertRequest, convert_model
from pipeline.core.variant import Level, Variant
from pipeline.model.ort_format import OrtModel, read_ort
from pipeline.model.sources import SourceModel
from pipeline.required_ops import RequiredOps, covers, from_needs, needs_of, parse, render
from tests.ort_models import ORT_STYLES
from tests.required_ops.required_ops_strategies import is_kept_anyway

EIGHT = tuple(Variant(level=level, style=style) for level in Level if level is not Level.LAYOUT for style in ORT_STYLES)
DOMAIN_CONSTANTS = {"ai.onnx": "kOnnxDomain", "com.microsoft": "kMSDomain"}


def from_model(model: OrtModel, *, types: bool, providers: Iterable[str] = (), extended: bool = False) -> RequiredOps:
    """The least that a build must contain to run a model."""
    return from_needs(needs_of(model, providers=providers, extended=extended), types=types)


def without_each_operator(required: RequiredOps) -> Iterator[tuple[str, RequiredOps]]:
    """The config without each of its operators in turn."""
    for (domain, opset), ops in required.operators.items():
        for op in ops:
            rest = {**required.operators, (domain, opset): ops - {op}}
            operators = {key: names for key, names in rest.items() if names}
            keys = {(key[0], name) for key, names in operators.items() for name in names}
            types = {key: slots for key, slots in required.types.items() if key in keys}
            yield f"{domain};{opset};{op}", RequiredOps(operators=operators, types=types)


def without_each_type(required: RequiredOps) -> Iterator[tuple[str, RequiredOps]]:
    """The config without each of its types in turn, but for those that a build keeps anyway."""
    for key, slots in required.types.items():
        for slot, names in slots.items():
            for name in names:
                if not is_kept_anyway(key, slot, name):
                    less = {**required.types, key: {**slots, slot: names - {name}}}
                    yield f"{key} {slot} {name}", replace(required, types=less)


def prove(model: OrtModel, *, providers: tuple[str, ...] = (), extended: bool = False) -> int:
    """Both directions, with types and without; -> how many lines and types were left out in turn."""
    needs = needs_of(model, providers=providers, extended=extended)
    tried = 0
    for types in (False, True):
        required = from_needs(needs, types=types)
        assert covers(parse(render(required), "x"), needs) == ()
        for left_out, less in (*without_each_operator(required), *without_each_type(required)):
            missing = covers(less, needs)
            assert missing, f"{left_out} is superfluous"
            assert all(item.node and item.line for item in missing)
            tried += 1
    return tried


def stock(path: Path, *, types: bool = True) -> tuple[Any, Any]:
    """What ONNX Runtime's own parser reads in a config: operators, and the C++ lines that the build compiles."""
    from onnxruntime.tools.reduced_build_config_parser import parse_config

    operators, filtering = parse_config(str(path), types)
    return operators, sorted(filtering.get_cpp_entries()) if filtering else []


def in_stock_terms(required: RequiredOps) -> tuple[Any, Any]:
    """What ONNX Runtime's parser must make of a value: operators, and the C++ lines that the build compiles."""
    operators: dict[str, dict[int, set[str]]] = {}
    for (domain, opset), ops in required.operators.items():
        operators.setdefault(domain, {})[opset] = set(ops)
    if required.global_types is not None:
        names = ", ".join(sorted(required.global_types))
        return operators, [f"ORT_SPECIFY_OP_KERNEL_GLOBAL_ALLOWED_TYPES({names});"]
    lines = [
        f"ORT_SPECIFY_OP_KERNEL_ARG_ALLOWED_TYPES({DOMAIN_CONSTANTS[domain]}, {op}, {kind[:-1].title()}, {index}, "
        f"{', '.join(sorted(names))});"
        for (domain, op), slots in required.types.items()
        for (kind, index), names in slots.items()
        if kind != "custom" and names
    ]
    return operators, sorted(lines)


def prove_converted(model: onnx.ModelProto, folder: Path) -> list[int]:
    """Convert a model at all levels in both styles, and prove the config of every artifact and kind of build.

    -> how many lines and types were left out in turn, of each artifact.
    """
    path, output = folder / "model.onnx", folder / "out"
    onnx.save(model, path)
    request = ConvertRequest(
        source=SourceModel(path=str(path)), variants=EIGHT, stem="m", output_folder=str(output),
        work_folder=str(folder / "work"),
    )  # fmt: skip
    artifacts = [read_ort(output / artifact.file) for artifact in convert_model(request).artifacts]
    return [sum(_prove_both_kinds(artifact, folder / "required.config")) for artifact in artifacts]


def _prove_both_kinds(model: OrtModel, config: Path) -> Iterator[int]:
    for extended in (False, True):
        required = from_needs(needs_of(model, extended=extended), types=True)
        config.write_text(render(required), encoding="utf-8")
        assert stock(config) == in_stock_terms(required), "the stock parser reads another config"
        yield prove(model, extended=extended)
