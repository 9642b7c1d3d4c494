"""What users get from some 90 command lines: what is printed, JSON, reports and READMEs, as tests/goldens has them.

Each story of STORIES is a test: its commands run one after the other in a folder of their own, with a clock that stands
still and a computer whose times follow from what is run. `pytest tests/test_goldens.py --update` writes the goldens
again; then `git diff tests/goldens` shows what users get differently.
"""

import datetime as dt
import difflib
import hashlib
import itertools
import os
import platform
import re
import secrets
import shutil
import socket
import tempfile
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest

import device_runner.result
import pipeline
from device_runner import local
from device_runner.result import Conditions, RunResult
from device_runner.spec import RunSpec
from pipeline.campaign.record import Host
from pipeline.job import campaigns
from tests.command import Done, ort_mobile
from tests.ground_truth import ORACLE

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = Path(__file__).parent / "goldens"
EXAMPLE = ROOT / "build_configs" / "examples" / "mnist"
WHEEL = (1, 32)
"""The release of ONNX Runtime that converted the models of the goldens: an older one fuses other nodes."""

NOW = 1_780_000_000.0
"""The instant at which every command begins and ends."""

JOB = """
name = "two"
devices = ["local"]
[[models]]
path = "digits.onnx"
test_data = "digits"
labels = "digits/evaluation.npz"
license = "MIT"
[[targets]]
name = "phone"
platform = "android"
abis = ["arm64-v8a"]
min_api_level = 28
ort_release = "1.23"
[[targets]]
name = "desk"
platform = "linux"
abis = ["x86_64"]
[[targets]]
name = "ios"
platform = "ios"
min_os_version = "15.1"
ort_release = "1.24"
[variants]
levels = ["basic", "extended"]
styles = ["fixed"]
precisions = ["float", "u8u8pc"]  # with u8s8pc processors without VNNI saturate
[[runs]]
provider = "cpu"
threads = [1, 2]
[[runs]]
provider = "xnnpack"
variants = ["extended-*"]
[measure]
rounds = 3
min_runs = 5
min_seconds = 0.01
"""

SEARCH = (
    JOB.partition("[variants]")[0]
    + """
[variants]
levels = ["extended"]
[[runs]]
provider = "cpu"
[tune]
minutes = 1
threads = [1, 2]
spinning = [true, false]
memory_arena = true
"""
)

MODEL = "--model digits.onnx --test-data digits"
LEVELS = "--level none,extended --style fixed"
PAIR = "pair/digits.none-fixed.ort pair/digits.extended-fixed.ort --rounds 8 --min-runs 5"
GATE_FILES = "--junit gate.xml --sarif gate.sarif --markdown gate.md --json gate.json"

