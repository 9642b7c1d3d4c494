"""`ort-mobile partition` and `check`: which nodes an execution provider will take, and why not the others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.callbacks import release, sizes
from pipeline.cli.command import Command, together
from pipeline.cli.data_options import data_words, dataset_from
from pipeline.cli.options import custom_ops_option
from pipeline.cli.outputs import Condition, Outputs, Watched, end, fail_on_option, json_option, sarif_option
from pipeline.cli.provider_options import (
    ProviderWords,
    chip_option,
    either,
    known_providers,
    provider_names,
    provider_options,
)
from pipeline.cli.values import one_value
from pipeline.core import providers as provider_rules

if TYPE_CHECKING:
    from device_runner import library as ort_library
    from pipeline.dataset import Dataset
    from pipeline.partition import answer as claim_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOrder:
    """What is to be done beside saying what is claimed: fixes tried, or written, and what a simulator computes."""

    advise: bool
    fix: Path | None
    simulate: bool
    test_data: str | None
    input_values: dict[str, Any]

    @property
    def data(self) -> "Dataset":
        """What outputs are compared on. It loads the config's types, which an answer out of the cache needs not."""
        return dataset_from(self.test_data, self.input_values)

    @property
    def compares(self) -> bool:
        """Whether outputs are compared."""
        return bool(self.advise or self.fix or self.simulate)


def _check_single(providers: tuple[str, ...], options: Mapping[str, object]) -> None:
    """ConfigError for an option that has a meaning for one provider only, where several are asked about."""
    from pipeline.core.errors import ConfigError

    if len(providers) > 1 and (option := next((name for name, value in options.items() if value), None)):
        raise ConfigError(
            f"--{option} is for one provider",
            why=f"these are {len(providers)}: {', '.join(providers)}",
            remedy=f"name one, as in --ep {providers[0]}",
        )


def _answers(
    paths: tuple[str, ...],
    asked: "tuple[claim_answer.Settings, ...]",
    optimize: "claim_answer.Optimize",
    jobs: int,
    advice: AdviceOrder,
    dimensions: dict[str, int],
) -> "list[tuple[claim_answer.ModelAnswer, ...]]":
    """The answers of each provider for every model."""
    from pipeline.core.errors import ConfigError
    from pipeline.model import sources as model_sources
    from pipeline.partition import answer as claim_answer
    from pipeline.partition import many as partition_many

    fix = advice.fix
    if fix:
        models = model_sources.find_models(paths, claim_answer.SUFFIXES)
        if len(models) != 1:
            raise ConfigError(
                "--fix writes one model", why=f"{len(models)} are named", remedy="name one model, or use --advise"
            )
        if fix.exists() and fix.samefile(models[0].path):
            raise ConfigError("--fix would replace the model itself", where=str(fix), remedy="name another file")
    if (advice.test_data or advice.input_values) and not advice.compares:
        raise click.UsageError(
            "--test-data and --input are what --advise, --fix and --simulate compare outputs on; add one"
        )
    simulate = advice.data if advice.simulate else None
    if simulate and not all(settings.chip for settings in asked):
        raise click.UsageError("--simulate is for qnn: only its compiler has a simulator; add --ep qnn")
    by_provider = partition_many.judge_by_provider(
        paths, asked, optimize, sizes=dimensions, processes=jobs, simulate=simulate
    )
    if not (advice.advise or fix):
        return by_provider
    from pipeline.advice import advise as advice_advise

    write_to = str(fix) if fix else ""
    return [
        advice_advise.advise_answers(
            paths,
            answers,
            settings,
            optimize,
            dimensions,
            data=advice.data,
            simulate=advice.simulate,
            write_to=write_to,
            processes=jobs,
        )
        for answers, settings in zip(by_provider, asked, strict=True)
    ]


def _open(
    reference: str, provider: str, release: str, abi: str, advice: AdviceOrder
) -> "tuple[ort_library.LibraryFacts, str]":
    """The library to ask, and the release whose rules stand beside it."""
    from pipeline.core.errors import ConfigError
    from pipeline.partition import reference as partition_reference

    facts = partition_reference.open_reference(reference, provider, release, abi)
    if (advice.advise or advice.fix) and not partition_reference.rules_known(facts):
        raise ConfigError(
            "there is no advice for this release",
            why=f"there are no rules for {facts.release}, whose claims are the library's own",
            remedy="leave --advise and --fix out, or ask a library of a release with rules",
        )
    return facts, partition_reference.rules_release(facts, release)


def _problems(documents: "Sequence[claim_answer.PartitionDocument]", fix: Path | None) -> Iterator[str]:
    """What the exit code stands for beside models without an answer."""
    from pipeline.advice import verdict as advice_verdict

    for document in documents:
        if document.reference and document.exit_code:
            from pipeline.report import partition as report_partition

            yield report_partition.summary(document.reference)
            yield from (
                f"{model.path}: no answer of the library: {model.error}"
                for model in document.reference.models
                if model.error
            )
        for answer in document.models if fix else ():
            if isinstance(answer, advice_verdict.AdvisedAnswer) and not answer.advice.wrote:
                why = answer.advice.error or "no fix gains anything"
                yield f"{answer.path}: nothing was written to {fix}: {why}"


