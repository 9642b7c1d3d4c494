"""`--fail-on`: what holds ends with 4, what is no condition with 2 and what may have been meant."""

import pytest

from tests.command import ROOT, ort_mobile

MNIST = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ("partitions>0", "with nnapi: partitions is 2"),
        ("nnapi.coverage<101%", ""),
        ("coverage=0", ""),
        ("refused:Dropout", ""),
    ],
)
def test_partition_judges_by_what_was_measured(condition: str, line: str) -> None:
    done = ort_mobile("partition", MNIST, "--ep", "nnapi", "-q", "--fail-on", condition, code=None)
    wrong = condition.endswith("101%")
    assert done.code == (2 if wrong else 4 if line else 0)
    assert line in done.err


def test_check_names_the_provider_that_refuses_an_operator() -> None:
    done = ort_mobile(
        "check", MNIST, "-q", "--fail-on", "refused:Reshape", "--fail-on", "coreml.refused:Reshape", code=4
    )
    assert done.err == f"error: --fail-on refused:Reshape: {MNIST} with xnnpack: Reshape is refused\n"


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ("coverge<0.9", "did you mean coverage<0.9?"), ("coverage<90", "did you mean coverage<90%?"),
        ("refused:Rezise", "did you mean refused:Resize?"), ("napi.partitions>1", "did you mean nnapi.partitions>1?"),
        ("memory>200MB", "conditions are partitions>1"), ("partitions>1MB", "did you mean partitions>1?"),
        ("waring", "did you mean warning?"), ("finding:pages", "conditions are partitions>1"), ("", "conditions are"),
    ],
)  # fmt: skip
def test_a_wrong_condition_is_refused_before_anything_is_done(condition: str, hint: str) -> None:
    assert hint in ort_mobile("check", "nothing.onnx", "--fail-on", condition, code=2).err