STORIES = {
    "help": """
        --help
        --version
        nonsense
        help run
        help commands
        help session-options
        transform --list
        transform --options static-qdq
        doctor --list
        build size
        build plan --target android-arm64-v8a
        library list
        library show nope.aar
        devices
        devices abd:1
        run misspelt.toml
        run nowhere.toml
        run nope.toml
        report nowhere
        bundle verify nowhere
    """,
    "check": """
        check digits.onnx
        check digits.onnx mlp.onnx --api-level 28 --json check.json
        check text.onnx digits.onnx
        check nowhere.onnx
    """,
    "partition": """
        partition digits.onnx
        partition digits.onnx --ep nnapi --ort-release 1.23 --json partition.json --sarif partition.sarif
        partition quantized.onnx --ep nnapi,xnnpack --ort-release 1.23 --api-level 28
        partition mlp.onnx --ep coreml-mlprogram,coreml-nn --ort-release 1.23 --advise
        partition digits.onnx --ep nnapi --ort-release banana
    """,
    "init": """
        init digits.onnx --output digits.toml
        init mlp.onnx --output mlp.toml --json -
        init mlp.onnx --output mlp.toml
        init mlp.onnx --output other.toml --dimension bacth=1
    """,
    "transform": """
        transform digits.onnx half.onnx --do fp16
        transform mlp.onnx fixed.onnx --do fixed-dimensions:rest=1 --json transform.json
        transform mlp.onnx fixed.onnx --do nonsense
        accuracy half.onnx --reference digits.onnx --test-data digits --part all
        accuracy half.onnx digits.onnx --reference digits.onnx --test-data digits --json accuracy.json --max-drop 0.01
        diff digits.onnx half.onnx --json diff.json
    """,
    "convert": """
        convert digits.onnx --output plain
        convert digits.onnx --output plain
        convert digits.onnx --output out --level best
        convert nowhere.onnx text.onnx --output broken
        convert mlp.onnx --output dimension --dimension bacth=1
        op-config create plain --output plain.config
        op-config create plain --output names.config --no-types
        op-config merge plain.config names.config
        op-config check names.config plain
        op-config explain plain --operator Conv
        op-config diff plain.config names.config
        build plan two.toml --op-config plain.config --output built --json built.json
    """,
    "convert-checked": """
        convert digits.onnx --output out --check --test-data digits --precision float,u8u8pc {levels} --json out.json
    """,
    "convert-aware": """
        convert digits.onnx quantized.onnx --output aware --ep nnapi --ort-release 1.23 --reference none {levels}
    """,
    "run": """
        run two.toml --output two-out --junit two.xml --sarif two.sarif --markdown two.md --json two.json
        run two.toml --output two-out --resume
        report two-out --markdown again.md --json again.json
        report two-out --list
        bundle verify two-out/bundle --json verify.json
        bundle verify two-out/bundle --digest 0000000000000000000000000000000000000000000000000000000000000000
        bundle sign two-out/bundle --key key.pem
        bundle verify two-out/bundle --key public.pem
        release apple two-out/bundle --output swift
        release snippet two-out/bundle --for cpp --target phone
        release snippet two-out/bundle --for kotlin --target phone
        release snippet two-out/bundle --for swift --target ios
        release snippet two-out/bundle --for python --target desk
        bundle rebuild two-out
        prove two-out/bundle --target desk --library nowhere.so
        lab submit two.toml --database sqlite:///lab.sqlite
    """,
    "run-quick": """
        run {model} --quick --output quick --precision float,fp16 --json quick.json
        compare quick quick
        compare quick/results.json quick/bundle --markdown compare.md --json compare.json
        run {model} --plan --percent 5 --json plan.json
        perf quick/bundle/models/digits.all-fixed.ort --rounds 2 --threads 1,2 --min-runs 5 --json perf.json
        perf digits.onnx --rounds 2 --mode steady --provider xnnpack --min-runs 5
        perf digits.onnx --device abd:1
    """,
    "gate": """
        convert digits.onnx --output pair {levels}
        gate {pair} --output gated {gate_files}
        gate --bisect {pair} --json bisect.json
    """,
    "updates": """
        run {model} --convert-only --output first
        run {model} --convert-only --precision float,fp16 --output second
        bundle sign second/bundle --key key.pem
        bundle delta first/bundle second/bundle --output bundle.delta --json delta.json
        bundle apply bundle.delta first/bundle --key public.pem --keep before --json apply.json
        bundle apply bundle.delta first/bundle --allow-unsigned
    """,
    "doctor": """
        doctor digits.onnx --test-data digits --minutes 1 --output doctored --markdown doctor.md --json doctor.json
    """,
    "tune": """
        tune search.toml --output tuned --json tuned.json --markdown tuned.md
    """,
}  # fmt: skip

SHOWN = re.compile(r"\.(json|md|xml|sarif|toml|config)$")
"""Files that goldens have; of others they have the names."""

LEFT_OUT = re.compile(r"(^|/)(results|campaign|tune)\.json$|sbom\.cdx|\.sqlite|\.lock$|-wal$|-shm$|/\.work|trace\.json")
"""What `--json` of the same command says, too, and what is no document."""

PROGRESS = re.compile(r"^\w+: \d+ of \d+ after .*\n", re.MULTILINE)
"""Lines that say how far a long step is."""

COMPUTED = re.compile(r'(?<=_error": )[\d.e-]+|(?<=_db": )[\d.e-]+|(?<="limit": )[\d.e-]+|(?<="cosine": )[\d.e-]+')
"""Differences of outputs in JSON: their last digits, and so how many there are, are the processor's."""

