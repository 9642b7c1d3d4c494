"""What an agent finds on its host: a server that does not answer has its reason, and the others go on."""

from pipeline.job.lab.attached import Attached


def test_an_adb_server_that_does_not_answer_is_noted_and_costs_no_other_device() -> None:
    attached = Attached(("adb:*@nohost.invalid:5037", "local"))
    attached.look()
    assert list(attached.opens.values()) == ["local"]
    assert list(attached.opens) == list(attached.facts)
    assert attached.notes[0] == "adb nohost.invalid:5037: no adb server"
