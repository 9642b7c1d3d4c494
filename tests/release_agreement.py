"""Whether files that `convert --ort-release X` calls fit run in X's own wheel, and compute what the installed one does.

`nox -s release_agreement`.

As a program: `python -m tests.release_agreement [--keep FOLDER] [--every N] [--real PATH [--precisions]] [X.Y …]`.
Models are ONNX's own tests of operators, each with its versions and types, and operators of com.microsoft, or with
`--real` those of an archive or a folder; each becomes files of both formats at levels none and all, with `--precisions`
those of float in every precision. Prints a table; exit status 1 where a file that is called fit does not run, or
computes something else.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from device_runner.errors import UnavailableError
from docs.make_releases import OLDEST, environment
from pipeline.check.categorical import categorical_of, sorted_by_score
from pipeline.check.compare import Tolerance, compare_outputs, is_categorical_by_type, usual_tolerance
from pipeline.check.reference import output_spans, precision_of
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.core.releases import read_release
from pipeline.model.random_numbers import random_outputs
from pipeline.passes.precisions import PRECISIONS
from tests.command import ROOT
from tests.compat.test_two_classes import CASES, forest, machine

RELEASES = ("1.17", "1.20", "1.23", "1.26", "1.29", "1.32")
OPSETS = (13, 17, 20, 22)
"""Besides its own, those that a test of an operator is written for, where the operator has one of their time."""
ML_DOMAIN = "ai.onnx.ml"
FORMS = {"ort": ("--level", "none,all", "--style", "fixed"), "onnx": ("--level", "none,all", "--format", "onnx")}
UNMIXED = ",".join(name for name, row in PRECISIONS.items() if not row.by_search)
"""Precisions that need no search: a mixed one is one of them with operators left float."""
FLOAT, HALF, BYTE, INT8, INT32, INT64 = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64,
)  # fmt: skip


class Sample(NamedTuple):
    """A model and its inputs by name, None where they are no tensors that numpy has."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any] | None


def onnx_samples() -> Iterator[Sample]:
    """ONNX's tests of single operators: one for each operator, version and types."""
    from onnx.backend.test.case.node import collect_testcases

    warnings.simplefilter("ignore")
    seen = set()
    for case in collect_testcases(None):
        model = case.model
        assert model is not None
        for opset in (None, *OPSETS):
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            for entry in changed.opset_import:
                entry.version = opset if opset and entry.domain == "" else entry.version
            versions = {entry.domain: entry.version for entry in changed.opset_import}
            types = tuple(value.type.SerializeToString() for value in (*model.graph.input, *model.graph.output))
            kinds = tuple(value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output))
            try:
                onnx.checker.check_model(changed, full_check=True)
                since = tuple(
                    (node.op_type, onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain).since_version)
                    for node in model.graph.node
                )
            except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, onnx.defs.SchemaError, KeyError):
                continue
            if (since, kinds) in seen or not types:
                continue
            seen.add((since, kinds))
            names = [value.name for value in model.graph.input]
            given = dict(zip(names, case.data_sets[0][0], strict=False)) if case.data_sets else None
            usable = given if given and all(isinstance(v, np.ndarray) for v in given.values()) else None
            yield Sample(f"{case.name}_{opset or 'own'}", changed, usable)


class ContribModel(NamedTuple):
    """A node of com.microsoft: operator, inputs by name with type and shape or value, outputs with type, attributes."""

    operator: str
    inputs: dict[str, Any]
    outputs: tuple[int, ...]
    attributes: dict[str, Any]


