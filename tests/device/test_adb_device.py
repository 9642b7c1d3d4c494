"""Runs through a real adb server and a real adbd: push, run, pull, and what a phone says of itself."""

import statistics
import time
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest

import pipeline.partition.shown as claims
from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, LinkError, script, server_at
from device_runner.adb.server import list_serials
from device_runner.build import build_library
from device_runner.device import open_device
from device_runner.plugins import installed_plugin
from device_runner.providers import CHIPS
from device_runner.result import Failure, FailureKind, Mark, RailReading, Status
from device_runner.spec import ElementType, Plugin, RunOptions, RunSpec, TensorFile
from pipeline.partition import stand_in
from tests.command import ort_mobile
from tests.custom_ops.samples import library as custom_operator_library
from tests.custom_ops.samples import model as custom_operator_model
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Open, Phone
from tests.device.conftest import Count
from tests.device.npu import plugin_files
from tests.device_runner.test_power_rails import TRACE
from tests.features.sizes import two_sizes
from tests.ort_models import convert, texts
from tests.values import present


def quick(models: Path, model: str = "sum.onnx", **values: object) -> RunSpec:
    all_values = {"min_runs": 3, "min_seconds": 0.0, "dimensions": {"N": 2}, **values}
    return RunSpec(id=model, model=str(models / model), **all_values)  # type: ignore[arg-type]  # by name


def test_push_run_pull(opened: Open, phone: Phone, models: Path, tmp_path: Path) -> None:
    inputs = []
    values = {name: np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32) for name in "ab"}
    for name, value in values.items():
        value.tofile(tmp_path / name)
        inputs.append(TensorFile(name=name, dtype=ElementType.FLOAT32, shape=value.shape, file=str(tmp_path / name)))
    device = opened(phone)
    spec = quick(models, inputs=tuple(inputs), dimensions={"N": 4}, outputs_folder=str(tmp_path / "out"), profile=True)
    result = device.run(spec)
    assert result.status is Status.OK, result.failure
    assert result.device == f"adb:{phone.serial}"
    assert len(result.latencies_ns) == 3
    assert Mark.NOT_A_PHONE in result.marks
    wanted = onnxruntime.InferenceSession(models / "sum.onnx").run(None, values)
    for tensor, array in zip(result.outputs, wanted, strict=True):
        assert Path(tensor.file).parent == tmp_path / "out"
        np.testing.assert_array_equal(np.fromfile(tensor.file, np.float32).reshape(tensor.shape), array)
    assert result.profile_file
    assert '"Node"' in Path(result.profile_file).read_text()
    assert min(path.name for path in (tmp_path / "out").iterdir()) == "output_0.raw"


def test_strings_are_pushed_and_pulled(opened: Open, phone: Phone, tmp_path: Path) -> None:
    file = convert(texts(), tmp_path / "texts.ort")
    (tmp_path / "x").write_bytes("a\0ä\0".encode())
    given = TensorFile(name="x", dtype=ElementType.STRING, shape=(2,), file=str(tmp_path / "x"))
    result = opened(phone).run(
        RunSpec(id="texts", model=str(file), min_runs=1, inputs=(given,), outputs_folder=str(tmp_path / "out"))
    )
    assert result.status is Status.OK, result.failure
    numbers, strings = (Path(tensor.file) for tensor in result.outputs)
    assert np.fromfile(numbers, np.float32).tolist() == [1.0, 2.5]
    assert strings.read_bytes() == b"one\0two\0"


def test_custom_operators_are_pushed_and_registered(opened: Open, phone: Phone, tmp_path: Path) -> None:
    file = custom_operator_model(tmp_path / "twice.onnx")
    options = RunOptions(custom_ops=(str(custom_operator_library()),))
    spec = RunSpec(id="custom", model=str(file), min_runs=1, options=options)
    device = opened(phone)
    assert device.run(spec).status is Status.OK
    failure = present(device.run(msgspec.structs.replace(spec, options=RunOptions())).failure)
    assert "Twice of domain test.ops is unknown" in failure.why


