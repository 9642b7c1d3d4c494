"""One model to all its artifacts: what they hold, nothing done twice, errors where they belong."""

import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.convert import ConvertRequest, ConvertResult, convert_model
from pipeline.convert.cache import Cache, semantic_digest
from pipeline.convert.request import OptimizerPlatform
from pipeline.core.errors import ConfigError, MissingError, ModelError, PipelineError
from pipeline.core.files import sha256_of
from pipeline.core.variant import ConvertedFile, Level, Style, Variant
from pipeline.core.workers import Task, run_tasks
from pipeline.model.ort_format import read_ort
from pipeline.model.sources import SourceModel
from tests.onnx_samples import conv_bn, linear, make, parsed_nodes, quantized, save, value
from tests.ort_models import ORT_STYLES, four_bits, parsed

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"
EIGHT = tuple(Variant(level=level, style=style) for level in Level if level is not Level.LAYOUT for style in ORT_STYLES)


def request(path: Path, folder: Path, variants: tuple[Variant, ...] = EIGHT, cache: str = "") -> ConvertRequest:
    return ConvertRequest(
        source=SourceModel(path=str(path)), variants=variants, stem="m", output_folder=str(folder / "out"),
        work_folder=str(folder / "work"), cache_folder=cache and str(folder / cache),
    )  # fmt: skip


def convert(path: Path, folder: Path, variants: tuple[Variant, ...] = EIGHT, cache: str = "") -> ConvertResult:
    return convert_model(request(path, folder, variants, cache))


def operators(result: ConvertResult, name: str) -> dict[str, int]:
    return next(a.operators for a in result.artifacts if a.variant.name == name)


def test_the_facts_of_the_mnist_topology(tmp_path: Path) -> None:
    result = convert(MNIST, tmp_path)
    source = result.artifacts[0].source_operators
    assert source["ai.onnx:Conv"] == 2
    assert source["ai.onnx:Add"] == 3
    assert source["ai.onnx:Reshape"] == 2
    assert operators(result, "none-fixed") == source
    basic = operators(result, "basic-fixed")
    assert basic == {
        "ai.onnx:Conv": 2, "ai.onnx:Gemm": 1, "ai.onnx:MaxPool": 2, "ai.onnx:Relu": 2, "ai.onnx:Reshape": 1,
    }, "Conv+Add merged, MatMul+Add is Gemm, one Reshape folded"  # fmt: skip
    extended = operators(result, "extended-fixed")
    assert extended["com.microsoft:FusedConv"] == 2
    assert "ai.onnx:Relu" not in extended
    assert operators(result, "extended-runtime") == basic


@pytest.mark.parametrize("style", [Style.FIXED, Style.ONNX])
def test_the_layout_of_this_processor_is_in_the_notes(style: Style, tmp_path: Path) -> None:
    variants = tuple(Variant(level=level, style=style) for level in (Level.EXTENDED, Level.ALL))
    plain, laid_out = convert_model(
        msgspec.structs.replace(request(MNIST, tmp_path, variants), platform=OptimizerPlatform.AMD64)
    ).artifacts
    assert "com.microsoft.nchwc:Conv" in laid_out.operators
    assert [sum("NCHWc" in note for note in artifact.notes) for artifact in (plain, laid_out)] == [0, 1]


def test_an_onnx_file_is_whole_and_says_its_types(tmp_path: Path) -> None:
    model = parsed("""g (bool c, float[1, 64] x) => (float[1, 128] y) {
        a = Relu (x)
        y = If (c) <then_branch = t () => (float[1, 128] p) { p = MatMul (a, w) },
                    else_branch = e () => (float[1, 128] q) { q = MatMul (x, w) }>
    }""")
    weights = numpy_helper.from_array(np.ones((64, 128), np.float32), "w")
    for attribute in model.graph.node[1].attribute:
        attribute.g.initializer.append(weights)
    variants = tuple(Variant(level=level, style=Style.ONNX) for level in (Level.NONE, Level.BASIC, Level.EXTENDED))
    for artifact in convert_model(request(save(model, tmp_path / "m.onnx"), tmp_path, variants)).artifacts:
        made = onnx.load(tmp_path / "out" / artifact.file, load_external_data=False)
        bodies = [attribute.g for node in made.graph.node for attribute in node.attribute if attribute.HasField("g")]
        assert [len(body.initializer[0].raw_data) for body in bodies] == [64 * 128 * 4] * 2
        assert "a" in {value.name for value in made.graph.value_info}


