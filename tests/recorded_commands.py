"""What users get from some 90 command lines, recorded before code is moved and compared after.

`python -m tests.recorded_commands record FOLDER` runs SCRIPT in FOLDER/work thrice, into a pipe and on terminals of 80
and 160 columns (`record FOLDER pipe`: into a pipe only), with a clock that stands still and numbers of devices that
follow from what was to be run. It writes FOLDER/recorded.jsonl: a line for each command with its exit code, what it
printed, the files that it wrote (text as it is, the members of archives and everything else by digest) and the RunSpecs
that devices were given. `record FOLDER models` runs other lines, into a pipe only and for minutes: the help of every
command, the README's job, and claims and artifacts of the real models of the ground truth.
`python -m tests.recorded_commands compare BEFORE AFTER` prints what differs and ends with 1 then. Both recordings must
be of the same machine; paths of FOLDER and of the code read FOLDER and CODE in them.
"""

import contextlib
import datetime as dt
import difflib
import gzip
import hashlib
import io
import itertools
import json
import os
import pty
import re
import secrets
import select
import shutil
import socket
import struct
import sys
import tempfile
import termios
import time
import traceback
import zipfile
from collections.abc import Iterable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import msgspec

from tests.ground_truth import ORACLE

ROOT = Path(__file__).resolve().parent.parent
NOW = 1_780_000_000.0
"""The instant at which every command begins and ends."""

TEXT_BYTES = 300_000
"""Files up to this size are kept as text, larger ones by digest."""

IGNORED = re.compile(r"\.sqlite|\.lock$|-wal$|-shm$|/downloads/")
REAL = (
    "mobilenet_v2.base",
    "blazeface.qdq_u8u8",
    "lstm_classifier.dyn",
    "face_embedding.fp16",
    "silero_like_vad_if.base",
)

MODEL = "--model digits.onnx --test-data digits"
CONFIG = """
name = "two"
devices = ["local"]
[[models]]
path = "digits.onnx"
test_data = "digits"
labels = "digits/evaluation.npz"
license = "MIT"
{more}
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
levels = ["basic", "all"]
styles = ["fixed", "runtime"]
precisions = ["float", "u8s8pc"]
[[runs]]
provider = "cpu"
threads = [1, 2]
[[runs]]
provider = "xnnpack"
variants = ["all-*"]
[measure]
rounds = 3
min_runs = 5
min_seconds = 0.01
"""

FILES = {
    "two.toml": CONFIG.format(more=""),
    "misspelt.toml": CONFIG.format(more="") + "roundz = 4\n",
    "nowhere.toml": CONFIG.format(more="").replace("digits.onnx", "nowhere.onnx"),
    "text.onnx": "no model\n",
}

