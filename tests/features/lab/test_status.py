"""What `lab status` says, from values as the database has them: no PostgreSQL is needed."""

from pipeline.features.lab.campaigns import status_lines

RED = "\x1b[31mred\x07"


def test_nothing_in_the_database_steers_a_terminal() -> None:
    host = {"name": RED, "state": "working", "devices": 1, "note": RED, "silent_seconds": 0.0, "leases": [RED]}
    job = {"device": RED, "state": RED, "host": RED, "reason": f"{RED}\n\u202eforged"}
    campaign = {"campaign": RED, "name": RED, "runs": 0, "devices": {RED: 1}, "jobs": [job]}
    lines = list(status_lines({"hosts": [host], "campaigns": [campaign]}))
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    assert r"\x1b[31mred" in lines[1]


def test_who_has_which_device_is_said() -> None:
    host = {"name": "vm", "state": "working", "devices": 9, "note": "", "silent_seconds": 0.0, "leases": ["a", "b"]}
    many = {**host, "leases": [str(number) for number in range(9)], "note": "n"}
    lines = list(status_lines({"hosts": [host, many], "campaigns": []}))
    assert lines[1:] == [
        "  vm: working, 9 devices, works on a, b", "  vm: working, 9 devices, works on 0, 1, 2, 3, 4 and 4 more; n",
    ]  # fmt: skip
