"""What was measured, on what, by which computers: for whoever has to know later."""

from collections.abc import Sequence

from pipeline.core import groups as counting
from pipeline.report import wording
from pipeline.report.model import CampaignReport, MeasuredRun, SimulatedContext
from pipeline.report.wording import Listing


def inventory(report: CampaignReport) -> tuple[Listing, ...]:
    """Devices, models and artifacts, for whoever has to know later what was measured; empty ones left out."""
    originals = {model.name: model.size_bytes for model in report.models}
    columns = {
        "Model": [artifact.model for artifact in report.artifacts],
        "Variant": [artifact.variant.name for artifact in report.artifacts],
        "Size": [
            wording.size_beside(artifact.size_bytes, originals.get(artifact.model, 0)) for artifact in report.artifacts
        ],
        "sha256": [artifact.sha256 for artifact in report.artifacts],
    }
    # How provider-aware ones were made, and the passes before, have columns where there are any
    optional = {
        "Provider-aware": [artifact.aware_by.text if artifact.aware_by else "" for artifact in report.artifacts],
        "Passes": [", ".join(artifact.steps) for artifact in report.artifacts],
    }
    columns |= {title: texts for title, texts in optional.items() if any(texts)}
    listings = (
        Listing(
            title="Devices",
            head=("Device", "Model", "System", "ABIs", "Memory", "NNAPI"),
            rows=tuple(
                (
                    facts.name,
                    " ".join(filter(None, (facts.manufacturer, facts.model, facts.soc))),
                    " ".join(
                        filter(
                            None,
                            (facts.platform, facts.os_release, f"API {facts.api_level}" if facts.api_level else ""),
                        )
                    ),
                    ", ".join(facts.abis),
                    wording.size(facts.memory_bytes),
                    wording.nnapi_devices(facts),
                )
                for facts in report.devices
            ),
        ),
        Listing(
            title="Models",
            head=("Model", "File", "Size", "Inputs", "Fixed sizes", "Outputs", "sha256"),
            rows=tuple(
                (
                    model.name,
                    model.file,
                    wording.size(model.size_bytes),
                    ", ".join(model.inputs),
                    ", ".join(
                        f"{name} → {size}{' (guessed)' if name in model.guessed else ''}"
                        for name, size in model.dimensions.items()
                    ),
                    ", ".join(model.outputs),
                    model.sha256,
                )
                for model in report.models
            ),
        ),
        Listing(title="Artifacts", head=tuple(columns), rows=tuple(zip(*columns.values(), strict=True))),
        contexts_listing(report.contexts, title="Contexts for NPUs"),
    )
    return tuple(listing for listing in listings if listing.rows)


def drivers(measured: Sequence[MeasuredRun]) -> Listing:
    """The computers that ran a campaign or drove its devices: how long its runs took, and how much of it was pushing.

    Runs of releases that did not note it are not counted; no rows where no run did.
    """
    by_host = counting.grouped(
        ((run.result.host, planned.device), run.result)
        for planned, runs in measured
        for run in runs
        if run.result.elapsed_ns
    )
    rows = (
        (
            host or wording.DASH,
            device,
            str(len(results)),
            wording.instant(min(result.started_at for result in results)),
            wording.duration(sum(result.elapsed_ns for result in results)),
            wording.duration(sum(result.push_ns for result in results) or None),
        )
        for (host, device), results in sorted(by_host.items())
    )
    return Listing(
        title="Computers that drove the devices",
        head=("Computer", "Device", "Runs", "First run", "Time in runs", "Of it pushing files"),
        rows=tuple(rows),
    )


def contexts_listing(rows: Sequence[SimulatedContext], title: str = "") -> Listing:
    """What chips' NPUs have of models; in reports, which have a title, with the chips' names, and capitals in heads."""
    checked = any(row.checks or row.context.not_run for row in rows)
    head = (
        "model",
        "context",
        *(("chip",) if title else ()),
        "size",
        "nodes",
        "on the CPU",
        "QAIRT",
        "compiled in",
        "memory",
        "sha256",
        *(("outputs, simulated",) if checked else ()),
    )
    right = ("size", "nodes", "on the CPU", "compiled in", "memory")
    shown = (lambda text: text[:1].upper() + text[1:]) if title else str
    cells = [
        (
            row.context.model,
            row.context.variant.name,
            *((f"{row.context.chip.title}, V{row.context.chip.htp_arch}",) if title else ()),
            wording.size(row.context.total_bytes),
            f"{row.context.npu_nodes}",
            f"{row.context.cpu_nodes}",
            row.context.qairt,
            f"{row.context.seconds:.1f} s",
            wording.size(row.context.memory_bytes),
            row.context.binary_sha256[:12],
            *((row.context.not_run or wording.outputs(row.checks),) if checked else ()),
        )
        for row in rows
    ]
    return Listing(title=title, head=tuple(map(shown, head)), rows=tuple(cells), right=tuple(map(shown, right)))