SCRIPT = """
--help
--version
nonsense
help run
help commands
help session-options
check digits.onnx
check digits.onnx mlp.onnx --api-level 28 --json check.json
check text.onnx digits.onnx
check nowhere.onnx
partition digits.onnx
partition digits.onnx --ep nnapi --ort-release 1.23 --json partition.json --sarif partition.sarif --svg partition.svg
partition quantized.onnx --ep nnapi,xnnpack --ort-release 1.23 --api-level 28 --html partition.html
partition mlp.onnx --ep coreml-mlprogram,coreml-nn --ort-release 1.23 --advise
partition real --ep nnapi --ort-release 1.23 --json -
partition real --ep coreml-mlprogram --ort-release 1.23 --json -
partition real --ep xnnpack --ort-release 1.23 --json -
partition digits.onnx --ep nnapi --ort-release banana
init digits.onnx --output digits.toml
init mlp.onnx --output mlp.toml --json -
init mlp.onnx --output mlp.toml
init mlp.onnx --output other.toml --dimension bacth=1
transform --list
transform --options static-qdq
transform digits.onnx half.onnx --do fp16
transform mlp.onnx fixed.onnx --do fixed-dimensions:rest=1 --json transform.json
transform mlp.onnx fixed.onnx --do nonsense
convert digits.onnx --output plain
convert digits.onnx --output plain
convert digits.onnx --output checked --check --test-data digits --precision float,fp16,u8s8pc --json checked.json
convert digits.onnx quantized.onnx --output aware --ep nnapi --ort-release 1.23 --reference none
convert real/blazeface.qdq_u8u8.onnx real/mobilenet_v2.base.onnx --output real-out --level basic,all --style fixed
convert digits.onnx --output out --level best
convert nowhere.onnx text.onnx --output broken
convert mlp.onnx --output auto --precision auto
convert mlp.onnx --output dimension --dimension bacth=1
op-config create plain --output plain.config
op-config create real-out --output real.config --no-types
op-config merge plain.config real.config
op-config check plain.config plain real-out
op-config explain plain --operator Conv
op-config diff plain.config real.config
accuracy half.onnx --reference digits.onnx --test-data digits --part all
accuracy half.onnx digits.onnx --reference digits.onnx --test-data digits --json accuracy.json --max-drop 0.01
build plan two.toml --op-config plain.config --output built --json built.json
build plan --target android-arm64-v8a
build size
library list
library show nope.aar
devices
devices abd:1
run two.toml --output two-out --junit two.xml --sarif two.sarif --markdown two.md --json two.json
run two.toml --output two-out --resume
run misspelt.toml
run nowhere.toml
run nope.toml
run {model} --quick --output quick --precision float,fp16
run {model} --convert-only --output converted
report two-out --markdown again.md --json again.json
report two-out --list
report nowhere
tune {model} --minutes 1 --output tuned --json tuned.json --markdown tuned.md
run {model} --plan --percent 5 --json plan.json
doctor digits.onnx --test-data digits --minutes 1 --output doctored --markdown doctor.md --json doctor.json
doctor --list
perf plain/digits.all-fixed.ort --rounds 2 --threads 1,2 --min-runs 5 --json perf.json
perf digits.onnx --rounds 2 --mode steady --provider xnnpack --min-runs 5
perf digits.onnx --device abd:1
compare quick quick
compare two-out quick --markdown compare.md --json compare.json
gate plain/digits.none-fixed.ort plain/digits.all-fixed.ort --rounds 8 --min-runs 5 --output gated {documents}
gate converted/bundle quick/bundle --rounds 8 --min-runs 5 --output gated
gate --history two-out --rounds 8 --output gated
gate --bisect plain/digits.none-fixed.ort plain/digits.all-fixed.ort --rounds 8 --min-runs 5 --json bisect.json
bundle verify two-out/bundle --json verify.json
bundle verify quick/bundle --digest 0000000000000000000000000000000000000000000000000000000000000000
bundle verify nowhere
bundle sign two-out/bundle --key key.pem
bundle verify two-out/bundle --key public.pem
bundle delta quick/bundle two-out/bundle --output bundle.delta --json delta.json
bundle apply bundle.delta quick/bundle --key public.pem --keep before --json apply.json
bundle apply bundle.delta quick/bundle --allow-unsigned
release android two-out/bundle --group com.example --version 1.0.0 --output maven --target phone --json android.json
release apple two-out/bundle --output swift
release snippet two-out/bundle --for cpp --target phone
release snippet two-out/bundle --for python --target desk
release two.toml
bundle rebuild two-out
prove two-out/bundle --target desk --library nowhere.so
lab submit two.toml --database sqlite:///lab.sqlite
schema
completion bash
"""
CONVERTED = ("mobilenet_v2.base", "distilbert.base", "face_embedding.fp16", "blazeface.qdq_u8u8", "lstm_classifier.dyn")
PROVIDERS = "nnapi,coreml-nn,coreml-mlprogram,xnnpack"
LONGER = {"model": MODEL, "documents": "--junit gate.xml --sarif gate.sarif --markdown gate.md --json gate.json"}


def models() -> Iterator[str]:
    """The command lines of `record FOLDER models`."""
    from tests.command import leaves

    yield from (f"{name} --help" for name, _ in leaves())
    yield "run build_configs/mnist.toml --convert-only --output example"
    yield "convert digits.onnx --output out --dimension bacth=1"
    converted = " ".join(f"all/{name}.onnx" for name in CONVERTED)
    yield f"convert {converted} --output all-plain"
    yield f"convert {converted} --output all-nnapi --ep nnapi --ort-release 1.23 --reference none"
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".onnx")):
            yield f"partition all/{name} --ep {PROVIDERS} --ort-release 1.23 --json {name}.json"


def prepare(folder: Path) -> None:
    """The files that the script's commands are given."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    example = ROOT / "build_configs" / "examples" / "mnist"
    shutil.copytree(example, folder / "digits")
    shutil.copytree(ROOT / "build_configs", folder / "build_configs")
    shutil.copy(example / "mnist.onnx", folder / "digits.onnx")
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        archive.extractall(folder / "real", [f"{name}.onnx" for name in REAL])
        archive.extractall(folder / "all", [name for name in archive.namelist() if name.endswith(".onnx")])
        (folder / "quantized.onnx").write_bytes(archive.read("mnist.qdq_u8u8.onnx"))
        (folder / "mlp.onnx").write_bytes(archive.read("mlp_tabular.dyn.onnx"))
    for name, text in FILES.items():
        (folder / name).write_text(text)
    key = ec.derive_private_key(2**200 + 1, ec.SECP256R1())
    pem = serialization.Encoding.PEM
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "key.pem").chmod(0o600)
    (folder / "public.pem").write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


class StandingClock(dt.datetime):
    """The instant NOW, for code that asks for the date."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> "StandingClock":
        return cls.fromtimestamp(NOW, tz)


