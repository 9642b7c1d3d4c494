"""Claims for SM8550 beside what Microsoft measured on the NPU of a Snapdragon X Elite, V73 as well: winml-cli's rows.

`python -m tests.npu_measured DETAILS.jsonl [--rows N] [WORD…]` (`nox -s npu_measured`) takes N rows of each file of the
package, of all types and both answers, makes each model by the package's own generators, asks the compiler, and prints
the agreement by operator and by type. The rows are of another QAIRT, so that some differ; the program ends with 1 where
our answer about one of these is not that of a session by hand. DETAILS gets a line for each model, and files that it
has are not asked about again. Words are parts of files' names.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.partition.answer import ModelAnswer
from tests.npu_models import PROCESSES, answered, by_hand, difference
from tests.npu_operators import fork_programs

CHIP = "SM8550"
RULES = "analyze/rules/runtime_check_rules/QNNExecutionProvider_NPU"
MEASURED = "compile_run_success"
LEFT_OUT = "ConstantOfShape"
"""Its generator does not go with onnx 1.23, which gives attributes as another type."""

TYPES = {"FLOAT", "FLOAT16", "DOUBLE", "BOOL"} | {
    f"{sign}INT{bits}" for sign in ("", "U") for bits in (4, 8, 16, 32, 64)
}


class Row(NamedTuple):
    """A measured row with the model that it is of: `types` are those of its operator, `taken` says whether wholly."""

    file: str
    types: str
    taken: bool
    conditions: Mapping[str, object]
    model: bytes


def rows_of(path: Path, count: int) -> list[Row]:
    """So many rows of a file, by turns of each type and answer, with their models."""
    import pyarrow.parquet as parquet
    from winml.modelkit.analyze.runtime_checker import result_processor as processor

    domain, operator, _, _, opset, quantized = processor._parse_filename(path.stem)
    generator, cases = _cases(operator, domain, opset, quantized=quantized)
    frame, _ = processor._build_op_rule_dataframe([tags for _, tags in cases], generator, quantized)
    table = parquet.read_table(path).to_pylist()
    columns = [column for column in table[0] if column != MEASURED]
    keys = processor._encode_condition_columns_for_parquet(frame, columns)[columns].itertuples(index=False, name=None)
    models = {key: make for key, (make, _) in zip(keys, cases, strict=True)}
    groups: dict[tuple[str, bool], list[tuple[str, ...]]] = defaultdict(list)
    for row in table:
        key = tuple(row[column] for column in columns)
        if key in models:
            groups[_types(row), row[MEASURED][0]].append(key)
    chance = random.Random(path.stem)
    waiting = [(*group, chance.sample(members, min(count, len(members)))) for group, members in sorted(groups.items())]
    chance.shuffle(waiting)
    rows = (
        Row(path.stem, types, taken, _plain(columns, members[turn]), content)
        for turn in range(count)
        for types, taken, members in waiting
        if turn < len(members) and (content := _made(models[members[turn]]))
    )
    return list(islice(rows, count))


def _cases(operator: str, domain: str, opset: int, *, quantized: bool) -> tuple[Any, list[tuple[Any, dict[str, Any]]]]:
    """The package's generator, and for each of its cases what makes the model, with the properties."""
    from onnx.defs import SchemaError
    from winml.modelkit.onnx import ONNXDomain
    from winml.modelkit.pattern.base import get_pattern_input_generator
    from winml.modelkit.pattern.op_input_gen import get_runtime_checker_op
    from winml.modelkit.pattern.op_input_gen.qdq_gen import QDQGenerator

    qdq = QDQGenerator(1, ONNXDomain.COM_MICROSOFT) if quantized else None
    kind = ONNXDomain.from_str(domain)
    try:
        generator = get_runtime_checker_op(operator, domain=domain)(
            kind.get_op_schema(operator, opset), qdq_generator=qdq, dynamic_axis_mode="first_axis_dynamic"
        )
    except (SchemaError, KeyError):  # several nodes
        generator = get_pattern_input_generator(operator)({kind: opset, ONNXDomain.COM_MICROSOFT: 1})
    make = generator._create_model
    generator._create_model = lambda *args, **kwargs: partial(make, *args, **kwargs)  # most are never made
    with contextlib.redirect_stdout(io.StringIO()):
        return generator, [
            (model, tags)
            for kwargs, properties in generator.iter()
            for model, tags in generator.iter_const_and_dynamic_models(kwargs, properties)
        ]


def _made(make: Any) -> bytes | None:
    """None for a case of which the package makes no model, as below opset 7."""
    with contextlib.redirect_stdout(io.StringIO()):
        model = make()
    if model is None:
        return None
    model.ir_version = 9  # what the package's release of onnx writes is not the point
    content: bytes = model.SerializeToString()
    return content


