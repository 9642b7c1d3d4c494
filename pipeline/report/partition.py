"""What `ort-mobile partition`, its `--advise` and `ort-mobile check` show in the terminal."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from device_runner import providers as runner_providers
from device_runner import safe_text
from pipeline.advice import verdict as advice_verdict
from pipeline.core import groups as counting
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.partition import answer as claim_answer
from pipeline.report.show import show
from pipeline.report.wording import Line, Listing, Part, size

if TYPE_CHECKING:  # what only some commands show is not loaded by all
    from pipeline.advice import fitness

CHOICE_COLOURS = {
    advice_verdict.FixChoice.USE: "green",
    advice_verdict.FixChoice.MEASURE: "yellow",
    advice_verdict.FixChoice.CPU: "red",
}


def verdict_line(verdict: advice_verdict.AdviceVerdict, head: str = "  verdict") -> Line:
    """The verdict with its reason."""
    return Line(f"{head}: ", (verdict.choice.value, f"bold {CHOICE_COLOURS[verdict.choice]}"), f": {verdict.reason}")


def advice_lines(advice: advice_verdict.Advice) -> Iterator[Line]:
    """What each fix gains, why others do not, and the best combination."""
    if advice.error:
        yield Line("  ", ("no advice:", "bold red"), f" {advice.error}")
        return
    gains = [result for result in advice.fixes if result.outcome is advice_verdict.FixOutcome.GAINS]
    if gains:
        yield Line("  ", ("fixes", "bold"), ", each applied alone, partitioned again and compared:")
    else:
        yield Line("  no fix gains anything")
    for result in gains:
        yield Line("    ", (result.name, "green"), f" ({result.title}): {result.gain}{_error(result)}")
    for result in advice.fixes:
        if result.outcome is advice_verdict.FixOutcome.REJECTED:
            yield Line("    ", (result.name, "yellow"), f" rejected: {result.why}")
    for outcome in (advice_verdict.FixOutcome.NO_GAIN, advice_verdict.FixOutcome.NOT_APPLICABLE):
        names = [result.name for result in advice.fixes if result.outcome is outcome]
        if names:
            yield Line("    ", (f"{outcome.value}: {', '.join(names)}", "dim"))
    if advice.precision:
        yield Line(f"  {advice.precision}")
    if advice.copied:
        yield Line(f"  nothing to improve in the model itself; copied unchanged to {advice.copied}")
    if advice.best:
        yield from _best_lines(advice.best)
    if gains:
        yield Line("  ", (f"compared on {advice.checked_on}", "dim"))


def _error(result: advice_verdict.FixResult | advice_verdict.Combination) -> str:
    """The numeric error in words."""
    if result.error is None:
        return ""
    if result.error == 0:
        return ", outputs equal"
    if result.tolerance is not None and result.error > result.tolerance:
        if result.limit is not None and (result.absolute_error or 0.0) <= result.limit:
            return f", absolute error {result.absolute_error:.1g} of {result.limit:.1g} allowed"
        return f", relative error {result.error:.1g} where {result.tolerance:g} is usual: ask `accuracy` with test data"
    return f", relative error {result.error:.1g} of {result.tolerance:g} allowed"


def _best_lines(best: advice_verdict.Combination) -> Iterator[Line]:
    yield Line("  ", ("best together", "bold"), f": {' + '.join(best.fixes)}: {best.gain}{_error(best)}")
    for setting in best.settings:
        yield Line(f"    needs the setting {setting}")
    if best.simulated:
        yield from (Line("  ", *line.spans) for line in _simulated(best.simulated))
    yield verdict_line(best.verdict, "    verdict then")
    if best.written:
        yield Line(f"    written to {best.written}")


COLOURS = {"yes": "green", "maybe": "yellow", "no": "red"}
HEAD = ("nodes", "partitions", "fit")
MOST_NAMES = 6
GUIDANCE = (
    "Fit follows ONNX Runtime's own guidance (its mobile usability checker): yes for one partition with over 75 % of "
    "the nodes, maybe for one with over 50 % or two with over 75 %, else no. It has none for XNNPACK, which computes "
    "on the CPU: here maybe from over 50 % on. And none for WebGPU, which copies values where nodes are left to the "
    "CPU: here yes up to 2 copies, maybe up to 4. Measure on a phone before you decide."
)


def fit_lines(document: "fitness.FitDocument") -> Iterator[Line]:
    """The answers, but for models that could not be judged."""
    good = [model for model in document.models if not model.error]
    for model in good:
        yield from _fit(
            model,
            [
                ort_releases.by_rules(ort_releases.line_of(document.ort_release)),
                *dict.fromkeys(document.levels.values()),
            ],
        )
    if good:
        yield Line((GUIDANCE, "dim"))


def _fit(model: "fitness.ModelFit", judged_for: Sequence[str]) -> Iterator[Line]:
    opset = f", opset {model.opset}" if model.opset else ""
    nodes = counting.counted(model.nodes, "node")
    yield Line((model.path, "bold"), f": {nodes}{opset}, ONNX Runtime {', '.join(judged_for)}")
    if model.ends:
        yield Line(
            f"{model.ends} nodes make tensors of the app's data and back: they run on the CPU, and are not counted"
        )
    if model.dynamic:
        guessed = f"; guessed: {_named(model.guessed)}" if model.guessed and model.sizes else ""
        yield Line(f"dynamic dimensions: {_named(model.dynamic)}{guessed}")
    yield Line()
    yield from _table(model)
    yield Line()
    for row in _all_rows(model):
        if not runner_providers.on_cpu(row.ep) or row.fit.verdict != "yes":
            title = provider_rules.PROVIDER_RULES[row.ep].title if row.ep in provider_rules.PROVIDER_RULES else ""
            yield Line(f"{_title(row)}: {row.fit.reason.removeprefix(f'{title} ')}")
    yield from (Line(), Line(("Try first:", "bold")))  # on which phones
    for choice in model.first:
        names = [provider_rules.PROVIDER_RULES[name].title for name in choice.providers]
        if choice.ask:
            yield Line(f"{choice.phones}: {choice.reason}; ask about it with {choice.ask}", indent=2)
            continue
        yield Line(f"{choice.phones}: {', then '.join([*names, 'the CPU'])}", indent=2)
        yield Line(choice.reason, indent=4)
    yield from _helps(model)
    for note in model.notes:
        yield Line(("note:", "yellow"), f" {note}")
    best = [name for choice in model.first for name in choice.providers[:1]]
    yield Line(f"Details: {_command(model, *best)}", wrap=False)
    yield Line()


def _all_rows(model: "fitness.ModelFit") -> "list[fitness.FitRow]":
    """Each provider's, and behind it what differs on the oldest systems."""
    return [fit_row for row in model.rows for fit_row in (row, *(old for old in model.oldest if old.ep == row.ep))]


