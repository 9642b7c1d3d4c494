"""Aware files by the installed onnxruntime's own provider.

No stock wheel for Linux has NNAPI or CoreML. The session, the saving and the comparison are driven with the one other
provider that it has, which claims nothing.
"""

from pathlib import Path

import pytest

from pipeline.convert import ConvertRequest, convert_model
from pipeline.convert import installed as module
from pipeline.errors import ConfigError
from pipeline.model_sources import SourceModel
from pipeline.partition.answer import Provider
from pipeline.partition.options import make_settings
from pipeline.variant import Level, Variant

MNIST = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist" / "mnist.onnx"
AWARE = Variant(level=Level.EXTENDED, providers=("nnapi",))
PLAIN = Variant(level=Level.EXTENDED)


def request(folder: Path, reference: str) -> ConvertRequest:
    return ConvertRequest(
        source=SourceModel(path=str(MNIST)), variants=(AWARE, PLAIN), stem="m", output_folder=str(folder / "out"),
        work_folder=str(folder / "work"), aware=(make_settings("nnapi"),), reference=reference,
    )  # fmt: skip


def test_a_wheel_without_the_provider_says_so(tmp_path: Path) -> None:
    if module.has_installed(make_settings("nnapi")):
        pytest.skip("this onnxruntime has NNAPI")
    with pytest.raises(ConfigError, match="has no NnapiExecutionProvider") as caught:
        convert_model(request(tmp_path, "installed"))
    assert "splicing" in caught.value.remedy


def test_its_own_session_saves_the_file_and_differing_claims_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.PROVIDERS, Provider.NNAPI, ("AzureExecutionProvider", {}))
    result = convert_model(request(tmp_path, "auto"))
    aware, plain = result.artifacts
    assert result.failures == ()
    assert aware.operators == plain.operators, "the provider claimed nothing, so this is the stock optimization"
    assert aware.claimed == {"nnapi": 0}
    assert "8 nodes are claimed by the installed onnxruntime or by our rules alone" in aware.notes[0]


def test_auto_splices_without_it(tmp_path: Path) -> None:
    spliced, again = (convert_model(request(tmp_path / name, name)) for name in ("auto", ""))
    assert spliced.artifacts[0].claimed == {"nnapi": 8}
    assert spliced.artifacts[0].sha256 == again.artifacts[0].sha256
