"""The whole job: prepare (convert, reference, check), measure, assemble the report, ship the bundle.

Each step takes values and gives values; `run` is their sequence. What is stored with a campaign (`Plan`) is enough to
write its report and its bundle again without measuring.
"""

from pipeline.job.campaign import JobOptions
from pipeline.job.result import JobResult
from pipeline.job.run import run_job

__all__ = ["JobOptions", "JobResult", "run_job"]