def test_a_plugin_lies_with_its_files_in_the_run_folder(
    farm: Farm, tools: Tools, phone: Phone, models: Path, tmp_path: Path
) -> None:
    """By their names, as the linker and Qualcomm's DSP look for them; an option that names one gets its path there."""
    library = build_library(Path(claims.__file__).with_name("plugin"), stand_in.LIBRARY)
    stub, seen, wrapper = tmp_path / "libStub.so", tmp_path / "seen", tmp_path / "probe"
    stub.write_bytes(library.read_bytes() + b"stub")
    wrapper.write_text(f'#!/bin/sh\n(echo "$ADSP_LIBRARY_PATH"; echo "$LD_LIBRARY_PATH"; cat "$1") > {seen}\n'
                       f'exec "{tools[0]}" "$@"\n')  # fmt: skip
    plugin = Plugin(library=str(library), files=(str(stub),))
    options = RunOptions(
        provider="OrtMobileClaims", provider_options={"backend_path": str(stub)},
        session_config={stand_in.CLAIMS: "/dev/null"},
    )  # fmt: skip
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    with AdbDevice(link, root=phone.root, tools=(wrapper, tools[1])) as device:
        result = device.run(quick(models, plugin=plugin, options=options))
        assert "took none of the model's 2 nodes" in present(result.failure).what
        (folder,) = Path(phone.root).glob("run-*")
        stored = [folder / name for name in (library.name, stub.name)]
        assert [path.read_bytes() for path in stored] == [library.read_bytes(), stub.read_bytes()]
        dsp, linker, request = seen.read_bytes().split(b"\n", 2)
        assert dsp == bytes(folder)
        assert linker.startswith(bytes(folder) + b":")
        assert f"set\0plugin\0{stored[0]}\0".encode() in request
        assert f"option\0backend_path\0{stored[1]}\0".encode() in request
        assert device.run(quick(models)).status is Status.OK
        assert not seen.read_bytes().startswith(bytes(folder))
        assert not list(folder.glob("*.so"))


EXAMPLE = Path(__file__).parents[2] / "build_configs/examples/mnist"


@pytest.mark.npu
def test_a_context_finds_its_binary_and_gives_what_the_simulator_gives_here(
    opened: Open, phone: Phone, tmp_path: Path
) -> None:
    plugin = installed_plugin("qnn")
    if isinstance(plugin, Failure):
        pytest.skip("the package onnxruntime-qnn is not installed")
    plugin = msgspec.structs.replace(plugin, files=tuple(plugin_files(plugin)[1:]))
    levels = ("--level", "basic", "--style", "fixed", "--no-config")
    ort_mobile("convert", EXAMPLE / "mnist.onnx", "--output", tmp_path, *levels, "--context", "SM8650")
    context = tmp_path / "mnist.qnn-SM8650.onnx"
    options = RunOptions(provider="qnn", provider_options=CHIPS["SM8650"].options)
    spec = RunSpec(
        id="context", model=str(context), options=options, plugin=plugin, min_runs=1, min_seconds=0.0, warmup=0,
        outputs_folder=str(tmp_path / "phone"),
    )  # fmt: skip
    device = opened(phone)
    result = device.run(spec)
    assert result.status is Status.OK, result.failure
    with open_device("local") as local:
        here = local.run(msgspec.structs.replace(spec, outputs_folder=str(tmp_path / "here")))
    assert Path(result.outputs[0].file).read_bytes() == Path(here.outputs[0].file).read_bytes()
    context.with_name("mnist.qnn-SM8650_qnn.bin").unlink()
    lacking = device.run(spec)
    assert "not beside its ONNX file" in present(lacking.failure).why


def test_answers_to_a_labelled_set_come_back(opened: Open, phone: Phone, tmp_path: Path) -> None:
    samples = np.load(EXAMPLE / "evaluation.npz")["inputs"].astype(np.float32).reshape(-1, 1, 1, 28, 28)
    samples.tofile(tmp_path / "samples")
    session = onnxruntime.InferenceSession(EXAMPLE / "mnist.onnx")
    name = session.get_inputs()[0].name
    labelled = TensorFile(name=name, dtype=ElementType.FLOAT32, shape=samples.shape, file=str(tmp_path / "samples"))
    spec = RunSpec(
        id="mnist", model=str(EXAMPLE / "mnist.onnx"), labelled=labelled, min_runs=2, min_seconds=0.0,
        outputs_folder=str(tmp_path / "out"),
    )  # fmt: skip
    result = opened(phone).run(spec)
    assert result.status is Status.OK, result.failure
    assert result.labelled_outputs
    assert result.labelled_outputs.file == str(tmp_path / "out/output_labelled.raw")
    assert len(result.outputs) == 1
    answers = np.fromfile(result.labelled_outputs.file, np.float32).reshape(result.labelled_outputs.shape)
    wanted = np.stack([session.run(None, {name: sample})[0] for sample in samples])
    np.testing.assert_allclose(answers, wanted, rtol=1e-4, atol=1e-2)


def test_cold_starts_and_sustained_runs_come_back(opened: Open, phone: Phone, models: Path) -> None:
    device = opened(phone)
    cold = device.run(quick(models, cold=True, warmup=0, min_runs=0))
    assert cold.status is Status.OK, cold.failure
    assert cold.cold is not None
    assert cold.cold.model_bytes == (models / "sum.onnx").stat().st_size
    assert cold.cold.cold == (cold.cold.model_resident_bytes == 0), cold.cold.how
    assert cold.latencies_ns == ()
    lasting = device.run(quick(models, sustain_seconds=1.2))
    assert lasting.status is Status.OK, lasting.failure
    assert lasting.sustained is not None
    assert sum(each.inferences for each in lasting.sustained.bins) > 100
    assert lasting.sustained.samples
    found = device.run(quick(models, warmup="auto", min_runs=20))
    assert found.warmup is not None
    assert len(found.warmup_ns) + len(found.latencies_ns) == 25