def _contrib() -> Iterator[ContribModel]:
    rng = np.random.default_rng(0)

    def real(*shape: int) -> Any:
        return rng.normal(size=shape).astype("f4")

    image, tokens = (FLOAT, [1, 4, 6, 8]), (FLOAT, [1, 6, 64])
    for name in ("Gelu", "FastGelu", "QuickGelu"):
        for kind in (FLOAT, HALF):
            yield ContribModel(name, {"x": (kind, [2, 8])}, (kind,), {})
    yield ContribModel("BiasGelu", {"x": (FLOAT, [2, 8]), "b": real(8)}, (FLOAT,), {})
    for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
        for kind in (FLOAT, HALF):
            yield ContribModel(name, {"x": (kind, [1, 6, 64]), "s": (kind, [1, 6, 64]),
                                      "g": real(64).astype("f2" if kind == HALF else "f4")}, (kind,), {})  # fmt: skip
    yield ContribModel("FusedMatMul", {"x": (FLOAT, [2, 8]), "w": real(8, 8)}, (FLOAT,), {"alpha": 2.0, "transB": 1})
    yield ContribModel("FusedGemm", {"x": (FLOAT, [2, 8]), "w": real(8, 8), "b": real(8)}, (FLOAT,),
                       {"activation": "Relu"})  # fmt: skip
    yield ContribModel("FusedConv", {"x": image, "w": real(4, 4, 3, 3), "b": real(4)}, (FLOAT,), {"activation": "Relu"})
    for block, bits, level in ((16, 4, 0), (32, 4, 4), (128, 4, 1), (256, 4, 0), (512, 4, 0), (32, 8, 4), (32, 2, 0)):
        blocks = -(-512 // block)
        weight = rng.integers(0, 256, (8, blocks, block * bits // 8)).astype("u1")
        yield ContribModel("MatMulNBits", {"x": (FLOAT, [2, 512]), "w": weight, "s": real(8 * blocks)}, (FLOAT,),
                           {"K": 512, "N": 8, "bits": bits, "block_size": block, "accuracy_level": level})  # fmt: skip
    for bits in (8, 4):
        table = rng.integers(0, 256, (16, 32 * bits // 8)).astype("u1")
        attributes = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": bits}
        yield ContribModel("GatherBlockQuantized", {"d": table, "i": (INT64, [1, 5]), "s": real(16, 2)}, (FLOAT,),
                           attributes)  # fmt: skip
    yield ContribModel("MultiHeadAttention", {"q": tokens, "k": tokens, "v": tokens}, (FLOAT,), {"num_heads": 4})
    yield ContribModel("Attention", {"x": tokens, "w": real(64, 192), "b": real(192)}, (FLOAT,), {"num_heads": 4})
    past = (FLOAT, [1, 2, 8, 16])
    for extra in ({}, {"local_window_size": 4}, {"softcap": 30.0}, {"smooth_softmax": 1}, {"do_rotary": 1}):
        inputs = {"q": (FLOAT, [1, 4, 64]), "k": (FLOAT, [1, 4, 32]), "v": (FLOAT, [1, 4, 32]), "pk": past, "pv": past,
                  "sl": np.array([3], "i4"), "tl": np.array(4, "i4")}  # fmt: skip
        if "do_rotary" in extra:
            inputs |= {"c": real(32, 8), "n": real(32, 8)}
        heads: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2, **extra}
        yield ContribModel("GroupQueryAttention", inputs, (FLOAT, FLOAT, FLOAT), heads)
    for extra in ({}, {"interleaved": 1}, {"is_packed_batching": 0}, {"scale": 2.0}):
        yield ContribModel("RotaryEmbedding", {"x": (FLOAT, [1, 4, 6, 16]), "p": (INT64, [1, 6]), "c": real(32, 8),
                                               "s": real(32, 8)}, (FLOAT,), extra)  # fmt: skip
    yield from _quantized(rng)


def _quantized(rng: np.random.Generator) -> Iterator[ContribModel]:
    def real(*shape: int) -> Any:
        return rng.normal(size=shape).astype("f4")

    image = (FLOAT, [1, 4, 6, 8])
    scale, zero, bytes8 = np.float32(0.05), np.uint8(128), (BYTE, [1, 8])
    for name in ("QLinearAdd", "QLinearMul"):
        yield ContribModel(name, {"a": bytes8, "as": scale, "az": zero, "b": bytes8, "bs": scale, "bz": zero,
                                  "cs": scale, "cz": zero}, (BYTE,), {})  # fmt: skip
    for name, attributes in (
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.1}),
        ("QLinearSoftmax", {"opset": 13}),
    ):
        yield ContribModel(name, {"x": bytes8, "xs": scale, "xz": zero, "ys": scale, "yz": zero}, (BYTE,), attributes)
    yield ContribModel("QLinearConcat", {"ys": scale, "yz": zero, "a": bytes8, "as": scale, "az": zero, "b": bytes8,
                                         "bs": scale, "bz": zero}, (BYTE,), {"axis": 1})  # fmt: skip
    yield ContribModel("QLinearGlobalAveragePool", {"x": (BYTE, [1, 4, 6, 6]), "xs": scale, "xz": zero, "ys": scale,
                                                    "yz": zero}, (BYTE,), {})  # fmt: skip
    yield ContribModel("QLinearAveragePool", {"x": (BYTE, [1, 4, 6, 6]), "xs": scale, "xz": zero, "ys": scale,
                                              "yz": zero}, (BYTE,), {"kernel_shape": [2, 2]})  # fmt: skip
    yield ContribModel("QGemm", {"a": bytes8, "as": scale, "az": zero, "b": rng.integers(0, 255, (8, 4)).astype("u1"),
                                 "bs": scale, "bz": zero}, (FLOAT,), {})  # fmt: skip
    yield ContribModel("DynamicQuantizeMatMul", {"x": (FLOAT, [2, 8]), "w": rng.integers(0, 255, (8, 4)).astype("u1"),
                                                 "s": np.array([0.1], np.float32)}, (FLOAT,), {})  # fmt: skip
    yield ContribModel("MatMulIntegerToFloat", {"a": bytes8, "b": rng.integers(0, 255, (8, 4)).astype("u1"),
                                                "as": scale, "bs": scale}, (FLOAT,), {})  # fmt: skip
    for kind in ("i1", "u1", "i2", "u2"):
        code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        yield ContribModel("QuantizeLinear", {"x": (FLOAT, [2, 8]), "s": scale, "z": np.zeros((), kind)}, (code,), {})
        yield ContribModel("DequantizeLinear", {"x": (code, [2, 8]), "s": scale, "z": np.zeros((), kind)}, (FLOAT,), {})
    yield ContribModel("DynamicQuantizeLSTM", {
        "x": (FLOAT, [3, 1, 4]), "w": rng.integers(0, 255, (1, 4, 8)).astype("u1"),
        "r": rng.integers(0, 255, (1, 2, 8)).astype("u1"), "b": real(1, 16), "l": "", "h": "", "c": "", "p": "",
        "ws": np.full(1, 0.1, "f4"), "wz": np.full(1, 128, "u1"), "rs": np.full(1, 0.1, "f4"),
        "rz": np.full(1, 128, "u1"),
    }, (FLOAT,), {"hidden_size": 2})  # fmt: skip
    yield ContribModel("Inverse", {"x": real(1, 3, 3)}, (FLOAT,), {})
    yield ContribModel("Trilu", {"x": (FLOAT, [4, 4])}, (FLOAT,), {"upper": 0})
    yield ContribModel("EmbedLayerNormalization", {
        "i": (INT32, [1, 4]), "s": (INT32, [1, 4]), "w": real(9, 8), "p": real(9, 8), "t": real(2, 8), "g": real(8),
        "b": real(8),
    }, (FLOAT, INT32), {})  # fmt: skip
    yield ContribModel("NGramRepeatBlock", {"i": (INT64, [1, 4]), "s": (FLOAT, [1, 9])}, (FLOAT,), {"ngram_size": 2})
    yield ContribModel("Unique", {"x": (FLOAT, [4])}, (FLOAT, INT64, INT64), {})
    yield ContribModel("CropAndResize", {"x": image, "r": real(1, 4), "b": np.zeros(1, "i4"), "c": np.full(2, 2, "i4")},
                       (FLOAT,), {})  # fmt: skip
    yield ContribModel("GridSample", {"x": image, "g": (FLOAT, [1, 6, 8, 2])}, (FLOAT,), {})
    yield ContribModel("ExpandDims", {"x": (FLOAT, [4]), "a": np.int32(0)}, (FLOAT,), {})
    yield ContribModel("WhisperBeamSearch", {"x": (INT32, [1, 4])}, (INT32,), {})  # refused by all: it has no body
    yield ContribModel("BifurcationDetector", {"s": (INT64, [3]), "c": (INT64, [3])}, (INT64, INT64), {})
    yield ContribModel("GemmaRotaryEmbedding", {"e": (FLOAT, [1, 4, 8]), "q": (HALF, [1, 2, 4, 8])}, (HALF,), {})


def contrib_samples() -> Iterator[Sample]:
    """Operators of com.microsoft, in float and with the types of their kernels."""
    for number, row in enumerate(_contrib()):
        names = [name if not isinstance(given, str) else "" for name, given in row.inputs.items()]
        fed = {name: given for name, given in row.inputs.items() if isinstance(given, tuple)}
        inputs = [helper.make_tensor_value_info(name, *given) for name, given in fed.items()]
        weights = [
            numpy_helper.from_array(np.asarray(given), name)
            for name, given in row.inputs.items()
            if not isinstance(given, tuple | str)
        ]
        outputs = [helper.make_tensor_value_info(f"out{at}", kind, None) for at, kind in enumerate(row.outputs)]
        node: NodeProto = helper.make_node(row.operator, names, [value.name for value in outputs], "n")
        node.domain = "com.microsoft"
        node.attribute.extend(helper.make_attribute(key, value) for key, value in row.attributes.items())
        graph = helper.make_graph([node], "g", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        name = f"{row.operator}_{number}"
        yield Sample(name, helper.make_model(graph, opset_imports=opsets, ir_version=8), None)


def classifier_samples() -> Iterator[Sample]:
    """Classifiers of two classes by one score, of which releases make labels and scores in different ways."""
    given = {"x": np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "f4")}
    for number, case in enumerate(CASES):
        yield Sample(f"{ML_DOMAIN}.forest_{number}", forest(case), given)
    for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        for operator in ("LinearClassifier", "SVMClassifier"):
            yield Sample(f"{ML_DOMAIN}.{operator}_{transform}", machine(operator, transform), given)


def write_models(folder: Path, every: int) -> dict[str, str]:
    """Write the models; by their names, the files of their inputs ("" for made-up ones)."""
    inputs_of = {}
    chosen = (s for at, s in enumerate(onnx_samples()) if at % every == 0 or s.model.graph.node[0].domain == ML_DOMAIN)
    samples = (*contrib_samples(), *classifier_samples(), *chosen)
    for sample in samples:
        onnx.save(sample.model, folder / f"{sample.name}.onnx")
        inputs_of[sample.name] = ""
        if sample.inputs:
            np.savez(folder / f"{sample.name}.npz", **sample.inputs)
            inputs_of[sample.name] = str(folder / f"{sample.name}.npz")
    return inputs_of


def write_real(folder: Path, place: Path, *, in_float: bool) -> dict[str, str]:
    """Real models out of an archive or a folder, or the float ones among them with random inputs."""
    if place.is_dir():
        for file in place.glob("*.onnx"):
            shutil.copyfile(file, folder / file.name)
    else:
        with zipfile.ZipFile(place) as packed:
            packed.extractall(folder)
    inputs_of = {}
    for file in sorted(folder.rglob("*.onnx")):
        graph = onnx.load(file).graph
        kinds = {tensor.data_type for tensor in graph.initializer}
        quantized = any("Quant" in node.op_type or "Integer" in node.op_type for node in graph.node)
        if not in_float:
            inputs_of[file.stem] = ""
        elif HALF not in kinds and not quantized:
            given = folder / f"{file.stem}.npz"
            np.savez(given, **random_inputs(graph))
            inputs_of[file.stem] = str(given)
    return inputs_of


def random_inputs(graph: onnx.GraphProto) -> dict[str, Any]:
    """A value for each input: normal numbers, whole ones of 0 and 1, letters; open sizes are 1."""
    rng, weights = np.random.default_rng(0), {tensor.name for tensor in graph.initializer}
    values = {}
    for value in (value for value in graph.input if value.name not in weights):
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [size.dim_value or 1 for size in value.type.tensor_type.shape.dim]
        if kind.kind == "O":
            values[value.name] = np.full(shape, "a")
        else:
            numbers = rng.normal(size=shape) if kind.kind == "f" else rng.integers(0, 2, shape)
            values[value.name] = numbers.astype(kind)
    return values


def write_precisions(folder: Path, inputs_of: dict[str, str]) -> dict[str, str]:
    """Beside float models their forms in all precisions, as `convert` makes them before any release is asked for."""
    forms = dict(inputs_of)
    for name, data in inputs_of.items():
        words = ("--level", "none", "--style", "onnx", "--precision", UNMIXED, "--test-data", data)
        rows = converted(folder / f"{name}.onnx", folder, words, folder / "made.json")
        forms |= {Path(row["file"]).stem: data for row in rows if row.get("file") and not row.get("error")}
    return forms


def converted(source: Path, output: Path, words: Sequence[str], document: Path) -> list[dict[str, Any]]:
    """The rows of the document of `convert`: artifacts, with what speaks against each."""
    command: list[str | Path] = [
        sys.executable, "-m", "pipeline", "convert", source, "--output", output, *words,
        "--abi", "x86_64", "--no-config", "--json", document, "--quiet",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not document.is_file():
        raise PipelineError("convert wrote no document", where=str(source), why=done.stderr[-300:])
    rows: list[dict[str, Any]] = json.loads(document.read_text("utf-8"))["artifacts"]
    document.unlink()
    return rows


def ran(python: Path, rows: list[tuple[str, str]], work: Path, outputs: Path) -> dict[str, str]:
    """Of each file why it does not run; one that ends the process does not run, and the rest is asked again.

    `outputs` is a new folder of what they give: a file for each, of its own name and .npz.
    """
    answers: dict[str, str] = {}
    shutil.rmtree(outputs, ignore_errors=True)
    outputs.mkdir()
    while left := [row for row in rows if row[0] not in answers]:
        asked = work / "asked.json"
        asked.write_text(json.dumps([(file, given, str(written(outputs, file))) for file, given in left]), "utf-8")
        done = subprocess.run(
            [python, ROOT / "tests" / "run_in_release.py", asked], capture_output=True, text=True, check=False
        )
        answers |= dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
        crashed = next((file for file, _ in left if file not in answers), "")
        if crashed:
            answers[crashed] = f"run: the process ended with {done.returncode}"
    return answers


def written(folder: Path, file: str) -> Path:
    """Where the outputs of a file are."""
    return folder / f"{Path(file).name}.npz"


def tolerance_of(model: onnx.ModelProto, outputs: Mapping[str, Any]) -> Tolerance:
    """What outputs of a model may differ by, as `check` compares them; scores of classes that tie are not known."""
    precision, graph = precision_of(model, outputs.values()), model.graph
    categories = categorical_of(graph, outputs, precision, lambda _: {})
    scales = (name for name, array in outputs.items() if is_categorical_by_type(array) and name not in categories)
    return msgspec.structs.replace(
        usual_tolerance(precision), spans=output_spans(graph), categorical=categories, scales=tuple(scales),
        drawn=random_outputs(model), sorted_rows=tuple(sorted(sorted_by_score(graph))),
    )  # fmt: skip


def otherwise(model: Path, expected: Path, given: Path) -> str:
    """What a file computes otherwise than the installed release, "" where nothing, and where one gave no tensors."""
    if not expected.is_file() or not given.is_file():
        return ""
    reference, actual = dict(np.load(expected)), dict(np.load(given))
    tolerance = tolerance_of(onnx.load(model), reference)
    checks = compare_outputs(reference, actual, tolerance)
    return "; ".join(f"{check.output}: {check.reason}" for check in checks if check.failed and not check.unknown)


def compare(
    release: str, python: Path, models: Path, inputs_of: dict[str, str], work: Path, broken: Collection[str]
) -> tuple[Counter[str], list[str]]:
    """Counts of verdicts, and what is wrong, for the files of one release.

    `broken` are models that the installed release does not run either: of a release they say nothing.
    """
    counts: Counter[str] = Counter()
    wrong = []
    output = work / "converted"
    for words in FORMS.values():
        made = converted(models, output, ("--ort-release", release, *words), work / "converted.json")
        rows = [row for row in made if row.get("file")]
        names = {str(output / row["file"]): inputs_of.get(row["file"].rsplit(".", 2)[0], "") for row in rows}
        answers = ran(python, list(names.items()), work, work / "given")
        ran(Path(sys.executable), list(names.items()), work, work / "expected")
        for row in rows:
            why = answers[str(output / row["file"])]
            said = [finding["what"] for finding in row["findings"] if finding["severity"] == "error"]
            fit = not said and not row.get("error")
            if why and row["file"].rsplit(".", 2)[0] in broken:
                continue
            name = row["file"].rsplit(".", 2)[0]
            given, expected = (written(work / folder, row["file"]) for folder in ("given", "expected"))
            other = otherwise(models / f"{name}.onnx", expected, given) if not why else ""
            verdict = "computes something else" if other else "does not" if why else "runs"
            counts[f"{'fit' if fit else 'refused'}, {verdict}"] += 1
            why = why or other
            if fit is bool(why):
                wrong.append(f"{release} {row['file']}: {' '.join(why.split())[:300] or said}")
        shutil.rmtree(output, ignore_errors=True)
    return counts, wrong


def pythons_of(releases: Collection[str], environments: Path) -> dict[str, Path]:
    """The Pythons of the releases' environments, all before any is asked for minutes. ConfigError, UnavailableError."""
    minors = {name: read_release(name, "the release").minor for name in releases}
    if young := [name for name, minor in minors.items() if minor < OLDEST]:
        what = f"what {', '.join(young)} opens was never asked of its wheel"
        raise UnavailableError(what, remedy=f"name releases from 1.{OLDEST} on")
    return {name: environment(minor, environments) for name, minor in minors.items()}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--keep", type=Path, help="folder of the releases' environments")
    parser.add_argument("--every", type=int, default=1, help="each so-many-th test of an operator")
    parser.add_argument("--real", type=Path, help="an archive or a folder of models instead")
    parser.add_argument("--precisions", action="store_true", help="the float ones of these in all precisions")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        try:
            pythons = pythons_of(chosen.releases, chosen.keep or work / "environments")
        except (ConfigError, UnavailableError) as error:
            print(f"error: {error.text}", file=sys.stderr)
            return 3
        (models := work / "models").mkdir()
        real = chosen.real and write_real(models, chosen.real, in_float=chosen.precisions)
        inputs_of = real or write_models(models, chosen.every)
        inputs_of = write_precisions(models, inputs_of) if chosen.precisions else inputs_of
        originals = [(str(models / f"{name}.onnx"), file) for name, file in inputs_of.items()]
        broken = {
            Path(file).stem for file, why in ran(Path(sys.executable), originals, work, work / "first").items() if why
        }
        print(f"{len(inputs_of)} models; the installed release does not run:", ", ".join(sorted(broken)), flush=True)
        failed = False
        for release, python in pythons.items():
            counts, wrong = compare(release, python, models, inputs_of, work, broken)
            print(release, ", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items())))
            for line in wrong:
                print("  ", line, flush=True)
            failed |= bool(counts["fit, does not"] or counts["fit, computes something else"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