def _title(row: "fitness.FitRow") -> str:
    """Of a provider with rules, or of the CPU."""
    title = (provider_rules.PROVIDER_RULES.get(row.ep) or runner_providers.provider_named(row.ep)).title
    system = f"{row.chip} ({runner_providers.CHIPS[row.chip].title})" if row.chip else row.level
    return f"{title}, {system}" if system else title


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _table(model: "fitness.ModelFit") -> Iterator[Line]:
    """Columns for the model as it is, and beside them with sizes."""
    sides = ["as it is"]
    if any(row.fixed for row in model.rows):
        sides.append(safe_text.visible(f"with {_named(_sizes(model.sizes))}"))
    table = [[*HEAD] * len(sides)]
    for row in _all_rows(model):
        cells: list[str] = []
        for fit in (fit for fit in (row.as_is, row.fixed) if fit):
            borders = fit.partitions if fit.copies is None else f"{fit.copies} cop{'y' if fit.copies == 1 else 'ies'}"
            cells += (f"{fit.supported}/{fit.nodes}", "-" if borders is None else str(borders), fit.verdict)
        table.append(cells)
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    titles = [_title(row) for row in _all_rows(model)]
    first = max(len(title) for title in titles)
    side_width = sum(widths[: len(HEAD)]) + 2 * len(HEAD)
    yield Line((" " * first + "".join(f"  {side:<{side_width - 2}}" for side in sides)).rstrip(), wrap=False)
    for name, line in zip(["", *titles], table, strict=True):
        spans: list[str | tuple[str, str]] = [f"{name:<{first}}"]
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            # Numbers to the right, verdicts to the left and in colour
            verdicts = column % len(HEAD) == len(HEAD) - 1
            last = column == len(line) - 1
            padded = cell if last else f"{cell:<{width}}"
            spans += ["  ", (padded, COLOURS.get(cell, ""))] if verdicts else [f"  {cell:>{width}}"]
        yield Line(*spans, wrap=False)