def test_every_artifact_is_what_it_says(tmp_path: Path) -> None:
    result = convert(save(quantized(), tmp_path / "q.onnx"), tmp_path)
    assert [a.variant for a in result.artifacts] == list(EIGHT)
    for artifact in result.artifacts:
        file = tmp_path / "out" / artifact.file
        assert artifact.file == f"m.{artifact.variant.name}.ort"
        assert (artifact.size_bytes, artifact.sha256) == (file.stat().st_size, sha256_of(file))
        assert artifact.semantic_digest == semantic_digest(read_ort(file), file.read_bytes())
        assert artifact.operators == Counter(node.operator for node in read_ort(file).graph.nodes)
    records = read_ort(tmp_path / "out" / "m.all-runtime.ort").graph.runtime_optimizations
    assert {r.optimizer for r in records} == {"QDQSelectorActionTransformer"}


def test_equal_files_are_one_file(tmp_path: Path) -> None:
    result = convert(save(linear(), tmp_path / "m.onnx"), tmp_path)
    inodes: dict[str, set[int]] = {}
    for artifact in result.artifacts:
        inodes.setdefault(artifact.sha256, set()).add((tmp_path / "out" / artifact.file).stat().st_ino)
    assert len(inodes) < len(result.artifacts)
    assert all(len(files) == 1 for files in inodes.values())


def test_artifacts_compute_what_the_model_computes(tmp_path: Path) -> None:
    import onnxruntime

    path = save(conv_bn(), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)
    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    for artifact in convert(path, tmp_path).artifacts:
        session = onnxruntime.InferenceSession(
            str(tmp_path / "out" / artifact.file), providers=["CPUExecutionProvider"]
        )
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=2e-4, atol=2e-4)


SCRIPT = """
import os, sys, time
os.umask(int(sys.argv[3], 8)); time.tzset()
from collections.abc import Iterator
from pathlib import Path
from tests.convert.test_engine import convert
for artifact in convert(Path(sys.argv[1]), Path(sys.argv[2])).artifacts:
    print(artifact.file, artifact.sha256, artifact.semantic_digest)
"""


def test_bytes_depend_on_nothing_but_the_model(tmp_path: Path) -> None:
    path = save(quantized(), tmp_path / "q.onnx")
    answers = set()
    for number, (umask, zone, locale) in enumerate([("022", "UTC", "C"), ("077", "Asia/Tokyo", "tr_TR.UTF-8")]):
        folder = tmp_path / f"folder {number}"
        folder.mkdir()
        python_path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "convert")])
        environment = {
            **os.environ,
            "TZ": zone,
            "LC_ALL": locale,
            "PYTHONPATH": python_path,
            "PYTHONHASHSEED": str(number),
        }
        command = [sys.executable, "-c", SCRIPT, str(path), str(folder), umask]
        answers.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
        assert (folder / "out" / "m.none-fixed.ort").stat().st_mode & 0o777 == 0o666 & ~int(umask, 8)
    assert len(answers) == 1


