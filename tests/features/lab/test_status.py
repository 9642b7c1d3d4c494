"""What `lab status` says, from values as the database has them: no PostgreSQL is needed."""

from typing import Any

from pipeline.features.lab.status import status_lines

RED = "\x1b[31mred\x07"

HOST: dict[str, Any] = {
    "name": "vm", "state": "working", "devices": 9, "note": "", "silent_seconds": 0.0, "leases": ["a", "b"],
}  # fmt: skip


def campaign(name: str, jobs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "campaign": name,
        "name": name,
        "priority": 0,
        "runs": 0,
        "devices": {name: 1},
        "progress": None,
        "jobs": jobs,
        **more,
    }


def test_nothing_in_the_database_steers_a_terminal() -> None:
    host = {"name": RED, "state": "working", "devices": 1, "note": RED, "silent_seconds": 0.0, "leases": [RED]}
    job = {"device": RED, "state": RED, "host": RED, "reason": f"{RED}\n\u202eforged", "note": RED}
    lost = {"name": RED, "host": RED, "since": RED, "seconds": 5}
    device = {"name": RED, "host": RED}
    state = {"hosts": [host], "campaigns": [campaign(RED, [job])], "lost": [lost], "devices": [device]}
    lines = list(status_lines(state))
    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)
    assert r"\x1b[31mred" in lines[1]


def test_who_has_which_device_is_said() -> None:
    many = {**HOST, "leases": [str(number) for number in range(9)], "note": "n"}
    devices = [{"name": f"adb:{number}", "host": "vm"} for number in range(9)]
    lines = list(status_lines({"hosts": [HOST, many], "campaigns": [], "devices": devices}))
    listed = "9 devices (adb:0, adb:1, adb:2, adb:3, adb:4, and 4 more)"
    assert lines[1:] == [
        f"  vm: working, {listed}, works on a, b", f"  vm: working, {listed}, works on 0, 1, 2, 3, 4, and 4 more; n",
    ]  # fmt: skip


def test_a_silent_host_works_on_nothing_and_a_lost_device_is_named() -> None:
    host = {**HOST, "state": "silent", "silent_seconds": 13.0}
    lost = [
        {"name": f"adb:{number}", "host": "vm", "since": "2026-11-30 04:00:00", "seconds": 40} for number in range(7)
    ]
    lines = list(status_lines({"hosts": [host], "campaigns": [], "lost": lost}))
    assert lines[1] == "  vm: nothing heard for 13 s, 9 devices, worked on a, b"
    assert lines[2] == "lost: adb:0, at vm until 2026-11-30 04:00:00, 40 s ago"
    assert (len(lines), lines[-1]) == (8, "lost: 2 more: --json - lists all")


def test_how_far_a_campaign_is_and_what_is_not_known() -> None:
    progress = {
        "stored": 10,
        "failed": 1,
        "at_most": 1000,
        "seconds_left": 700.0,
        "slowest": "adb:A",
        "unknown": ["adb:B"],
    }
    jobs = [
        {"device": "adb:A", "state": "running", "reason": "", "note": "lost: at h1"},
        {"device": "adb:B", "state": "waiting", "reason": "h1: no", "note": ""},
    ]
    state = {"hosts": [], "campaigns": [campaign("c", jobs, progress=progress, priority=1)]}
    first, *reasons = list(status_lines(state))[1:]
    assert first == (
        "c c (priority 1): 10 of at most 1,000 runs stored, 1 failed, about 12 min of adb:A's time left, "
        "not known yet how long adb:B takes; devices: 1 c"
    )
    assert reasons == ["  adb:A running: lost: at h1", "  adb:B waiting: h1: no"]
