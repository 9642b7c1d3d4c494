"""evidence/measured.md of a bundle: what was measured of what ships."""

from collections.abc import Mapping, Sequence

from device_runner import safe_text
from pipeline.check.compare import OutputCheck
from pipeline.release import choose
from pipeline.report import wording
from pipeline.report.model import CampaignReport
from pipeline.report.wording import escaped, item


def measured_text(
    report: CampaignReport, choices: Sequence[choose.Choice], checks: Mapping[str, Mapping[str, Sequence[OutputCheck]]]
) -> str:
    """What was measured of what ships, by target: devices, latencies with intervals, and the numeric check."""
    lines = [
        f"# {report.name}: what was measured",
        "",
        f"Campaign {report.campaign}.",
        "Latency is the median time of one inference; every round is a fresh process.",
        "",
    ]
    for choice in choices:
        artifact = choice.artifact
        lines += [f"## {artifact.file} for {choice.target.name}", ""]
        lines += [f"{choice.reason[:1].upper()}{choice.reason[1:]}.", ""]
        lines += [
            f"- slower than another {choose.slower_text(device, other)}" for device, other in choice.slower.items()
        ]
        lines += [""] if choice.slower else []
        key = (artifact.model, artifact.variant.name)
        rows = [row for row in report.rows if (row.model, row.variant) == key]
        if rows:
            lines.append("| device | session options | latency | medians of the rounds | p90 | rounds | peak memory |")
            lines.append("|---|---|---|---|---|---|---|")
        for row in rows:
            times = row.statistics
            medians = times.round_medians_ns if times else ()
            interval = wording.DASH
            if medians:
                interval = f"{wording.duration(min(medians))} to {wording.duration(max(medians))}"
            cells = (
                row.device,
                row.run,
                wording.duration(times.median_ns if times else None),
                interval,
                wording.duration(times.p90_ns if times else None),
                str(row.rounds),
                wording.size(row.memory_peak_bytes),
            )
            lines.append(f"| {' | '.join(safe_text.visible(cell).replace('|', '/') for cell in cells)} |")
        lines += [""] if rows else ["Not measured on any device.", ""]
        of_artifact = checks.get(artifact.model, {}).get(artifact.variant.name, ())
        given = wording.data_of(of_artifact)
        made_up = f" on one sample of {given} only" if given else ""
        where = "where the bundle was made, compared with those of the original model in this precision"
        lines += [f"Outputs{made_up} {where}:", ""]
        for check in of_artifact:
            verdict = "passed" if check.passed else "not judged" if check.unknown else "FAILED"
            reason = f"; {escaped(check.reason)}" if check.reason else ""
            lines.append(f"- {item(check.output)}: {verdict}; {wording.check_numbers(check)}{reason}")
        lines.append("")
    return "\n".join(lines)
