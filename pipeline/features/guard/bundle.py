"""The self-tests of a bundle's models: made from what it keeps of their originals, then judged at the desk."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import providers as runner_providers
from device_runner.spec import RunOptions
from pipeline.campaign import run_options
from pipeline.core import providers as provider_rules
from pipeline.core import workers
from pipeline.core.errors import PipelineError
from pipeline.features.guard import desk, selftest
from pipeline.features.guard.order import Order, orders, tried
from pipeline.release import manifest as bundle_manifest
from pipeline.release import self_test


def self_tests(bundle: Path, manifest: bundle_manifest.Manifest, target: str) -> dict[str, self_test.SelfTest]:
    """By model that something else than the CPU runs: its self-test, and what the desk found of it."""
    wanted = {order.model: order for order in orders(bundle, manifest, target)}
    found = {
        model: self_test.SelfTest(model=model, none="the bundle keeps no outputs of the original")
        for model in tried(manifest, target)
        if model not in wanted
    }
    tasks = [workers.Task(label=model, call=partial(selftest.made, order)) for model, order in wanted.items()]
    for outcome in workers.run_tasks(tasks) if tasks else ():
        model = outcome.task.label
        found[model] = outcome.value or self_test.SelfTest(model=model, none=_why(outcome.error))
    judging = [
        workers.Task(label=model, call=partial(with_verdicts, order, found[model]))
        for model, order in wanted.items()
        if found[model].data
    ]
    for verdict in workers.run_tasks(judging) if judging else ():
        model = verdict.task.label
        found[model] = verdict.value or _not_judged(wanted[model], found[model], _why(verdict.error))
    return found


def with_verdicts(order: Order, test: self_test.SelfTest) -> self_test.SelfTest:
    """The self-test with what the desk finds of each way."""
    with runner_files.scratch_folder() as work:
        ways = desk.judged(tuple(_ways(order)), Path(order.bundle), test.data, order.outputs, order.library, work)
        return msgspec.structs.replace(test, ways=tuple(ways))


def _not_judged(order: Order, test: self_test.SelfTest, why: str) -> self_test.SelfTest:
    verdict = self_test.DeskVerdict.NOT_JUDGED
    ways = (self_test.JudgedWay(file=way.file, run=way.run, verdict=verdict, why=why) for way in _ways(order))
    return msgspec.structs.replace(test, ways=tuple(ways))


def _ways(order: Order) -> Iterator[desk.DeskWay]:
    for file in order.files:
        for options in file.runs:
            name = run_options.options_name(options)
            yield desk.DeskWay(file=file.path, digests=file.digests, options=options, run=name)
    for context in order.contexts:
        # A phone takes the limits of ways that are not known by name.
        options = RunOptions(
            provider=provider_rules.QNN,
            provider_options={"soc_model": str(runner_providers.CHIPS[context.chip].soc_model)},
        )
        run = f"{provider_rules.QNN} on {context.chip}"
        yield desk.DeskWay(file=context.path, digests="", options=options, run=run, not_run=context.not_run)


def _why(error: PipelineError | None) -> str:
    return f"this computer cannot run the model: {error.what}" if error else "no answer"