ROUNDED = re.compile(r"[\d.]+(?= dB)|\b\d(?:\.\d+)?e-\d\d\b")
"""The same in texts."""

LONG = re.compile(r"\b\d+\.\d{9,}\b")
"""Other computed numbers, equal in six digits whatever instructions a processor has."""


def scripted(run: Any) -> Any:
    """Running a spec on this computer for its outputs, with times and memory that follow from the spec."""

    def scripted_run(device: local.LocalDevice, spec: RunSpec) -> RunResult:
        result: RunResult = run(device, spec)
        name, _, number = spec.id.rpartition("#")
        base = 2_000_000 + int.from_bytes(hashlib.sha256((name or spec.id).encode()).digest()[:4]) % 2_000_000
        noise = hashlib.sha256(number.encode()).digest()
        count = min(spec.min_runs or 5, 50)
        times = tuple(base + (noise[place % 32] * 61 + place) % 17_000 for place in range(count))
        values: dict[str, Any] = {"before": Conditions(), "after": Conditions(), "host": "host", "profile_file": None}
        if result.latencies_ns:
            values |= {"latencies_ns": times, "warmup_ns": times[:3], "warmup": None, "marks": ()}
            values |= {"open_ns": 10**6, "load_ns": 10 * base, "first_run_ns": 2 * base, "push_ns": 0}
            values |= {"memory_before_load_bytes": 10**7, "memory_after_load_bytes": 2 * 10**7}
            values |= {"memory_peak_bytes": 3 * 10**7, "memory_private_bytes": 10**7}
        return msgspec.structs.replace(result, **values)

    return scripted_run


class StandingClock(dt.datetime):
    """The instant NOW, for code that asks for the date."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> "StandingClock":
        return cls.fromtimestamp(NOW, tz)


@pytest.fixture
def same_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, names, random numbers and the computer itself are the same everywhere."""
    asked = local.host_facts
    computer = {
        "free_bytes": 10**11, "core_max_mhz": (), "os_release": "6", "model": "Processor", "numa_nodes": (),
        "memory_bytes": 16 * 2**30, "page_bytes": 4096,
    }  # fmt: skip
    counter = itertools.count()
    for owner, name, value in (
        (time, "time", lambda: NOW),
        (time, "monotonic", lambda: 1000.0),
        (time, "perf_counter", lambda: 1000.0),
        (time, "monotonic_ns", lambda: 10**12),
        (time, "perf_counter_ns", lambda: 10**12),
        (device_runner.result, "datetime", StandingClock),
        (secrets, "token_hex", lambda size=32: f"{next(counter):0{2 * size}x}"),
        (socket, "gethostname", lambda: "host"),
        (platform, "node", lambda: "host"),
        (tempfile, "_get_candidate_names", lambda: (f"t{number}" for number in itertools.count())),
        (os, "cpu_count", lambda: 4),
        (local, "host_facts", lambda name: msgspec.structs.replace(asked(name), **computer)),
        (local.LocalDevice, "run", scripted(local.LocalDevice.run)),
        (campaigns, "host", lambda: Host(system="Linux 6", machine="x86_64", cpu="Processor", cores=4, python="3")),
    ):
        monkeypatch.setattr(owner, name, value)
    # As root, adb would start a server even where none may be asked
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")


def prepare(folder: Path) -> None:
    """The files that commands are given."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    shutil.copytree(EXAMPLE, folder / "digits")
    shutil.copy(EXAMPLE / "mnist.onnx", folder / "digits.onnx")
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        (folder / "quantized.onnx").write_bytes(archive.read("mnist.qdq_u8u8.onnx"))
        (folder / "mlp.onnx").write_bytes(archive.read("mlp_tabular.dyn.onnx"))
    (folder / "two.toml").write_text(JOB)
    (folder / "search.toml").write_text(SEARCH)
    (folder / "misspelt.toml").write_text(JOB + "roundz = 4\n")
    (folder / "nowhere.toml").write_text(JOB.replace("digits.onnx", "nowhere.onnx"))
    (folder / "text.onnx").write_text("no model\n")
    key = ec.derive_private_key(2**200 + 1, ec.SECP256R1())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    (folder / "key.pem").chmod(0o600)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)


def states(folder: Path) -> dict[str, int]:
    """When every file was written, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