def _sizes(sizes: Mapping[str, int]) -> list[str]:
    return [f"{name}={number}" for name, number in sizes.items()]


def _helps(model: "fitness.ModelFit") -> Iterator[Line]:
    if not model.helps:
        return
    yield from (Line(), Line(("What would help most:", "bold")))
    for number, remedy in enumerate(model.helps, 1):
        worse = ", ".join(provider_rules.PROVIDER_RULES[ep].title for ep in remedy.losses)
        yield Line(f"{number}. {remedy.what}" + (f", which is worse for {worse}" if worse else ""), indent=2)
        for changes, mark in ((remedy.gains, ""), (remedy.losses, "worse: ")):
            for ep, change in changes.items():
                yield Line(f"{mark}{provider_rules.PROVIDER_RULES[ep].title}: {change}", indent=5)
        if remedy.reason:
            yield Line(f"because {remedy.reason}" + (f"; {remedy.remedy}" if remedy.remedy else ""), indent=5)
    if model.path.lower().endswith(".ort"):
        what = "An ORT format file cannot be changed: ask about the ONNX model that it was made from"
        yield Line(what, indent=2)
    elif best := next((ep for remedy in model.helps for ep in remedy.gains), None):
        yield Line(f"  Try what can be done automatically: {_command(model, best)} --advise", wrap=False)
    yield Line()


def _command(model: "fitness.ModelFit", *eps: str) -> str:
    """The command that shows everything behind the last column of the table, for some providers; all where none is."""
    words = ["ort-mobile", "partition", model.path]
    if model.optimize is claim_answer.Optimize.BASIC:
        words += ["--optimize", "basic"]
    words += [word for text in _sizes(model.sizes) for word in ("--dimension", text)]
    words += ["--ep", ",".join(eps)] if eps else []
    if any(provider_rules.PROVIDER_RULES[ep].by_chip for ep in eps):
        words += ["--chip", ",".join(row.chip for row in model.rows if row.chip)]
    for layout in (row.level for row in model.rows if row.ep in provider_rules.with_copies(eps) and row.level):
        words += ["--webgpu-options", layout]
    return shlex.join(words)


MOST_DETAILED = 20
"""Up to so many models are shown with their cuts and reasons; more of them as one line each."""

MOST_CUTS = 8
MOST_REASONS = 12
MOST_LINES = 200
MOST_SIZES = 12
MOST_OPERATORS = 4


def failed_models(answers: "Iterable[claim_answer.ModelAnswer | fitness.ModelFit]") -> Iterator[Line]:
    """Models that could not be judged, once for all providers that say the same; for stderr."""
    failures = dict.fromkeys((answer.path, answer.error, answer.remedy) for answer in answers if answer.error)
    for path, error, remedy in failures:
        yield Line(("error:", "bold red"), f" {path}: {error}")
        if remedy:
            yield Line("  ", ("remedy:", "cyan"), f" {remedy}")


def answer_parts(answers: Sequence[claim_answer.ModelAnswer]) -> Iterator[Part]:
    """The answers of one provider, but for models that could not be judged."""
    good = [answer for answer in answers if not answer.error]
    if len(good) <= MOST_DETAILED:
        for answer in good:
            yield from _model(answer)
        return
    rows = []
    for answer in good[:MOST_LINES]:
        advice = _advice(answer)
        best = advice.best if advice else None
        rows.append(
            (
                answer.path,
                str(answer.nodes),
                f"{claim_answer.percent_of(answer.claimed, answer.nodes)} %",
                str(answer.borders),
                FAILS if answer.load and answer.load.error else "",
                advice_verdict.verdict(advice_verdict.standing_of(answer), answer.ep).choice.value,
                f"{' + '.join(best.fixes)}: {best.gain}" if best else "",
            )
        )
    borders = "partitions" if good[0].copies is None else "copies"
    head = ("model", "nodes", "supported", borders, "load", "verdict", "best fixes")
    if len(good) > MOST_LINES:
        rows.append((f"… {len(good) - MOST_LINES} more: --json has all", "", "", "", "", "", ""))
    right = ("nodes", "supported", borders)
    yield Listing(title="", head=head, rows=tuple(rows), right=right, marks={FAILS: "red"})


