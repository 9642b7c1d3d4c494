"""What is said of a model in another form names the file that was given, and no folder of work."""

from pathlib import Path

import pytest

from pipeline.config.tables import Step
from pipeline.convert.many import convert_models
from pipeline.convert.precisions import Conversion, ModelInPrecision, make_precisions
from pipeline.convert.request import AwareSpec, OptimizerPlatform
from pipeline.core.progress import NoProgress
from pipeline.core.variant import Level, Style, Variant
from pipeline.model.sources import NamedModel, SourceModel
from tests.configs import EXAMPLE

PREPARED = (Step(do="preprocess"),)


@pytest.mark.parametrize(
    ("steps", "precision", "called"), [((), "fp16", "mnist.onnx in fp16"), (PREPARED, "", "mnist.onnx")]
)
def test_errors_of_a_form_name_the_model_that_was_given(
    tmp_path: Path, steps: tuple[Step, ...], precision: str, called: str
) -> None:
    model = NamedModel(name="mnist", source=SourceModel(path=str(EXAMPLE / "mnist.onnx")), size_bytes=26_000)
    order = Conversion(model=model, base=ModelInPrecision(model=model, steps=steps), precisions=(precision,))
    (made,) = make_precisions([order], {}, tmp_path / "work", None, NoProgress())
    (form,) = made.models
    assert form.model.source.name == str(EXAMPLE / called)
    assert Path(form.model.source.path).is_relative_to(tmp_path / "work")
    Path(form.model.source.path).write_bytes(b"damaged")
    (converted,) = convert_models(
        [made], lambda precision: (Variant(level=Level.BASIC, style=Style.FIXED, precision=precision),),
        output=tmp_path / "out", cache=None, release="", platform=OptimizerPlatform.ARM, aware=AwareSpec(),
    )  # fmt: skip
    assert converted.error
    assert str(tmp_path) not in f"{converted.error.where} {converted.error.text}"
    assert converted.error.where == str(EXAMPLE / called)