PERFETTO = """[ "$*" = "--config - --txt --out -" ] || exit 1
grep -q collect_power_rails || exit 1
cat "$PHONE/trace"
echo 1 >> "$PHONE/traced"
[ $(wc -l < "$PHONE/traced") -gt 1 ] || exit 0
cat "$PHONE/trace.more"
"""
"""Prints a trace, and more of it when it is asked again."""


def test_sustained_runs_have_energy_by_power_rail(opened: Open, phone: Phone, models: Path) -> None:
    phone.write("bin/perfetto", f"#!/bin/sh\n{PERFETTO}").chmod(0o755)
    (phone.folder / "trace").write_bytes(TRACE)
    (phone.folder / "trace.more").write_bytes(bytes.fromhex("0a0dc2020a1208080410891818d03e"))
    device = opened(phone)
    lasting = device.run(quick(models, sustain_seconds=1.2))
    assert lasting.status is Status.OK, lasting.failure
    assert lasting.before.rails["S3M_VDD_CPUCL1"] == RailReading(at_ms=5, microjoules=666)
    assert lasting.after.rails["S3M_VDD_CPUCL1"] == RailReading(at_ms=3081, microjoules=8016)
    assert device.run(quick(models)).before.rails == {}


def test_a_phone_whose_rails_cannot_be_read_keeps_its_run(opened: Open, phone: Phone, models: Path) -> None:
    phone.write("bin/perfetto", "#!/bin/sh\nhead -c 3000000 /dev/zero\n").chmod(0o755)
    lasting = opened(phone).run(quick(models, sustain_seconds=1.2))
    assert lasting.status is Status.OK, lasting.failure
    assert lasting.before.rails == {}


def test_unchanged_files_are_not_pushed_again(opened: Open, farm: Farm, models: Path) -> None:
    phone = farm.phone()
    first = opened(phone)
    assert first.run(quick(models)).status is Status.OK
    assert first.store.pushed_bytes > 1e6
    first.close()
    second = opened(phone)
    assert second.run(quick(models)).status is Status.OK
    assert second.store.pushed_bytes == 0
    assert second.run(quick(models, "null.onnx")).status is Status.OK
    assert second.store.pushed_bytes == (models / "null.onnx").stat().st_size


def test_weights_of_several_models_are_pushed_once(opened: Open, farm: Farm, tmp_path: Path) -> None:
    made = two_sizes(tmp_path, shared=True) / "models"
    device = opened(farm.phone())
    assert device.run(quick(made, "m-2x3.basic-onnx.onnx", dimensions={})).failure is None
    before = device.store.pushed_bytes
    assert device.run(quick(made, "m-4x8.basic-onnx.onnx", dimensions={})).failure is None
    assert device.store.pushed_bytes - before == (made / "m-4x8.basic-onnx.onnx").stat().st_size


def test_what_a_run_costs_beside_its_probe(opened: Open, farm: Farm, models: Path, record_property: Count) -> None:
    """Printed, not judged: a busy computer is no failure."""
    phone = farm.phone(PHONE_PROPERTIES)
    first = opened(phone)
    assert first.run(quick(models)).status is Status.OK
    first.close()
    device, beside = opened(phone), []
    for _ in range(25):
        started = time.perf_counter()
        result = device.run(quick(models))
        seconds = time.perf_counter() - started
        assert result.status is Status.OK, result.failure
        beside.append(seconds - (result.load_ns + result.first_run_ns + sum(result.latencies_ns)) / 1e9)
    assert device.store.pushed_bytes == 0
    record_property("overhead of a run, nothing to push", f"median {1e3 * statistics.median(beside):.0f} ms of 25 runs")
    record_property(
        "pushed bytes", f"{first.store.pushed_bytes:,} by the first campaign, {device.store.pushed_bytes} by the next"
    )


def test_a_broken_file_on_the_device_is_pushed_again(opened: Open, farm: Farm, models: Path) -> None:
    phone = farm.phone()
    device = opened(phone)
    assert device.run(quick(models)).status is Status.OK
    device.close()
    stored = list((Path(phone.root) / "store").glob("*.onnx"))
    assert len(stored) == 1
    stored[0].write_bytes(stored[0].read_bytes()[:-1])
    again = opened(phone)
    assert again.run(quick(models)).status is Status.OK
    assert again.store.pushed_bytes == (models / "sum.onnx").stat().st_size