def _advice(answer: claim_answer.ModelAnswer) -> advice_verdict.Advice | None:
    return answer.advice if isinstance(answer, advice_verdict.AdvisedAnswer) else None


FAILS = "fails"
"""Of a model that does not load."""


def _model(answer: claim_answer.ModelAnswer) -> Iterator[Line]:
    yield Line((answer.path, "bold"), f"  {answer.asked_text}, ONNX Runtime {answer.release_text}")
    sizes = [len(group) for group in answer.partitions]
    by_copies = answer.copies is not None
    yield Line(
        f"  {answer.claimed} of {answer.nodes} nodes supported "
        f"({claim_answer.percent_of(answer.claimed, answer.nodes)} %)"
    )
    if answer.ends:
        yield Line(f"  {answer.ends_text}")
    if by_copies:
        copies = provider_rules.PROVIDER_RULES[answer.ep].borders(answer.borders, about=answer.copies_estimated)
        yield Line(f"  {copies} between GPU and CPU per inference")
    else:
        yield Line(f"  {counting.counted(len(sizes), 'partition')}" + (f" ({_listed(sizes)})" if sizes else ""))
    if answer.given_bytes is not None and answer.taken_bytes is not None and sizes:
        yield Line(f"  per inference {size(answer.given_bytes)} go into partitions, {size(answer.taken_bytes)} out")
    if answer.fixed:
        # Of a model with dynamic dimensions: what it is about, and what sizes would give
        fixed = answer.fixed
        yield Line("  ", ("dimensions are dynamic:", "yellow"), f" {', '.join(answer.dynamic)}")
        named = ", ".join(_sizes(fixed.sizes))
        standing = advice_verdict.ProviderSupport(
            nodes=fixed.nodes,
            claimed=fixed.claimed,
            partitions=fixed.partitions,
            copies=fixed.copies,
            about=fixed.copies_estimated,
            load_error=fixed.load.error if fixed.load else None,
            at_run=bool(fixed.load and fixed.load.at_run),
        )
        joined = "in" if fixed.copies is None else "with"
        borders = provider_rules.PROVIDER_RULES[answer.ep].borders(standing.borders, about=standing.about)
        yield Line(
            ("  with fixed sizes", "bold"),
            f", as {named}: {fixed.claimed} of {fixed.nodes} nodes ({standing.percent} %) {joined} "
            f"{borders or counting.counted(fixed.partitions, 'partition')}",
        )
        yield verdict_line(advice_verdict.verdict(standing, answer.ep))
        text = " give the sizes of your app with --dimension NAME=N; with --fix FILE they are written"
        yield Line(("  remedy:", "cyan"), text)
    for body in answer.subgraphs:
        kind = "supported node" if by_copies else "partition"
        yield Line(f"  inside {body.owner}: {counting.counted(len(body.partitions), kind)}")
    if answer.load and answer.load.error:
        yield Line("  ", (f"{answer.load.what}:", "bold red"), f" {answer.load.error}")
        yield Line("    ", ("remedy:", "cyan"), f" {answer.load.remedy or ''}")
    elif answer.load and not by_copies:
        about = "about " if answer.load.estimate else ""
        yield Line(f"  {about}{counting.counted(answer.load.compiled, 'node')} compiled by the EP at load")
    if answer.simulated:
        yield from _simulated(answer.simulated)
    if not answer.fixed or advice_verdict.standing_of(answer).wrong:
        yield verdict_line(advice_verdict.verdict(advice_verdict.standing_of(answer), answer.ep))
    yield from _cuts(answer)
    yield from _reasons(answer)
    if advice := _advice(answer):
        yield from advice_lines(advice)
    for warning in answer.warnings:
        yield Line("  ", ("note:", "yellow"), f" {warning}")
    yield Line()