def _types(row: Mapping[str, Any]) -> str:
    """The types of a row's operator as the table has them, and whether a size is open."""
    if any(column.endswith("_is_fixed_shape") and "false" in text for column, text in row.items()):
        return "an open size"
    values = _plain(row, row.values())
    quantized = sorted({str(value) for name, value in values.items() if name.startswith("QDQ_") and value})
    if quantized:
        return "QDQ " + "+".join(quantized)
    return "+".join(sorted({str(values[name]) for name in values if re.match("[TUV][a-z0-9]*_", name)} & TYPES))


def _plain(columns: Iterable[str], values: Iterable[Any]) -> dict[str, object]:
    """The values of a row's columns, less the one that was measured."""
    known = {column: json.loads(text) for column, text in zip(columns, values, strict=True) if column != MEASURED}
    return {column: value.get("v") if isinstance(value, dict) else value for column, value in known.items()}


def asked(path: Path, count: int) -> list[dict[str, object]]:
    """So many rows of a file; of each, whether the compiler takes the whole model, and why not.

    Where that was measured otherwise, `by_hand` is how a session by hand differs from our answer.
    """
    results = []
    for row in rows_of(path, count):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder, "m.onnx")
            model.write_bytes(row.model)
            answer = answered(model, CHIP)
            claimed, why = wholly(answer)
            known = {"file": row.file, "measured": row.taken, "claimed": claimed, "why": why, "types": row.types}
            if claimed != row.taken:
                known["by_hand"] = difference(answer, by_hand(model, CHIP), CHIP)
            results.append({**known, **row.conditions})
    return results


def wholly(answer: ModelAnswer) -> tuple[bool, str]:
    """Whether a model is taken in one partition but for what converts its inputs and outputs; else why not."""
    if answer.error or (answer.load and answer.load.error):
        return False, answer.error or (answer.load.error if answer.load else "") or ""
    left = [decision for decision in answer.decisions if not decision.claimed and decision.code != "border"]
    why = left[0].reason if left else "" if len(answer.partitions) == 1 else "not one partition"
    return not why, why or ""


def kind_of(types: str) -> str:
    """The kind of types that a row of the table is of."""
    if types.startswith("QDQ"):
        bits = sorted({int(text) for text in re.findall(r"INT(\d+)", types)} - {32}) or [32]
        return f"QDQ, {' and '.join(map(str, bits))} bits"
    several = "several types" if "+" in types else "integers"
    return {"FLOAT": "f32", "FLOAT16": "f16", "DOUBLE": "f64", "BOOL": "bool"}.get(types, several)


def agreement(results: Iterable[tuple[str, bool, bool]]) -> Iterator[str]:
    """Lines of a table: rows by name, how many agree, and how many differ each way."""
    counts: dict[str, Counter[tuple[bool, bool]]] = defaultdict(Counter)
    for name, measured, claimed in results:
        counts[name][measured, claimed] += 1
    for name, count in sorted(counts.items()):
        same = count[True, True] + count[False, False]
        yield f"| {name} | {count.total()} | {same} | {count[True, False]} | {count[False, True]} |"


def main(*arguments: str) -> int:
    """Ask, and print both tables; 1 where a session by hand says otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.npu_measured", description=__doc__)
    parser.add_argument("details", type=Path)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    os.environ["ORT_MOBILE_CACHE"] = tempfile.mkdtemp()
    spec = find_spec("winml.modelkit")
    assert spec
    assert spec.submodule_search_locations, "the package winml-cli is not installed"
    files = sorted(Path(spec.submodule_search_locations[0], RULES).glob("*.parquet"))
    files = [path for path in files if not path.stem.startswith(LEFT_OUT)]
    files = [path for path in files if not given.words or any(word in path.stem for word in given.words)]
    lines = given.details.read_text(encoding="utf-8").splitlines() if given.details.is_file() else []
    known = [json.loads(line) for line in lines]
    waiting = [path for path in files if path.stem not in {row["file"] for row in known}]
    with ProcessPoolExecutor(PROCESSES, initializer=fork_programs) as pool, given.details.open("a") as details:
        for rows in pool.map(partial(asked, count=given.rows), waiting):
            known += rows
            details.writelines(json.dumps(row, default=str) + "\n" for row in rows)
            details.flush()
    chosen = {path.stem for path in files}
    results = [row for row in known if row["file"] in chosen]
    operators = [row["file"].split("_")[0] for row in results]
    for title, names in (("operator", operators), ("types", [kind_of(row["types"]) for row in results])):
        print(f"| {title} | rows | equal | measured alone | claimed alone |", "|---|---|---|---|---|", sep="\n")
        answers = ((name, row["measured"], row["claimed"]) for name, row in zip(names, results, strict=True))
        print(*agreement(answers), "", sep="\n")
    by_hand_too = [row for row in results if "by_hand" in row]
    wrong = [f"{row['file']} of {row['types']}: {row['by_hand']}" for row in by_hand_too if row["by_hand"]]
    equal = sum(row["measured"] == row["claimed"] for row in results)
    print(
        f"{equal} of {len(results)} rows of {len(files)} files are equal; as by hand: {len(by_hand_too) - len(wrong)}"
    )
    print(*wrong, sep="\n")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
