"""Bundles of one small model, made by the real parts, to be proven in genuine libraries."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx

from device_runner.spec import NnapiFlag, RunOptions
from pipeline.check.reference import make_reference
from pipeline.config import CheckConfig, ModelConfig
from pipeline.convert.op_configs import config_texts
from pipeline.core.files import sha256_of
from pipeline.core.variant import Level, Variant
from pipeline.dataset import Dataset
from pipeline.model.signature import TextTokens
from pipeline.model.sources import SourceModel
from pipeline.release.bundle import make_bundle
from pipeline.release.kept import KeptReference
from pipeline.release.manifest import Shipped
from pipeline.release.reference_files import keep_reference, signature_of
from tests.ort_models import convert

MODEL = "model"
CPU = RunOptions()


def parsed(text: str, opset: int) -> onnx.ModelProto:
    """A model from ONNX's text form, of an opset."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def nnapi(*flags: NnapiFlag) -> RunOptions:
    return RunOptions(provider="nnapi", flags=flags)


def bundle_of(
    folder: Path,
    model: onnx.ModelProto | Path,
    runs: Sequence[RunOptions] = (CPU,),
    *,
    level: Level = Level.BASIC,
    reference: bool = True,
    target: str = "phone",
    platform: str = "android",
    abis: tuple[str, ...] = (),
    min_api_level: int | None = 30,
    ort_release: str = "1.29",
    artifact: Callable[[Path], object] | None = None,
    table: ModelConfig | None = None,
    text: TextTokens | None = None,
    more: Mapping[str, bytes] = {},
) -> Path:
    """A bundle in folder/bundle, with `more` files; without `reference` it keeps nothing of the original.

    `artifact` writes another file than this computer's conversion gives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "model.onnx"
    onnx.save(onnx.load(model) if isinstance(model, Path) else model, source)
    file = convert(source, folder / "model.ort", level=level.value)
    if artifact:
        artifact(file)
    references, tensors = _reference(folder, source) if reference else ((), {})
    sources: dict[str, Path | bytes] = {"models/model.ort": file, **more}
    sources |= {f"operators/{name}": text.encode() for name, text in config_texts([file]).items()}
    shipped = Shipped(
        target=target,
        platform=platform,
        abis=abis,
        model=MODEL,
        model_sha256=sha256_of(source),
        variant=Variant(level=level),
        file="models/model.ort",
        semantic_digest="0" * 64,
        runs=tuple(runs),
        ort_release=ort_release,
        min_api_level=min_api_level,
        basis="advised",
    )
    make_bundle(
        folder / "bundle",
        name="demo",
        sources=sources,
        ships=(shipped,),
        made_with={},
        evidence={},
        models=(signature_of(MODEL, file, table or ModelConfig(path=""), text=text),),
        references=references,
        tensors=tensors,
    )
    return folder / "bundle"


def _reference(folder: Path, source: Path) -> tuple[tuple[KeptReference, ...], dict[str, Path]]:
    here = folder / "reference"
    made = make_reference(SourceModel(path=str(source)), {}, Dataset(), str(here), str(folder))
    kept = keep_reference(MODEL, made, here, CheckConfig())
    return (kept,), {tensor.path: here / Path(tensor.path).name for tensor in (*kept.inputs, *kept.outputs)}
