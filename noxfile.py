"""Sessions only: each installs what it needs and calls one command. `nox -l` lists them.

Arguments after `--` go to the command: `nox -s convert -- my.onnx --output out`.
"""

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["pipeline"]

PROJECT = nox.project.load_toml("pyproject.toml")
EXAMPLE = "build_configs/mnist.toml"
RELEASE_TESTS = (
    "tests/convert", "tests/partition", "tests/splice", "tests/required_ops",
    "-m", "not slow and not android_host and not network",
)  # fmt: skip
FAST_TESTS = ("-n", "2", "-m", "not device and not slow and not android_host and not network")


def groups(*names: str) -> list[str]:
    """Requirements of dependency groups in pyproject.toml."""
    return [requirement for name in names for requirement in nox.project.dependency_groups(PROJECT, name)]


def command(session: nox.Session, *arguments: str) -> None:
    """Install the project and run one of its commands with the session's own arguments behind."""
    session.install("-e", ".")
    session.run("ort-mobile", *arguments, *session.posargs)


@nox.session
def pipeline(session: nox.Session) -> None:
    """The whole job: convert, check, measure, choose, bundle, report (build_configs/mnist.toml by default)."""
    command(session, "run", *([] if session.posargs else [EXAMPLE]))


@nox.session
def convert(session: nox.Session) -> None:
    """Convert models to ORT format: nox -s convert -- my.onnx --output out."""
    command(session, "convert")


@nox.session
def op_config(session: nox.Session) -> None:
    """Make, merge, prove and explain operator configs: nox -s op_config -- create out/*.ort."""
    command(session, "op-config")


@nox.session
def build_probe(session: nox.Session) -> None:
    """Build the probe for this computer or for Android: nox -s build_probe -- --abi arm64-v8a."""
    session.install("-e", ".[android]")
    session.run("ort-mobile", "build-probe", *session.posargs)


@nox.session
def devices(session: nox.Session) -> None:
    """List devices and whether each is ready."""
    command(session, "devices")


@nox.session
def perf(session: nox.Session) -> None:
    """Measure models on devices as they are: nox -s perf -- model.ort --device local."""
    command(session, "perf")


@nox.session
def build_ort(session: nox.Session) -> None:
    """Build ONNX Runtime as a config says: nox -s build_ort -- my.toml --source DIR --target linux-x86_64."""
    command(session, "build", "run")


@nox.session
def report(session: nox.Session) -> None:
    """Write the report of stored results again: nox -s report -- output/mnist."""
    command(session, "report")


@nox.session
def release(session: nox.Session) -> None:
    """Make the bundle of stored results again: nox -s release -- output/mnist."""
    command(session, "release")


@nox.session
def prove(session: nox.Session) -> None:
    """Run a bundle in the Android library that ships: nox -s prove -- output/my/bundle --library app.aar."""
    session.install("-e", ".[android]")
    session.run("ort-mobile", "prove", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Unit, property, oracle and integration tests; those that need a real adbd are in device_tests."""
    session.install("-e", ".[android]", *groups("test"))
    session.run("python", "-m", "pytest", *(session.posargs or FAST_TESTS))


@nox.session
def lint(session: nox.Session) -> None:
    """Check rules, format (ruff) and the one-way imports of docs/architecture.md (import-linter)."""
    session.install("-e", ".", *groups("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types (mypy --strict) of the packages, the tests, the benchmarks and this file."""
    session.install("-e", ".", *groups("test", "typecheck"))
    session.run("mypy")


@nox.session
def lowest(session: nox.Session) -> None:
    """The tests with the lowest versions of the dependencies that pyproject.toml allows."""
    lowest_versions = [requirement.replace(">=", "==") for requirement in PROJECT["project"]["dependencies"]]
    session.install("-e", ".[android]", *lowest_versions, *groups("test"))
    session.run("python", "-m", "pytest", *(session.posargs or FAST_TESTS))


@nox.session
def device_tests(session: nox.Session) -> None:
    """Tests with a real adb server and adbd of their own; never touches your devices.

    Schedules of faults take four minutes: `-- --schedule-seconds 20` for less, `-- --schedule-seconds 0` for all 1,000.
    """
    session.install("-e", ".[android]", *groups("test"))
    session.run("python", "-m", "pytest", "-m", "device", *session.posargs)


@nox.session
def library_tests(session: nox.Session) -> None:
    """Real libraries out of Maven Central, PyPI and npm: described, and run by the probe; skip without network."""
    session.install("-e", ".[android]", *groups("test"))
    session.run("python", "-m", "pytest", "-m", "network", "-rs", *session.posargs)


@nox.session
@nox.parametrize("onnxruntime", ["1.28.0", "1.29.0"])
def android_host_tests(session: nox.Session, onnxruntime: str) -> None:
    """Genuine Android libraries in processes of this computer; needs npm for the packages that carry them."""
    session.install("-e", ".[android]", f"onnxruntime=={onnxruntime}", *groups("test"))
    session.run("python", "-m", "pytest", "tests/android_host", "-n", "2", "-m", "android_host", *session.posargs)


@nox.session
@nox.parametrize("onnxruntime", ["1.21.0", "1.23.2", "1.28.0"])
def releases(session: nox.Session, onnxruntime: str) -> None:
    """Tests of conversion, claims and splicing with older wheels, a sample of the ground truth among them."""
    session.install("-e", ".", f"onnxruntime=={onnxruntime}", *groups("test"))
    session.run("python", "-m", "pytest", "-n", "2", *(session.posargs or RELEASE_TESTS))


@nox.session
@nox.parametrize("onnxruntime", ["1.21.0", "1.23.2", "1.28.0"])
def oracle(session: nox.Session, onnxruntime: str) -> None:
    """Agreement of claims and histograms with ground truth of real builds (tests/ground_truth), by release."""
    session.install("-e", ".", f"onnxruntime=={onnxruntime}", *groups("test"))
    release = onnxruntime.rpartition(".")[0]
    session.run("python", "-m", "tests.oracle_agreement", "--release", release, *session.posargs)
    if release == "1.23":  # the labels of operators are of this release
        session.run("python", "-m", "tests.oracle_histograms")


@nox.session
def op_config_proofs(session: nox.Session) -> None:
    """Operator configs proven both ways: all of tests/ground_truth and 10,000 generated models (--generated N)."""
    session.install("-e", ".", *groups("test"))
    session.run("python", "-m", "tests.op_config_proofs", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Side-by-side measurements with what users have today: ratios, medians, and this machine's noise."""
    session.install("-e", ".", *groups("bench"))
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def reference(session: nox.Session) -> None:
    """Generate docs/reference/ and the JSON schemas from the code."""
    session.install("-e", ".")
    session.run("python", "docs/make_reference.py")