def _simulated(simulation: claim_answer.Simulation) -> Iterator[Line]:
    """What the simulator computes; never how fast."""
    error, limit = simulation.error, simulation.limit
    if simulation.passed and simulation.sqnr_db is not None:
        cpu = "equal" if simulation.cpu_sqnr_db is None else f"{simulation.cpu_sqnr_db:.1f} dB"
        near = f": {simulation.sqnr_db:.1f} dB to the original, on the CPU {cpu}, on {simulation.data}"
        how = ("with more noise than on the CPU", "yellow") if simulation.noisy else ("as on the CPU", "green")
        yield Line("  simulated: ", how, near)
        return
    off = "" if error is None else f", off by {error:.2g}" + ("" if limit is None else f", allowed is {limit:.2g}")
    if simulation.passed:
        yield Line("  simulated: ", ("the outputs are right", "green"), f"{off}, on {simulation.data}")
        return
    where = f"first at {simulation.op_type} with the output '{simulation.first}': " if simulation.first else ""
    if simulation.passed is None:
        yield Line("  simulated: ", ("not known", "yellow"), f": {where}{simulation.reason}")
    else:
        output = f": output '{simulation.output}'{off}" if simulation.output else ""
        yield Line("  simulated: ", ("computes something else", "bold red"), output)
        yield Line(f"    {where}{simulation.reason}")
    if simulation.remedy:
        yield Line("    ", ("remedy:", "cyan"), f" {simulation.remedy}")


def _listed(sizes: Sequence[int]) -> str:
    """As in `10 and 1 nodes`."""
    shown = list(map(str, sizes[:MOST_SIZES]))
    if len(sizes) > MOST_SIZES:
        shown.append(f"{len(sizes) - MOST_SIZES} more partitions")
    text = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return text if len(sizes) > MOST_SIZES else f"{text} node{'s' * (sizes != [1])}"


def _cuts(answer: claim_answer.ModelAnswer) -> Iterator[Line]:
    if not answer.cuts:
        return
    yield Line(
        ("  unsupported nodes between supported ones or beside them", "bold"),
        ", and what supporting each alone would give:",
    )
    for cut in answer.cuts[:MOST_CUTS]:
        counts = "partitions" if cut.copies is None else "copies"
        after = cut.partitions if cut.copies is None else cut.copies
        gain = f"{counts} {answer.borders} → {after}, nodes {answer.claimed} → {cut.claimed}"
        yield Line(f"    {cut.op_type} with the output ", (cut.output, "dim"), f": {gain}")
        yield Line(f"      {cut.reason}")
        if cut.remedy:
            yield Line("      ", ("remedy:", "cyan"), f" {cut.remedy}")
    if len(answer.cuts) > MOST_CUTS:
        yield Line(f"    … {len(answer.cuts) - MOST_CUTS} more")


def _reasons(answer: claim_answer.ModelAnswer) -> Iterator[Line]:
    """Reasons of all refused nodes; those that differ in names and shapes alone once, with one of them in full."""
    refused = counting.grouped(
        ((claim_answer.same_reason(decision.reason or ""), decision.remedy or ""), decision)
        for decision in answer.decisions
        if not decision.claimed
    )
    if refused:
        yield Line("  ", ("nodes that are not supported:", "bold"))
    ranked = sorted(refused.items(), key=lambda pair: -len(pair[1]))
    for (_, remedy), alike in ranked[:MOST_REASONS]:
        tail = (" ", (f"({remedy})", "cyan")) if remedy else ()
        other = "for example " if len({decision.reason for decision in alike}) > 1 else ""
        yield Line(f"    {len(alike)} x {_operators(alike)}: {other}{alike[0].reason or ''}", *tail)
    if len(ranked) > MOST_REASONS:
        yield Line(f"    … {len(ranked) - MOST_REASONS} more reasons: --json has all")


def _operators(alike: Sequence[claim_answer.Decision]) -> str:
    """As in `Conv, Relu and 4 more`, the commonest first."""
    names = [name for name, _ in Counter(decision.op_type for decision in alike).most_common()]
    more = len(names) - MOST_OPERATORS
    return ", ".join(names[:MOST_OPERATORS]) + (f" and {more} more" if more > 0 else "")


def chip_parts(answers: Sequence[claim_answer.ModelAnswer]) -> Iterator[Part]:
    """Where the chips that were asked about differ, model by model."""
    for path, rows in counting.grouped(
        (answer.path, answer) for answer in answers if answer.chip and not answer.error
    ).items():
        if len({(row.partitions, row.load and row.load.code) for row in rows}) < 2:
            continue
        yield Listing(
            title=f"{path}: the chips differ",
            head=("chip", "nodes", "partitions", "load"),
            rows=tuple(
                (
                    f"{row.chip} ({runner_providers.CHIPS[row.chip].title})",
                    f"{row.claimed} of {row.nodes}",
                    str(len(row.partitions)),
                    FAILS if row.load and row.load.error else "",
                )
                for row in rows
            ),
            right=("nodes", "partitions"),
            marks={FAILS: "red"},
        )
        taken = Counter(name for row in rows for group in row.partitions for name in group)
        differing = sorted(name for name, times in taken.items() if times < len(rows))
        if differing:
            more = f" and {len(differing) - MOST_NAMES} more" if len(differing) > MOST_NAMES else ""
            yield Line(f"  taken by some of them only: {', '.join(differing[:MOST_NAMES])}{more}")
        yield Line()


