"""Four hosts, each with an adb server, and 64 real adbd programs on the network that all of them reach.

The real probe runs a real model there with the wheel's library. Before it the phone waits, as if its run took so long:
that costs this computer nothing, and leaves the rest of a run's time, which is ours, as it is.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from device_runner.build import build_probe
from device_runner.files import sha256
from device_runner.local import wheel_library
from pipeline.campaign.record import FRESH_FROM, CampaignRecord
from pipeline.campaign.store import Store, open_store
from pipeline.config import read_config
from pipeline.core.errors import MissingError
from pipeline.core.progress import NoProgress
from pipeline.features.lab.campaigns import submit
from pipeline.features.lab.queue import attached_devices
from pipeline.job.run import JobOptions
from tests.debian_packages import unpacked
from tests.device.adb_farm import BATTERY, ENDS_WITH_US, Phone
from tests.device.test_campaign_over_adb import EXAMPLE
from tests.features.lab.agent_process import PHONES, PROBE
from tests.features.lab.farm import Faults, until
from tests.features.lab.hosts import EVENTS, HOSTS, Lab, Tally, agents, inside, lab, network, stored_in

pytestmark = pytest.mark.lab

COUNT = 16 * HOSTS
ROUNDS = 10
SECONDS = 6.0
"""What a run takes a phone beyond the real probe."""

PORT = "5137"
"""Of the adb server in each namespace, where nothing else is."""

LISTENS = f"import socket, sys; sys.exit(socket.socket().connect_ex(('127.0.0.1', {PORT})))"
"""Python that ends with 0 where the adb server takes connections."""

LOWEST_CHARGE = 30
"""The first phone's, in percent; every other has a charge of its own, too."""

CONFIG = """
name = "phones"
devices = ["adb:*"]
[[models]]
path = "{example}/mnist.onnx"
test_data = "{example}"
[variants]
levels = ["basic"]
styles = ["fixed"]
[[runs]]
variants = ["*"]
threads = [1, 2]
[measure]
rounds = {rounds}
min_runs = 3
min_seconds = 0.001
[output]
database = "{url}"
"""

SLOW_PROBE = """#!/bin/sh
echo "begin $$ $(date +%s.%N)" >> "$PHONE/ran"
sleep {seconds}
"{probe}" "$@"
code=$?
echo "end $$ $(date +%s.%N)" >> "$PHONE/ran"
exit $code
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """When a phone's probe began and ended (0: it was killed), in seconds since 1970."""

    begun: float
    ended: float


@contextlib.contextmanager
def phones_in(found: Lab) -> Iterator[list[Phone]]:
    """Phones on this computer's side of the bridge, and in each namespace an adb server that is connected to all."""
    adbutils = pytest.importorskip("adbutils")
    unpacked("adbd")
    phones: list[Phone] = []
    servers = []
    adb = [adbutils.adb_path(), "-P", PORT]
    environment = {"HOME": str(found.folder), "PATH": "/usr/bin:/bin", "ADB_USB": "0", "ADB_EMU": "0", "ADB_MDNS": "0"}

    def listens(name: str) -> bool:
        return subprocess.run([*inside(name), sys.executable, "-c", LISTENS], check=False).returncode == 0

    def connected(name: str, serial: str) -> bool:
        command = [*inside(name), *adb, "connect", serial]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)
        return "connected to" in done.stdout

    def connect(name: str) -> None:
        until(partial(listens, name), 60)  # a client that finds no server would start one
        for phone in phones:
            until(partial(connected, name, phone.serial), 60)

    try:
        phones.extend(_phone(found.folder / f"phone-{number}", number) for number in range(COUNT))
        for name in found.names:
            command = [*ENDS_WITH_US, *inside(name), *adb, "nodaemon", "server"]
            with (found.folder / "adb.log").open("ab") as log:
                servers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        with ThreadPoolExecutor(HOSTS) as pool:
            list(pool.map(connect, found.names))
        yield phones
    finally:
        for phone in phones:
            phone.stop()
        for server in servers:
            server.kill()
            server.wait()