def _exit_code(document: "claim_answer.PartitionDocument", fix: Path | None) -> int:
    """1 where a model has no answer, or the file of --fix could not be written; else that of the document."""
    from pipeline.advice import verdict as advice_verdict
    from pipeline.core import errors as core_errors

    wrote = any(answer.advice.wrote for answer in document.models if isinstance(answer, advice_verdict.AdvisedAnswer))
    failed = any(answer.error for answer in document.models) or (fix and not wrote)
    return max(core_errors.ExitCode.SOME_FAILED if failed else core_errors.ExitCode.DONE, document.exit_code)


def _show(documents: "Sequence[claim_answer.PartitionDocument]", outputs: Outputs) -> None:
    """Models without an answer on stderr, and the answers on stdout unless there is to be no text."""
    from pipeline.report import partition as report_partition
    from pipeline.report import show as terminal

    shown = [answer for document in documents for answer in document.models]
    terminal.show(report_partition.failed_models(shown), err=True)
    if outputs.text:
        for document in documents:
            terminal.show(report_partition.answer_parts(document.complete))
            if document.reference:
                report_partition.show_reference(document.reference)
        terminal.show(report_partition.chip_parts(shown))


def _draw(shown: "Sequence[claim_answer.ModelAnswer]", svg: Path | None, page: Path | None) -> None:
    """Write the picture and the page that are asked for; ConfigError for a picture of several models."""
    from pipeline.core import files as storage
    from pipeline.core.errors import ConfigError

    if svg and len(shown) != 1:
        remedy = "name one model, or leave --svg out"
        raise ConfigError("--svg draws one model", why=f"{len(shown)} are named", remedy=remedy)
    if svg and not shown[0].error:
        from pipeline.partition import placement as node_placement

        storage.write_text(svg, node_placement.draw(shown[0]))
    if page:
        from pipeline.report import html

        storage.write_text(page, html.render_answers(shown))


def _watched(answers: "Iterable[claim_answer.ModelAnswer]") -> Iterator[Watched]:
    """What conditions are asked about: each model with each provider that could be judged."""
    from pipeline.core import errors as core_errors

    for answer in answers:
        if not answer.error:
            shares = {"coverage": answer.claimed / answer.nodes} if answer.nodes else {}
            yield Watched(
                answer.path,
                answer.ep,
                {"partitions": len(answer.partitions), **shares},
                answer.refused_operators,
                tuple(core_errors.warning(text, answer.path) for text in answer.warnings),
            )


_release_option = click.option(
    "--ort-release", callback=release, metavar="X.Y", help="ONNX Runtime in the app.  [default: the installed one]"
)
_advice_options = together(
    data_words,
    click.option("--advise", is_flag=True, help="Try fixes of the model, and show what each gains."),
    click.option(
        "--fix",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the model with the best combination of fixes; implies --advise.",
    ),
    click.option("--simulate", is_flag=True, help="Run the model in the chip's simulator and compare its outputs."),
    one_value("advice", AdviceOrder, *(field.name for field in fields(AdviceOrder))),
)