def stop_the_clock() -> None:
    """Make the times, names and random numbers of this process the same in every run; others keep theirs."""
    import device_runner.result

    counter = itertools.count()
    patches: tuple[tuple[object, str, object], ...] = (
        (time, "time", lambda: NOW),
        (time, "monotonic", lambda: 1000.0),
        (time, "perf_counter", lambda: 1000.0),
        (time, "monotonic_ns", lambda: 10**12),
        (time, "perf_counter_ns", lambda: 10**12),
        (device_runner.result, "datetime", StandingClock),
        (secrets, "token_hex", lambda size=32: f"{next(counter):0{2 * size}x}"),
        (socket, "gethostname", lambda: "host"),
        (tempfile, "_get_candidate_names", lambda: (f"t{number}" for number in itertools.count())),
    )
    for owner, name, value in patches:
        setattr(owner, name, value)


def latencies(digest: bytes, rounds: bytes, count: int) -> tuple[int, ...]:
    """Nanoseconds between 2 and 4 ms that follow from what is run, less than 1 % apart from round to round."""
    base = 2_000_000 + int.from_bytes(digest[:4]) % 2_000_000
    return tuple(base + (rounds[number % 32] * 61 + number) % 17_000 for number in range(count))


def script_devices(journal: Path) -> None:
    """Let this computer run every spec for its outputs, and say of times and memory what follows from the spec."""
    import device_runner.local as local
    from device_runner.result import Conditions, RunResult
    from device_runner.spec import RunSpec

    run = local.LocalDevice.run

    def scripted(self: local.LocalDevice, spec: RunSpec) -> RunResult:
        with journal.open("a") as file:
            file.write(json.dumps(msgspec.to_builtins(spec), sort_keys=True) + "\n")
        result = run(self, spec)
        model = hashlib.sha256(Path(spec.model).read_bytes() if Path(spec.model).is_file() else b"")
        what = hashlib.sha256(model.digest() + msgspec.json.encode(spec.options)).digest()
        times = latencies(what, hashlib.sha256(spec.id.encode()).digest(), min(spec.min_runs or 5, 50))
        fixed: dict[str, Any] = {"before": Conditions(), "after": Conditions(), "host": "host"}
        if result.latencies_ns:
            fixed |= {"latencies_ns": times, "warmup_ns": times[:3], "warmup": None, "marks": ()}
            fixed |= {"open_ns": 10**6, "load_ns": 10 * times[0], "first_run_ns": 2 * times[0], "push_ns": 0}
            fixed |= {
                "memory_before_load_bytes": 10**7,
                "memory_after_load_bytes": 2 * 10**7,
                "memory_peak_bytes": 3 * 10**7,
            }
        if result.profile_file:
            fixed |= {"profile_file": None}
        return msgspec.structs.replace(result, **fixed)

    def facts(name: str) -> Any:
        return msgspec.structs.replace(asked(name), free_bytes=10**11, core_max_mhz=(), os_release="6")

    asked = local.host_facts
    patches: tuple[tuple[object, str, object], ...] = (
        (local, "host_facts", facts), (local.LocalDevice, "run", scripted),
    )  # fmt: skip
    for owner, name, value in patches:
        setattr(owner, name, value)


def child(arguments: list[str], folder: Path, journal: Path) -> int:
    """Run one command in this process, which ends with it."""
    os.chdir(folder)
    stop_the_clock()
    script_devices(journal)
    from pipeline.cli import main as command

    sys.argv = ["ort-mobile", *arguments]
    try:
        command.main()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:  # noqa: BLE001 - recorded as such
        traceback.print_exc()
    return 99


