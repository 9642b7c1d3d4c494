"""Sessions on this computer's CPU."""

import time
from pathlib import Path

from pipeline.core.ort_session import load_session, make_session, session_options
from tests.onnx_samples import linear
from tests.passes.hostile_models import many_weights


def test_time_does_not_grow_with_the_square_of_the_initializers(tmp_path: Path) -> None:
    model = many_weights(20_000).SerializeToString()
    begun = time.process_time()
    make_session(model, session_options(save_to=tmp_path / "saved.onnx"))
    assert time.process_time() - begun < 4


def test_a_session_that_is_only_loaded_starts_no_threads() -> None:
    """A worker's limit of memory counts the stack of each thread, and a large computer has many cores."""
    session = load_session(linear(8).SerializeToString(), session_options())
    assert session.session_options.intra_op_num_threads == 1
