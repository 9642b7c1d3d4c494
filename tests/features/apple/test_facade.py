"""The generated Swift: names that Swift allows, hostile texts, and grammar, which one parser reads in every CI run."""

import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.spec import ElementType, RunOptions
from pipeline.config.app_data import OUTPUTS_OF, ImageBytes
from pipeline.core.errors import ConfigError
from pipeline.features.apple.sources import ELEMENTS, OWN_NAMES, SWIFT_WORDS, swift_class, swift_sources
from pipeline.release.manifest import ModelSignature
from tests.features.android.samples import manifest, signature, tensor
from tests.features.apple.samples import COREML, CPU, for_ios

HOSTILE = 'a"; } \\u0041 \\(x) */ \n ${x} {{ y }}'


def sources(*models: ModelSignature, **more: object) -> dict[str, str]:
    ships = [for_ios(model.model, **more) for model in models]
    return swift_sources(manifest(ships, models, name=HOSTILE), "phone", "AppModels")


def mistakes(source: str) -> list[str]:
    """Where a text is no Swift, by the grammar of tree-sitter."""
    tree_sitter = pytest.importorskip("tree_sitter", reason="tree-sitter-swift is not installed")
    swift = pytest.importorskip("tree_sitter_swift", reason="tree-sitter-swift is not installed")
    tree = tree_sitter.Parser(tree_sitter.Language(swift.language())).parse(source.encode())
    waiting, found = [tree.root_node], []
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.is_error or node.is_missing:
            found.append(f"{node.start_point}: {node.text!r}")
    return found


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("mnist", "Mnist"), ("ppocr-v4.det", "PpocrV4Det"), ("2d", "Model2d"), ("ort_x", "OrtX"), ("ORTx", "ORTxModel"),
        ("model file", "ModelFileModel"), ("app-models", "AppModelsModel"), ("模型", "Model"), ("self", "SelfModel"),
    ],
)  # fmt: skip
def test_classes_are_named_after_models(model: str, name: str) -> None:
    assert swift_class(model, "AppModels") == name


def test_every_type_way_and_hostile_text_is_swift() -> None:
    kinds = tuple(tensor(f"{kind}-in", 1, "n", dtype=kind) for kind in ELEMENTS)
    found = sources(
        signature("all", inputs=kinds, outputs=kinds),
        signature("none", inputs=(), outputs=(tensor("t"), tensor("u", dtype=ElementType.BOOL))),
        signature(HOSTILE, inputs=(tensor(HOSTILE, HOSTILE),), outputs=(tensor(HOSTILE, HOSTILE),)),
        runs=(COREML, RunOptions(session_config={HOSTILE: HOSTILE})), ort_release="1.28",
    )  # fmt: skip
    template = resources.files("pipeline.features.apple") / "templates/OnnxRuntimeBindings.swift"
    for name, source in {**found, "bindings": template.read_text("utf-8")}.items():
        assert mistakes(source) == [], name
    assert mistakes(found["All.swift"].replace("Runtime.tensor(", "Runtime.tensor((", 1))


def test_the_class_of_several_sizes_is_swift() -> None:
    def sized(name: str, size: int | str, of: str = "") -> ModelSignature:
        inputs = tuple(tensor(f"{kind}-in", 2, size, dtype=kind) for kind in ELEMENTS)
        padding = {f"{kind}-in": -1.5 if kind == "float32" else 7 for kind in ELEMENTS if kind != "string"}
        return signature(name, inputs=(*inputs, tensor("fixed", 3)), padding=padding, size_of=of)

    found = sources(sized("a", "n"), sized("a-9", 9, "a"), sized("a-2", 2, "a"))["ASizes.swift"]
    assert mistakes(found) == []
    assert 'names = ["a-2", "a-9", "a"]' in found
    assert "fits(stringInShape, shapes8[size], filled: false)" in found


def voices(kind: ElementType) -> ModelSignature:
    inputs = (tensor("samples", 1, 6, dtype=kind), tensor("h in", "batch", 2), tensor("rate", dtype=ElementType.INT64))
    outputs = (tensor("y", 1, 1), tensor("h out", "batch", 2))
    values = {"rate": 8000, "h in": 0.5}
    return signature("vad", inputs=inputs, outputs=outputs, state={"h out": "h in"}, values=values, rate=8000)


def test_classes_of_an_apps_own_data_are_swift() -> None:
    picture = tensor("image", 1, "height", "width", 3, dtype=ElementType.UINT8)
    outputs = {
        answer: tuple(tensor(name, 1, "n", dtype=kind) for name, kind in kinds.items())
        for answer, kinds in OUTPUTS_OF.items()
    }
    models = [
        signature(f"a {answer}", inputs=(picture,), outputs=given, image=ImageBytes.RGB, answer=answer)
        for answer, given in outputs.items()
    ]
    found = sources(*models, voices(ElementType.FLOAT32))
    assert {"AText.swift", "AMask.swift", "Vad.swift", "Answers.swift", "Pixels.swift"} <= found.keys()
    for name, source in found.items():
        assert mistakes(source) == [], name
    assert "public func segment(_ image: CGImage) throws -> Mask {" in found["AMask.swift"]
    assert "hIn: state0, hInShape: [1, 2], rate: [Int64](repeating: 8000, count: 1)" in found["Vad.swift"]


def test_a_tensor_of_integer_samples_is_refused_with_what_gives_the_same_outputs() -> None:
    with pytest.raises(ConfigError, match="samples is int16") as caught:
        sources(voices(ElementType.INT16))
    assert 'take `samples = "float"` and leave `divide` as it is' in str(caught.value.problem.remedy)


def test_a_gpu_warms_up_in_the_background_and_falls_back_visibly() -> None:
    webgpu = RunOptions(provider="webgpu", provider_options={"preferredLayout": "NCHW"})
    for_gpu = sources(signature("m", inputs=(tensor("x", 1), tensor("y", "n"))), runs=(webgpu, CPU))
    text = for_gpu["M.swift"]
    assert "public func warmUp(x: [Float], y: [Float], yShape: [Int]) -> DispatchWorkItem {" in text
    assert "_ = try self.run(x: x, y: y, yShape: yShape)" in text
    assert "DispatchQueue.global(qos: .utility).async(execute: background)" in text
    assert "(held, way, skipped) = try Runtime.open" in text
    assert all(mistakes(source) == [] for source in for_gpu.values())
    plain = sources(signature("m"), runs=(COREML, CPU))["M.swift"]
    assert "warmUp" not in plain
    assert "public let skipped: [String]" in plain


@given(st.lists(st.text(max_size=12), min_size=1, max_size=8))
def test_parameters_are_distinct_names_that_swift_allows(names: list[str]) -> None:
    found = sources(signature(inputs=tuple(tensor(name, None, 2) for name in names)))["M.swift"]
    listed = re.search(r"func run\((.*)\) throws", found)
    assert listed
    parameters = re.findall(r"(\S+): \[", listed[1])
    assert len(set(parameters)) == 2 * len(names)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", one) for one in parameters)
    assert not set(parameters) & (SWIFT_WORDS | OWN_NAMES)