def _phone(folder: Path, number: int) -> Phone:
    """A phone with a serial and a charge of its own, on which the library lies already."""
    phone = Phone(folder, {"ro.serialno": f"LAB{number:04}"})
    phone.serial = f"{network()}.1:{phone.port}"
    phone.write("dumpsys/battery", BATTERY.replace("level: 84", f"level: {LOWEST_CHARGE + number}"))
    library = wheel_library()
    place = Path(phone.root) / "store" / f"{sha256(library)}.so"
    place.parent.mkdir(parents=True)
    try:
        place.hardlink_to(library)
    except OSError:
        shutil.copyfile(library, place)
    phone.start()
    return phone


def ran_on(phone: Phone) -> list[Ran]:
    """What the phone's probe noted, by its begin."""
    lines = [line.split() for line in (phone.folder / "ran").read_text().splitlines()]
    ends = {process: float(seconds) for word, process, seconds in lines if word == "end"}
    return sorted((Ran(float(at), ends.get(process, 0.0)) for word, process, at in lines if word == "begin"),
                  key=lambda one: one.begun)  # fmt: skip


def at_once(ran: list[Ran]) -> int:
    """How often a probe began while another was at work on the same phone."""
    return sum(later.begun < earlier.ended for earlier, later in pairwise(ran))


def phone_faults(store: Store, campaign: CampaignRecord) -> Faults:
    """As `farm.faults`; a result is of its own device if that one's charge and its own name are in it."""
    record = campaign.job()
    runs = [run for run in store.runs(campaign.id) if run.round < FRESH_FROM]
    wanted = {(planned.id, number) for planned in record.planned if not planned.same_as for number in range(ROUNDS)}
    stored = {(run.planned, run.round) for run in runs}
    devices = {planned.id: planned.device for planned in record.planned}
    charges = {f"adb:LAB{number:04}": LOWEST_CHARGE + number for number in range(COUNT)}
    wrong = sum(
        run.result.device != devices.get(run.planned)
        or run.result.failure is not None
        or run.result.before.battery_percent != charges[run.result.device]
        or not run.checks
        or not all(check.passed for check in run.checks)
        for run in runs
    )
    return Faults(missing=len(wanted - stored), twice=len(runs) - len(wanted & stored), wrong_device=wrong)


def test_events_on_phones_that_all_hosts_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is measured on real adbd programs is stored once and of its own phone, whatever happens to hosts."""
    tally, probe, config = Tally(), tmp_path / "probe", tmp_path / "lab.toml"
    probe.write_text(SLOW_PROBE.format(seconds=SECONDS, probe=build_probe()))
    with lab(tmp_path) as found, phones_in(found) as phones, open_store(found.server.url) as store:
        roots = json.dumps({phone.serial: phone.root for phone in phones})
        settings = {PHONES: roots, PROBE: str(probe), "ANDROID_ADB_SERVER_PORT": PORT}
        config.write_text(CONFIG.format(example=EXAMPLE, rounds=ROUNDS, url=found.server.url))

        def begin(number: int) -> CampaignRecord:
            options = JobOptions(output=tmp_path / f"out{number}")
            while True:
                try:
                    name = submit(read_config(config, existing=True), options, NoProgress())["campaign"]
                except MissingError:  # the database is being restarted: who submits tries again
                    time.sleep(1.0)
                else:
                    return store.campaign(name)

        with agents(found, ["adb:*"] * HOSTS, settings):
            until(lambda: len(attached_devices(store)) == COUNT, 300)
            campaigns = tally.events(found, store, begin)
        counted, stored = {phone_faults(store, campaign) for campaign in campaigns}, len(stored_in(store))
    ran = [ran_on(phone) for phone in phones]
    busy = sum(one.ended - one.begun for of_one in ran for one in of_one if one.ended)
    span = sum(of_one[-1].ended - of_one[0].begun for of_one in ran)
    with capsys.disabled():
        print(f"\nlab: {COUNT} adbd phones, {EVENTS} of each event: {stored} runs in {len(campaigns)} campaigns")
        print(f"lab: {tally.lost} lost, {counted}")
        print(f"lab: {sum(map(len, ran)) - stored} begun in vain, {sum(map(at_once, ran))} while another was at work")
        print(f"lab: {busy / span:.1%} of the phones' time in probes, events included")
        print("\n".join(tally.lines()))
    assert (tally.lost, counted) == (0, {Faults(missing=0, twice=0, wrong_device=0)})
