"""Why a row has no numbers."""

from device_runner import result as run_result


def why_failed(failure: run_result.Failure | None, nothing: str) -> dict[str, str]:
    """The fields of a row that has no numbers: what the run says of it, or that it says `nothing`."""
    if not failure:
        return {"failure": nothing}
    return {"failure": failure.reason, "remedy": failure.remedy}