@click.command(
    cls=Command,
    examples=(
        "ort-mobile partition my.onnx --ep nnapi",
        "ort-mobile partition my.onnx --ep coreml-mlprogram --advise --json claims.json",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--ep",
    "providers",
    callback=provider_names(provider_rules.PROVIDER_RULES),
    multiple=True,
    metavar="EP,…",
    help=f"{either(known_providers(), ', or ')}; may be repeated.  [default: all, qnn with --chip]",
)
@chip_option
@click.option(
    "--optimize",
    type=click.Choice(["none", "basic"]),
    default="none",
    show_default=True,
    help="Analyse the file as it is, or after optimization level basic.",
)
@_release_option
@click.option(
    "--reference",
    default="",
    metavar="LIBRARY",
    help="Compare the claims with those of an Android library: an AAR, a .so, or an available release.",
)
@provider_options
@_advice_options
@click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    callback=sizes,
    metavar="NAME=N",
    help="Size of a dynamic dimension, by its name or as INPUT[AXIS]; default: 1.",
)
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the graph of one model with its partitions.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page with a box for each partition, leading to its nodes with reasons.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Models to analyse in parallel.")
@fail_on_option(("partitions", "coverage"), operators=True)
@sarif_option
@json_option
@click.pass_context
def partition(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    providers: tuple[str, ...],
    optimize: str,
    ort_release: str,
    reference: str,
    svg: Path | None,
    page: Path | None,
    jobs: int,
    chips: tuple[str, ...],
    provider_words: ProviderWords,
    advice: AdviceOrder,
    dimensions: dict[str, int],
    fail_on: tuple[Condition, ...],
    outputs: Outputs,
) -> None:
    """Show which nodes of .onnx and .ort models an execution provider supports, and why not the rest.

    `ort-mobile check` is this in short, for all providers at once.

    PATHs are files, folders or zip archives. A model that cannot be analysed is reported, the others are analysed, and
    the exit code is 1. With --reference the exit code is 4 if the library's claims differ; for a release without
    rules, the library's claims are the answer.
    """
    from pipeline.partition import answer as claim_answer

    by_chip = tuple(name for name, provider in provider_rules.PROVIDER_RULES.items() if provider.by_chip)
    if chips and providers and not set(by_chip) & set(providers):
        raise click.UsageError(f"--chip is for {either(by_chip)}: add it to --ep")
    providers = providers or (*provider_rules.on_any_chip(), *(by_chip if chips else ()))
    _check_single(providers, {"reference": reference})
    facts, release = None, ort_release
    if reference:
        abi = provider_words.settings(providers, "", chips)[0].abi if provider_words.abi else ""
        facts, release = _open(reference, providers[0], ort_release, abi, advice)
        provider_words = replace(provider_words, abi=facts.abi)
    asked = provider_words.settings(providers, release, chips)
    names = tuple(" --chip ".join(filter(None, (settings.provider, settings.chip))) for settings in asked)
    _check_single(names, {"svg": svg, "fix": advice.fix})
    by_provider = _answers(paths, asked, claim_answer.Optimize(optimize), jobs, advice, dimensions)
    documents = [claim_answer.PartitionDocument(models=models) for models in by_provider]
    if facts:
        from pipeline.partition import reference as partition_reference

        compared = partition_reference.compare_answers(
            paths,
            by_provider[0],
            facts,
            asked[0],
            claim_answer.Optimize(optimize),
            sizes=dimensions,
            processes=jobs,
        )
        documents = [compared]
    pairs = zip(asked, by_provider, strict=True)
    several = {"providers": [{"ep": of.provider, "chip": of.chip, "models": models} for of, models in pairs]}
    shown = [answer for document in documents for answer in document.models]
    outputs.write_json(documents[0] if len(documents) == 1 else several)
    _show(documents, outputs)
    outputs.show_errors(_problems(documents, advice.fix))
    if outputs.for_ci:
        from pipeline.report import ci_parts

        outputs.write_ci(ci_parts.of_partition(shown))
    _draw(shown, svg, page)
    code = max(_exit_code(document, advice.fix) for document in documents)
    ctx.exit(end(fail_on, _watched(answer for models in by_provider for answer in models), code))


@click.command(
    cls=Command,
    examples=(
        "ort-mobile check my.onnx",
        "ort-mobile check my.onnx --dimension height=320 --dimension width=320",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    callback=sizes,
    metavar="NAME=N",
    help="Size of a dynamic dimension, by its name or as INPUT[AXIS]; a likely one when left out.",
)
@_release_option
@provider_options
@chip_option
@custom_ops_option
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Models at once.")
@fail_on_option(("partitions", "coverage"), operators=True)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    dimensions: dict[str, int],
    ort_release: str,
    jobs: int,
    chips: tuple[str, ...],
    provider_words: ProviderWords,
    fail_on: tuple[Condition, ...],
    outputs: Outputs,
) -> None:
    """Show how much of a model each execution provider supports, which to try first on which phones, and what helps.

    That are NNAPI, CoreML, XNNPACK, WebGPU (GPUs), with --chip the NPU of a Snapdragon, and the CPU.

    This is `ort-mobile partition` in short, which shows each node, and makes fixes.

    PATHs are .onnx and .ort files, folders or zip archives. Each model is judged as it is and, where dimensions are
    dynamic, with sizes for them; for the API level and the Core ML version that the heading names and, where these are
    not given and the verdict is another one, for the oldest (27 and 5). A model that cannot be judged is reported and
    does not cost the others; the exit code is then 1. Verdicts never change the exit code: --fail-on says what does, of
    the model with sizes where it has dynamic dimensions.
    """
    from pipeline.advice import fitness
    from pipeline.core import errors as core_errors
    from pipeline.report import partition as report_partition
    from pipeline.report import show as terminal

    providers = tuple(provider_rules.PROVIDER_RULES) if chips else provider_rules.on_any_chip()
    settings = provider_words.settings(providers, ort_release, chips)
    oldest = provider_words.of_oldest().settings(providers, ort_release, chips)
    document = fitness.check_models(paths, settings, dimensions, oldest=oldest, processes=jobs)
    outputs.write_json(document)
    terminal.show(report_partition.failed_models(document.models), err=True)
    if outputs.text:
        terminal.show(report_partition.fit_lines(document))
    watched = []
    for model in document.models:
        notes = [core_errors.warning(note, model.path) for note in model.notes]
        for row in model.rows:
            # The CPU runs every node, and partitions of what computes there cost nothing: neither is counted.
            fit, measures = row.fit, dict[str, float]()
            if fit.partitions is not None:
                shares = {"coverage": fit.supported / fit.nodes} if fit.nodes else {}
                measures = {"partitions": fit.partitions, **shares}
            watched.append(Watched(model.path, row.ep, measures, fit.refused, notes))
    code = (
        core_errors.ExitCode.SOME_FAILED if any(model.error for model in document.models) else core_errors.ExitCode.DONE
    )
    ctx.exit(end(fail_on, watched, code))