MOST_NODES = 60
"""Up to so many nodes of one model are all listed; of larger ones those that differ."""

DIFFERENT = "≠"

MOST_DIFFERENT = 40
"""So many differing nodes of one model are listed; the JSON has all."""


def show_reference(reference: "claim_answer.LibraryReference") -> None:
    """Print models beside one another, what differs with both reasons, and one line that sums up; to stdout."""
    few = len(reference.models) <= MOST_DETAILED
    for model in reference.models:
        if model.error and reference.rules:  # without rules it is an error of the answer, which was shown
            show([Line(("no answer of the library:", "bold red"), f" {model.path}: {model.error}")], err=True)
        elif model.asked and not model.error and (few or model.same is False):
            everything = few and len(model.nodes) <= MOST_NODES
            nodes = [node for node in model.nodes if everything or node.different]
            parts: list[Part] = [Line((model.path, "bold"), "  ", *_verdict(model), wrap=False)]
            parts += [_nodes(nodes[: len(nodes) if everything else MOST_DIFFERENT])] if nodes else []
            if len(nodes) > MOST_DIFFERENT and not everything:
                parts.append(Line(f"  … {len(nodes) - MOST_DIFFERENT} more: --json has all"))
            parts += [Line("  ", ("note:", "yellow"), f" {note}") for note in model.notes]
            show([*parts, Line()])
    show([Line(summary(reference), wrap=False)])


def summary(reference: "claim_answer.LibraryReference") -> str:
    """How many models differ, by which library."""
    library = f"libonnxruntime {reference.release or 'of unknown release'}"
    library += f" for {reference.abi} (sha256 {reference.sha256[:12]})"
    failed = sum(bool(model.error) for model in reference.models)
    silent = f", {failed} without an answer of the library" if failed else ""
    answered = sum(model.asked for model in reference.models) - failed
    models = counting.counted(answered, "model")
    if not reference.rules:
        return f"{models}: no rules for this release, the claims are those of {library}{silent}"
    return f"{models} checked against {library}: {reference.different} different{silent}"


def _verdict(model: "claim_answer.ClaimDiff") -> Iterator[str | tuple[str, str]]:
    # A provider that takes each node by itself has no partitions: theirs are its nodes.
    ours = [node.ours for node in model.nodes if node.ours and node.ours.claimed]
    unit = "node" if ours and all(side.partition is None for side in ours) else "partition"
    partitions = counting.counted(model.library_partitions, unit)
    if model.same is None:
        claimed = sum(node.library is not None and node.library.claimed for node in model.nodes)
        yield f"the library claims {claimed} of {len(model.nodes)} nodes, {partitions}"
    elif model.same:
        yield from (("the same claims", "green"), f", {partitions}")
    else:
        different = sum(node.different for node in model.nodes)
        yield "1 node differs" if different == 1 else f"{different} nodes differ", "bold red"
        yield f": ours {counting.counted(model.our_partitions or 0, unit)}, the library's {partitions}"


def _nodes(nodes: "Sequence[claim_answer.NodeDiff]") -> Listing:
    """Without rules for the release there is no column for ours."""
    ours = any(node.ours for node in nodes)
    rows = (
        (
            DIFFERENT if node.different else "",
            node.output,
            node.op_type,
            *map(_words, [node.ours, node.library] if ours else [node.library]),
        )
        for node in nodes
    )
    head = ("", "node", "operator", *(["ours"] if ours else []), "library")
    return Listing(title="", head=head, rows=tuple(rows), marks={DIFFERENT: "red"})


def _words(side: "claim_answer.Side | None") -> str:
    if side is None:
        return "-"
    if side.claimed:
        return "claimed" if side.partition is None else f"partition {side.partition + 1}"
    return f"CPU: {side.reason}" if side.reason else "CPU"