@pytest.mark.parametrize("model", [linear, conv_bn, quantized])
def test_a_variant_has_the_same_bytes_alone_and_among_others(
    model: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    """One session serves level basic and the recording of fusions where there are none to record."""
    path = save(model(), tmp_path / "m.onnx")
    among = {artifact.variant: artifact.sha256 for artifact in convert(path, tmp_path / "all").artifacts}
    for variant in EIGHT[2:6]:
        (alone,) = convert(path, tmp_path / variant.name, (variant,)).artifacts
        assert alone.sha256 == among[variant], variant.name


def test_unchanged_models_are_not_converted_again(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    first = convert(path, tmp_path, cache="cache")
    again = convert(path, tmp_path, cache="cache")
    assert (first.reused, again.reused) == (0, 5)
    assert again.artifacts == first.artifacts
    assert "optimize" not in again.timings_ns
    save(linear(seed=7), path)
    assert convert(path, tmp_path, cache="cache").reused == 0


@pytest.mark.parametrize("harm", ["changed", "cut", "gone", "entry"])
def test_a_cache_that_was_harmed_is_not_believed(tmp_path: Path, harm: str) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    first = convert(path, tmp_path, cache="cache")
    for file in sorted((tmp_path / "cache" / ("entries" if harm == "entry" else "objects")).iterdir()):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.unlink()
        if harm != "gone":
            file.write_bytes(content if harm == "changed" else content[:40])
    again = convert(path, tmp_path, cache="cache")
    assert again.reused < 5, "only what this very run has made anew"
    assert again.artifacts == first.artifacts
    assert all(sha256_of(tmp_path / "out" / a.file) == a.sha256 for a in again.artifacts)


def test_an_entry_counts_under_its_own_key_only(tmp_path: Path) -> None:
    """Another model's entry in its place, or another variant's, costs a conversion and never gives that file."""
    path, other = save(linear(), tmp_path / "m.onnx"), save(linear(seed=7), tmp_path / "other.onnx")
    first = convert(path, tmp_path, cache="cache")
    entries = tmp_path / "cache" / "entries"
    own = sorted(entries.iterdir())
    for place, taken in zip(own, [*own[1:], own[0]], strict=True):
        (tmp_path / place.name).write_bytes(taken.read_bytes())
    for place in own:
        (tmp_path / place.name).replace(place)
    again = convert(path, tmp_path, cache="cache")
    assert again.reused == 0
    assert again.artifacts == first.artifacts
    convert(other, tmp_path, cache="cache")
    (foreign,) = [p for p in entries.iterdir() if p not in own][:1]
    for place in own:
        place.write_bytes(foreign.read_bytes())
    last = convert(path, tmp_path, cache="cache")
    assert (last.reused, last.artifacts) == (0, first.artifacts)


def test_an_edit_of_an_output_does_not_reach_the_cache_nor_outputs_of_another_time(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    first = convert(path, tmp_path, cache="cache")
    (tmp_path / "out").rename(tmp_path / "earlier")
    assert convert(path, tmp_path, cache="cache").reused == 5
    for artifact in first.artifacts:
        with (tmp_path / "earlier" / artifact.file).open("r+b") as file:
            file.seek(64)
            file.write(b"edited")
    assert all(sha256_of(tmp_path / "out" / artifact.file) == artifact.sha256 for artifact in first.artifacts)
    assert all(sha256_of(path) == path.stem for path in (tmp_path / "cache" / "objects").iterdir())


def test_what_another_process_kept_meanwhile_stays(tmp_path: Path) -> None:
    """onnxruntime orders some files by addresses; a campaign that is resumed must get the bytes that it had."""
    cache, results = Cache(tmp_path / "cache"), []
    for number in range(2):
        path = tmp_path / f"{number}.ort"
        path.write_bytes(bytes([number]) * 8)
        file = ConvertedFile(size_bytes=8, sha256=sha256_of(path), semantic_digest="", operators={})
        results.append(cache.keep("key", file, path))
    (first, _), (second, kept) = results
    assert second == first
    assert kept.read_bytes() == bytes(8)
    assert cache.find("key") == (first, kept)


@pytest.mark.parametrize("place", ["cache", "cache/objects", "cache/entries"])
def test_a_cache_that_cannot_be_written_costs_no_model(tmp_path: Path, place: str) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("a file in the place of a folder")
    done = convert(path, tmp_path, cache="cache")
    assert (len(done.artifacts), done.failures, done.reused) == (8, (), 0)


def test_the_key_covers_every_source_that_conversion_imports(tmp_path: Path) -> None:
    """Sources that are left out of the key must not be imported by any conversion, provider-aware ones included."""
    code = (
        "import sys; from pathlib import Path; from tests.convert import test_engine as t\n"
        "from pipeline.core.own_sources import ROOT, imported_sources\n"
        "folder = Path(sys.argv[1]); path = t.save(t.linear(), folder / 'm.onnx')\n"
        "aware = [t.Variant(level=level, providers=(p,)) for level in t.Level if level is not t.Level.LAYOUT\n"
        "         for p in ('nnapi', 'xnnpack', 'coreml-mlprogram')]\n"
        "done = t.convert(path, folder, (*t.EIGHT, *aware), cache='cache')\n"
        "assert any(artifact.variant.providers for artifact in done.artifacts), done.failures\n"
        "ours = ('pipeline.', 'device_runner.')\n"
        "files = {Path(m.__file__) for n, m in sys.modules.items() if n.startswith(ours) and m.__file__}\n"
        "files -= {*imported_sources('pipeline.convert.engine'), Path(t.run_tasks.__code__.co_filename)}\n"
        "print(*sorted(str(f.relative_to(ROOT)) for f in files))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


def failing() -> onnx.ModelProto:
    """A model whose operator exists in no opset."""
    return make(parsed_nodes("y = Reluu (x)"), [value("x", [1])], [value("y", [1])], [])


def test_what_onnxruntime_refuses_is_told_for_every_variant(tmp_path: Path) -> None:
    result = convert(save(failing(), tmp_path / "m.onnx"), tmp_path)
    assert result.artifacts == ()
    assert [f.variant for f in result.failures] == list(EIGHT)
    for failure in result.failures:
        assert "Reluu" in failure.what
        assert failure.remedy
        assert not failure.skipped
    assert list((tmp_path / "out").iterdir()) == []


def test_what_the_target_lacks_is_skipped_and_the_rest_is_done(tmp_path: Path) -> None:
    variants = (Variant(level=Level.LAYOUT), Variant(level=Level.BASIC))
    asked = msgspec.structs.replace(request(MNIST, tmp_path, variants), release="1.22")
    result = convert_model(asked)
    assert [a.variant.name for a in result.artifacts] == ["basic-fixed"]
    assert [(f.variant.name, f.skipped) for f in result.failures] == [("layout-fixed", True)]
    assert "1.23" in result.failures[0].why


def test_open_dimensions_are_told_and_fixed(tmp_path: Path) -> None:
    path = save(linear(), tmp_path / "m.onnx")
    asked = request(path, tmp_path, EIGHT[:1])
    assert convert_model(asked).dynamic == ("x[0] batch",)
    fixed = convert_model(msgspec.structs.replace(asked, fixed_dimensions={"batch": 3}))
    assert fixed.dynamic == ()
    with pytest.raises(ConfigError, match="no open dimension"):
        convert_model(msgspec.structs.replace(asked, fixed_dimensions={"bath": 3}))


def test_the_app_is_told_to_replay_what_was_recorded(tmp_path: Path) -> None:
    asked = request(MNIST, tmp_path, (Variant(level=Level.ALL, style=Style.RUNTIME), Variant(level=Level.ALL)))
    for release, options in (("1.29", {}), ("1.30", {"session.enable_saved_runtime_optimizations": "1"})):
        runtime, fixed = convert_model(msgspec.structs.replace(asked, release=release)).artifacts
        assert runtime.session_options == options
        assert fixed.session_options == {}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(PipelineError, match="cannot write") as caught:
        convert(MNIST, tmp_path)
    assert "a file stands where a folder is needed" in caught.value.remedy


def limited(asked: ConvertRequest) -> ConvertResult:
    """Convert where no file may grow over 50 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    return convert_model(asked)


@pytest.mark.usefixtures("own_workers")
def test_a_file_that_cannot_grow_leaves_nothing_half_written(tmp_path: Path) -> None:
    asked = request(save(linear(), tmp_path / "m.onnx"), tmp_path)
    outcome = next(iter(run_tasks([Task(label="m", call=partial(limited, asked))])))
    assert outcome.value is not None
    assert outcome.value.artifacts == ()
    assert all("could not be written" in failure.what for failure in outcome.value.failures)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
        env={"PATH": os.defpath}, capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], env={"PATH": os.defpath}, check=True)


def test_a_full_disk_is_one_clear_error_and_nothing_half_written(tiny_disk: Path, tmp_path: Path) -> None:
    path = save(linear(512), tmp_path / "m.onnx")
    with pytest.raises(MissingError) as caught:
        convert(path, tiny_disk)
    assert "full" in caught.value.why or "No space left" in caught.value.why
    assert "free some space" in caught.value.remedy
    assert list((tiny_disk / "out").iterdir()) == []


def test_impossible_constants_and_endless_functions_are_refused(tmp_path: Path) -> None:
    shape = onnx.numpy_helper.from_array(np.array([1 << 40], np.int64), "shape")
    bomb = make(parsed_nodes("y = ConstantOfShape (shape)"), [], [value("y", None)], [shape])
    with pytest.raises(ModelError, match="impossible size"):
        convert(save(bomb, tmp_path / "bomb.onnx"), tmp_path)
    deep = make(parsed_nodes("y = f.F0 (x)"), [value("x", [1])], [value("y", [1])], [])
    deep.opset_import.append(helper.make_opsetid("f", 1))
    for depth in range(150):
        body = [helper.make_node(f"F{depth + 1}", ["a"], ["b"], domain="f")]
        deep.functions.append(helper.make_function("f", f"F{depth}", ["a"], ["b"], body, list(deep.opset_import)))
    with pytest.raises(ModelError, match="nested too deep"):
        convert(save(deep, tmp_path / "deep.onnx"), tmp_path)


@pytest.mark.parametrize("level", [Level.NONE, Level.BASIC])
@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_four_bit_weights_are_refused(tmp_path: Path, place: str, level: Level) -> None:
    """ONNX Runtime would write a file that no release loads."""
    model = four_bits()
    if place == "attribute":
        (packed,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=packed))
        model.graph.initializer.remove(packed)
    result = convert(save(model, tmp_path / "m.onnx"), tmp_path, (Variant(level=level, style=Style.FIXED),))
    (failure,) = result.failures
    assert "is of type int4" in failure.why
    assert "--format onnx --level none" in failure.remedy
    assert not result.artifacts
    assert not list((tmp_path / "out").rglob("*.ort"))


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_four_bit_weights_that_a_level_packs_are_taken_at_it(tmp_path: Path, kind: int) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    constants = [
        helper.make_tensor("w", kind, [32, 8], [number % 7 for number in range(256)]),
        numpy_helper.from_array(np.full((2, 8), 0.1, np.float32), "s"),
    ]
    model = make(nodes, [value("x", [2, 32])], [value("y", [2, 8])], constants)
    model.opset_import[0].version, model.ir_version = 21, 10
    levels = [Variant(level=level, style=Style.FIXED) for level in (Level.NONE, Level.BASIC, Level.EXTENDED, Level.ALL)]
    original = Variant(level=Level.NONE, style=Style.ONNX)
    result = convert(save(model, tmp_path / "m.onnx"), tmp_path, (*levels, original))
    assert [failure.variant.level for failure in result.failures] == [Level.NONE, Level.BASIC]
    made = {artifact.variant: artifact.operators for artifact in result.artifacts}
    assert made[levels[2]] == made[levels[3]] == {"com.microsoft:MatMulNBits": 1}
    assert made[original] == {"ai.onnx:DequantizeLinear": 1, "ai.onnx:MatMul": 1}