def shown(line: str, done: Done, folder: Path, before: dict[str, int], texts: dict[str, str]) -> Iterator[str]:
    """A command as the golden has it: what it printed, its exit code, and the documents that it wrote.

    Of a file with the text that it had the golden has the name; `texts` holds what files had when they were shown.
    """
    yield f"$ ort-mobile {line}"
    yield done.out.rstrip("\n")
    if done.err:
        yield f"--- stderr of {line.split()[0]}\n{PROGRESS.sub('', done.err).rstrip()}"
    if done.code:
        yield f"--- exit code {done.code}"
    written = [name for name, when in states(folder).items() if before.get(name) != when and not LEFT_OUT.search(name)]
    if written:
        yield "--- files: " + ", ".join(written)
    for name in written:
        if SHOWN.search(name):
            text = (folder / name).read_text(encoding="utf-8").rstrip()
            yield f"--- {name}" + (", as before" if texts.get(name) == text else f"\n{text}")
            texts[name] = text
    yield ""


def normalized(text: str, folder: Path) -> str:
    """The text with what differs between computers by its name: folders, versions, digests, last digits of outputs."""
    text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "CODE")
    text = re.sub(r"\bmodels_[0-9a-f]{12}\b", "models_DIGEST", text)  # a namespace of C++
    text = re.sub(r"'([^' \n]*FOLDER[^' \n]*)'", r"\1", text)  # a folder with blanks stands in quotes in command lines
    for name, installed in (
        ("ort-mobile", pipeline.__version__),
        *((name, version(name)) for name in ("flatbuffers", "numpy", "onnx", "onnxruntime", "onnx-ir", "onnxslim")),
    ):
        text = re.sub(rf'({name}(?:, version|":)? "?){re.escape(installed)}\b', r"\1VERSION", text)
    text = text.replace(f'"version": "{pipeline.__version__}"', '"version": "VERSION"')
    texts = {digest[:12] for digest in re.findall(r"\b[0-9a-f]{64}\b", text) if digest.strip("0")}
    files = {hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in folder.rglob("*") if path.is_file()}
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        if found[1] not in texts | files:
            return found[0]
        return numbers.setdefault(found[1], f"digest-{len(numbers) + 1:05}")

    text = re.sub(r"\b([0-9a-f]{12})(?:[0-9a-f]{4}|[0-9a-f]{52})?\b", numbered, text)
    text = LONG.sub(lambda number: f"{float(number[0]):.6g}", COMPUTED.sub("#", text))
    return ROUNDED.sub(lambda digits: re.sub(r"\d", "#", digits[0]), text)


@pytest.mark.parametrize("story", STORIES)
def test_users_get_what_the_golden_has(
    story: str, tmp_path: Path, same_computer: None, pytestconfig: pytest.Config
) -> None:
    release = tuple(map(int, version("onnxruntime").split(".")[:2]))
    if release < WHEEL:
        pytest.skip(f"the goldens are of ONNX Runtime {WHEEL[0]}.{WHEEL[1]}")
    prepare(tmp_path)
    text = STORIES[story].format(model=MODEL, levels=LEVELS, pair=PAIR, gate_files=GATE_FILES)
    parts: list[str] = []
    texts: dict[str, str] = {}
    for line in text.strip().splitlines():
        before = states(tmp_path)
        parts += shown(line.strip(), ort_mobile(*line.split(), cwd=tmp_path, code=None), tmp_path, before, texts)
    actual = normalized("\n".join(parts), tmp_path)
    golden = GOLDENS / f"{story}.txt"
    if pytestconfig.getoption("update"):
        golden.write_text(actual, encoding="utf-8")
        return
    expected = golden.read_text(encoding="utf-8") if golden.exists() else ""
    if actual != expected:
        names = (f"tests/goldens/{story}.txt", "what the commands give now")
        lines = difflib.unified_diff(expected.splitlines(), actual.splitlines(), *names, lineterm="", n=2)
        pytest.fail("\n".join([*lines, "where it is right: pytest tests/test_goldens.py --update"]), pytrace=False)


def test_no_golden_is_left_of_a_story_that_is_gone() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == set(STORIES)
