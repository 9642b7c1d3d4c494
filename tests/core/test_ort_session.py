"""Sessions on this computer's CPU."""

import time
from pathlib import Path

from pipeline.core.ort_session import make_session, session_options
from tests.passes.hostile_models import many_weights


def test_time_does_not_grow_with_the_square_of_the_initializers(tmp_path: Path) -> None:
    model = many_weights(20_000).SerializeToString()
    begun = time.process_time()
    make_session(model, session_options(save_to=tmp_path / "saved.onnx"))
    assert time.process_time() - begun < 4