def call(arguments: list[str], folder: Path, journal: Path, columns: int | None) -> dict[str, Any]:
    """One command in a process of its own: stderr goes to a file, stdout too, or to a terminal of so many columns."""
    out, err = folder.parent / "stdout", folder.parent / "stderr"
    parent_end, child_end = pty.openpty()
    ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns or 80, 0, 0))
    pid = os.fork()
    if not pid:
        os.close(parent_end)
        stdout = child_end if columns else os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        stderr = os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        stdin = os.open(os.devnull, os.O_RDONLY)
        for number, stream in enumerate((stdin, stdout, stderr)):
            os.dup2(stream, number)
        # the parent's streams know whether its own files can seek
        sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", encoding="utf-8")
        os.environ |= {"TERM": "xterm-256color"}
        code = child(arguments, folder, journal)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    os.close(child_end)
    shown = b""
    while select.select([parent_end], [], [])[0]:
        try:
            part = os.read(parent_end, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        shown += part
    os.close(parent_end)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = (shown if columns else out.read_bytes()).decode("utf-8", "replace").replace("\r\n", "\n")
    return {"exit": code, "stdout": text, "stderr": err.read_text("utf-8", "replace")}


def content(path: Path) -> Any:
    """What is kept of a file: its text, the digests of an archive's members, or its digest."""
    data = path.read_bytes()
    if data.startswith(b"PK\3\4"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    if len(data) <= TEXT_BYTES and b"\0" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode()
    return hashlib.sha256(data).hexdigest()


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file that counts, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not IGNORED.search(str(path)))
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def record(top: Path, lines: Iterable[str], widths: Iterable[int | None]) -> Iterator[dict[str, Any]]:
    """Every command in every kind of output, with what it left."""
    for columns in widths:
        folder, journal = top / "work", top / "journal"
        for name in (folder, top / "home"):
            shutil.rmtree(name, ignore_errors=True)
            name.mkdir(parents=True)
        # As root, adb would start a server even there
        os.environ |= {"HOME": str(top / "home"), "ANDROID_ADB_SERVER_PORT": "1", "ADBUTILS_ADB_PATH": "/bin/false"}
        prepare(folder)
        for line in lines:
            journal.write_text("")
            before = states(folder)
            answer = call(line.split(), folder, journal, columns)
            answer |= {"command": line, "columns": columns}
            if not columns:
                after = states(folder)
                answer["files"] = {name: content(folder / name) for name in after if after[name] != before.get(name)}
                answer["gone"] = [name for name in before if name not in after]
                answer["specs"] = sorted(journal.read_text().splitlines())
            print(f"{columns or 'pipe'}: {answer['exit']} {line}", file=sys.stderr, flush=True)
            yield answer


def as_lines(value: Any) -> list[str]:
    """A recorded value as lines to compare."""
    text = value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    return text.splitlines()


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What is not the same of one command, as lines of a diff."""
    pairs = {key: (before.get(key), after.get(key)) for key in ("exit", "stdout", "stderr", "gone", "specs")}
    files = [each.get("files", {}) for each in (before, after)]
    pairs |= {f"file {name}": (files[0].get(name), files[1].get(name)) for name in sorted({*files[0], *files[1]})}
    for name, (old, new) in pairs.items():
        if old != new:
            yield f"== {before['columns'] or 'pipe'}: {before['command']}: {name}"
            yield from list(difflib.unified_diff(as_lines(old), as_lines(new), "before", "after", n=0, lineterm=""))[2:]


def load(folder: Path) -> dict[tuple[str, int, int | None], dict[str, Any]]:
    """The records of a folder by command, its number among equal ones, and width."""
    records: dict[tuple[str, int, int | None], dict[str, Any]] = {}
    for line in (folder / "recorded.jsonl").read_text().splitlines():
        row = json.loads(line)
        number = sum((row["command"], row["columns"]) == (key[0], key[2]) for key in records)
        records[row["command"], number, row["columns"]] = row
    return records


def main() -> int:
    """Record, or compare two recordings."""
    match sys.argv[1:]:
        case ["record", name, *rest] if rest in ([], ["pipe"], ["models"]):
            script = [line.format(**LONGER) for line in SCRIPT.strip().splitlines()]
            lines = list(models()) if rest == ["models"] else script
            top = Path(name).resolve()
            top.mkdir(parents=True, exist_ok=True)
            with (top / "recorded.jsonl").open("w") as file:
                for row in record(top, lines, (None,) if rest else (None, 80, 160)):
                    file.write(json.dumps(row).replace(str(top), "FOLDER").replace(str(ROOT), "CODE") + "\n")
            return 0
        case ["compare", old, new]:
            before, after = load(Path(old)), load(Path(new))
            widths = {width for _, _, width in after}
            before = {key: row for key, row in before.items() if key[2] in widths}
            changes = [f"== {'gone' if key in before else 'new'}: {key}" for key in before.keys() ^ after.keys()]
            for key in [key for key in before if key in after]:
                changes += differences(before[key], after[key])
            print("\n".join([*changes, f"{len(before)} recorded, {len(changes)} lines differ"]))
            return int(bool(changes))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