FAILURES = [
    ("noise.ort", {}, FailureKind.MODEL_LOAD),
    ("sum.onnx", {"dimensions": {}}, FailureKind.BAD_INPUT),
    ("null.onnx", {"options": RunOptions(provider="xnnpack")}, FailureKind.PROVIDER_MISSING),
    ("null.onnx", {"options": RunOptions(provider="nnapi")}, FailureKind.WRONG_DEVICE),
    ("endless.onnx", {"timeout_seconds": 0.5}, FailureKind.TIMEOUT),
    ("none.onnx", {}, FailureKind.MODEL_LOAD),
]


@pytest.mark.parametrize(("model", "values", "kind"), FAILURES)
def test_what_fails_is_a_typed_failure(
    opened: Open, phone: Phone, models: Path, model: str, values: dict[str, object], kind: FailureKind
) -> None:
    failure = present(opened(phone).run(quick(models, model, **values)).failure)
    assert failure.code is kind, failure
    assert failure.why
    assert failure.remedy


def test_facts_of_a_phone(opened: Open, farm: Farm) -> None:
    facts = opened(farm.phone(PHONE_PROPERTIES)).facts()
    assert (facts.platform, facts.api_level, facts.os_release) == ("android", 30, "11")
    assert (facts.manufacturer, facts.model, facts.soc) == ("Example", "Phone One", "QTI SM8450")
    assert facts.abis == ("x86_64", "arm64-v8a")
    assert (facts.battery_percent, facts.charging, facts.thermal_status) == (84, True, 0)
    assert facts.memory_bytes > 1e8
    assert facts.page_bytes == 4096
    assert facts.free_bytes > 1e6
    assert facts.nnapi is False


def test_conditions_and_marks_of_a_phone(opened: Open, farm: Farm, models: Path) -> None:
    phone = farm.phone(PHONE_PROPERTIES)
    thermal = phone.folder / "dumpsys/thermalservice"
    thermal.write_text(thermal.read_text().replace("Status: 0", "Status: 3"))
    result = opened(phone).run(quick(models))
    assert result.status is Status.OK, result.failure
    assert (result.before.thermal_status, result.before.battery_celsius, result.before.screen_on) == (3, 32.6, True)
    assert {Mark.THROTTLED, Mark.CHARGING} <= set(result.marks)
    assert 0 < result.push_ns < 300e9
    assert Mark.NOT_A_PHONE not in result.marks


HOSTILE = ["a b;c'd\"e $(touch /tmp/ort-mobile-was-here) `id`", "-rf", "new\nline", "*", "", "é\t\\", "&& true #", "--"]


def test_hostile_arguments_arrive_as_they_are(farm: Farm, phone: Phone) -> None:
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    output = link.shell(["printf", "%s\\0", *HOSTILE])
    assert output.stdout.decode().split("\0")[:-1] == HOSTILE
    output = link.shell(script('for a in "$@"; do printf "%s\\0" "$a"; done', *HOSTILE))
    assert output.stdout.decode().split("\0")[:-1] == HOSTILE
    assert not Path("/tmp/ort-mobile-was-here").exists()


def test_hostile_values_of_a_spec_run_nothing(opened: Open, farm: Farm, models: Path, tmp_path: Path) -> None:
    phone = farm.phone()
    device = opened(phone)
    for text in HOSTILE:
        options = RunOptions(
            provider=f"x{text}", session_config={f"k{text}": text}, provider_options={f"o{text}": text}
        )
        failure = present(device.run(quick(models, options=options)).failure)
        assert failure.code in (FailureKind.PROVIDER_MISSING, FailureKind.PROVIDER_REFUSED)
    for text in ("x; id;.onnx", "-rf.ort", "$(id).onnx"):
        (tmp_path / text).write_bytes((models / "null.onnx").read_bytes())
        assert device.run(RunSpec(id="x", model=str(tmp_path / text), min_runs=1)).failure is None or text == "-rf.ort"
    assert not Path("/tmp/ort-mobile-was-here").exists()


def test_a_shell_gives_codes_and_both_outputs(farm: Farm, phone: Phone) -> None:
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    output = link.shell(script("head -c 3; echo out; echo err >&2; exit 7"), stdin=b"abc")
    assert (output.returncode, output.stdout, output.stderr) == (7, b"abcout\n", b"err\n")
    assert link.shell(script("kill -SEGV $$")).returncode == 139


def test_a_device_that_is_not_there(farm: Farm) -> None:
    server = server_at(f"127.0.0.1:{farm.port}")
    with pytest.raises(LinkError, match="not found"):
        Link(server, "nobody; reboot").shell(["true"])
    assert ("nobody", "device") not in list_serials(server)
