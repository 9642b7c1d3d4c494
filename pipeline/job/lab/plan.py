"""What a host runs of a campaign that it was handed as data: the same functions of the same values as elsewhere."""

from device_runner.device import DeviceFacts
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import PlannedRun, distinct, in_modes, plan_runs, planned_id
from pipeline.core.progress import NoProgress
from pipeline.job.devices import libraries_by_device
from pipeline.job.judge import campaign_plan, inputs_of
from pipeline.job.lab.carry import Carried
from pipeline.job.predict import predict
from pipeline.job.prepare import ARTIFACTS
from pipeline.job.targets import oldest_release


def planned_here(carried: Carried, facts: DeviceFacts) -> list[PlannedRun]:
    """What the campaign planned for a device, in its order: that decides which of equal runs counts."""
    record = carried.record
    place = {run.id: number for number, run in enumerate(record.planned) if run.device == facts.name}
    measurable = [artifact for artifact in carried.artifacts if artifact.source in record.references]
    legal, _ = plan_runs(record.config.runs, measurable, [facts])
    found = [run for run in in_modes(legal, record.config.measure) if planned_id(run) in place]
    return sorted(found, key=lambda run: place[planned_id(run)])


def plan_here(carried: Carried, planned_runs: list[PlannedRun], facts: DeviceFacts) -> CampaignPlan:
    """The plan of a device, with files where they lie on this host."""
    config, references = carried.record.config, carried.references
    models = {artifact.source: artifact.model for artifact in carried.artifacts}
    tables = carried.record.tables
    inputs = {}
    for source, reference in references.items():
        model = models.get(source, source)
        dimensions = dict(tables[model].dimensions) if model in tables else {}
        inputs[source] = inputs_of(references.get(model, reference), dimensions)
    predicted = predict(
        planned_runs, {facts.name: facts}, oldest_release(config), carried.folder / ARTIFACTS, NoProgress()
    )
    return campaign_plan(
        config,
        carried.campaign.id,
        distinct(planned_runs),
        carried.folder,
        references=references,
        inputs=inputs,
        libraries=libraries_by_device({facts.name: facts}, carried.targets(), None),
        predictions=predicted.by_run,
    )
