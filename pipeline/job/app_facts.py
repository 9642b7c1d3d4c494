"""What an app must know of the models in a bundle: what the files take and give, and what was measured of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from device_runner.spec import ElementType
from pipeline.config import ModelConfig
from pipeline.job.assemble import Assembled
from pipeline.job.prepare import ARTIFACTS
from pipeline.model.ort_format import Graph, TensorType, read_ort
from pipeline.model.signature import TYPES_BY_CODE
from pipeline.release.choose import Choice
from pipeline.release.manifest import ModelSignature, TensorSignature
from pipeline.report import wording
from pipeline.report.model import Row


def signatures(assembled: Assembled, folder: Path) -> tuple[ModelSignature, ...]:
    """The inputs and outputs of each model that ships, as its file declares them, with what the config says of them."""
    files = {choice.artifact.model: folder / ARTIFACTS / choice.artifact.file for choice in assembled.choices}
    return tuple(_signature(model, read_ort(file).graph, assembled) for model, file in files.items())


def _signature(model: str, graph: Graph, assembled: Assembled) -> ModelSignature:
    table = assembled.record.tables.get(model) or ModelConfig(path="")
    return ModelSignature(
        model=model,
        inputs=tuple(_tensor(name, graph) for name in graph.inputs if name not in graph.initializers),
        outputs=tuple(_tensor(name, graph) for name in graph.outputs),
        dimensions=dict(table.dimensions),
        preprocess=table.preprocess,
        values=dict(table.inputs),
    )


def _tensor(name: str, graph: Graph) -> TensorSignature:
    found = graph.node_args.get(name)
    if not isinstance(found, TensorType):
        return TensorSignature(name=name, dtype=None, shape=None)
    dtype: ElementType | None = TYPES_BY_CODE.get(found.elem_type)
    return TensorSignature(name=name, dtype=dtype, shape=found.shape)


def measured_text(assembled: Assembled) -> str:
    """What was measured of what ships, by target: devices, latencies with intervals, and the numeric check."""
    lines = [f"# {assembled.report.name}: what was measured", ""]
    lines += [
        f"Campaign {assembled.report.campaign}.",
        "Latency is the median time of one inference; every round is a fresh process.",
        "",
    ]
    for choice in assembled.choices:
        lines += _of_choice(choice, assembled)
    return "\n".join(lines)


def _of_choice(choice: Choice, assembled: Assembled) -> Iterator[str]:
    artifact = choice.artifact
    yield f"## {artifact.file} for {choice.target.name}"
    yield ""
    yield f"{choice.reason[:1].upper()}{choice.reason[1:]}."
    yield ""
    wanted = (artifact.model, artifact.variant.name)
    rows = [row for row in assembled.report.rows if (row.model, row.variant) == wanted]
    yield from _table(rows) if rows else ("Not measured on any device.", "")
    yield from _checks(assembled, wanted)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| device | session options | latency | medians of the rounds | p90 | rounds | peak memory |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        found = row.statistics
        medians = found.round_medians_ns if found else ()
        interval = f"{wording.duration(min(medians))} to {wording.duration(max(medians))}" if medians else wording.DASH
        cells = (
            row.device, row.run, wording.duration(found.median_ns if found else None), interval,
            wording.duration(found.p90_ns if found else None), str(row.rounds), wording.size(row.memory_peak_bytes),
        )  # fmt: skip
        yield f"| {' | '.join(wording.visible(cell).replace('|', '/') for cell in cells)} |"
    yield ""


def _checks(assembled: Assembled, wanted: tuple[str, str]) -> Iterator[str]:
    checks = assembled.record.checks.get(wanted[0], {}).get(wanted[1], ())
    yield "Outputs, compared with the original model's on the computer that made the bundle:"
    yield ""
    for check in checks:
        verdict = "passed" if check.passed else "FAILED"
        yield f"- {wording.visible(check.output)}: {verdict}; {wording.check_numbers(check)}"
    yield ""
