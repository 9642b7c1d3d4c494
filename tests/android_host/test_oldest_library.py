"""The oldest library that can be had (1.17.1) beside our rules for the oldest release that we know (1.19).

The rules were never said to hold for it: this shows how far back they do, and what changed on the way to 1.19. What is
named here stands in docs/android-host.md. In each run recorded labels show it: tests/partition/test_android_labels.py.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from pipeline.core.releases import OLDEST_RULES
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.library_claims import LibraryClaims, differing
from pipeline.partition.many import judge_by_provider
from pipeline.partition.reference import claims_of_many
from tests.android_host.conftest import OLDEST, fetch

pytestmark = [pytest.mark.android_host, pytest.mark.sweep]

Side = dict[str, bool]
"""Nodes that one side alone claims: True for ours."""


def functions(model: Path, theirs: LibraryClaims, side: Side) -> bool:
    """It logs its claims once functions are inlined, and inlined nodes have no names: nothing can be compared."""
    return "" in theirs.nodes


def replaceable(model: Path, theirs: LibraryClaims, side: Side) -> bool:
    """Initializers that are graph inputs too count as constants for it; later releases refuse the node."""
    return "over" in model.stem and not any(side.values())


def quantized(model: Path, theirs: LibraryClaims, side: Side) -> bool:
    """Other groups between DequantizeLinear and QuantizeLinear: no Relu or Clip in them, fewer operators."""
    return "qdq" in str(model)


def shrinking(model: Path, theirs: LibraryClaims, side: Side) -> bool:
    """Resize shrinks by any factor; later releases ask for a whole divisor of the size."""
    return model.parent.name.startswith("resize_") and not any(side.values())


def to_bool(model: Path, theirs: LibraryClaims, side: Side) -> bool:
    """Cast to bool is refused."""
    return model.parent.name.startswith("cast") and all(side.values())


CLASSES: tuple[Callable[[Path, LibraryClaims, Side], bool], ...] = (
    functions, replaceable, quantized, shrinking, to_bool,
)  # fmt: skip
NEWER_SHAPES = re.compile("Dynamic shape is not supported")
"""Shapes of ours are the wheel's: where it knows more than 1.17.1 does, we claim and the library says this."""


def by_chance(answer: ModelAnswer) -> bool:
    """Its check reads beyond the node's inputs: mostly the process ends, and now and then the node is claimed."""
    return any("reads beyond its inputs" in (row.reason or "") for row in answer.decisions)


def compared(models: Iterable[Path], level: int) -> Iterator[tuple[Path, ModelAnswer, LibraryClaims, Side]]:
    """Models that both sides answer, with what one of them alone claims."""
    settings = Settings(provider="nnapi", ort_release=OLDEST_RULES, api_level=level)
    paths = list(models)
    pairs = [
        (path, one) for path, one in zip(paths, judge_by_provider(paths, [settings], Optimize.NONE)[0], strict=True)
    ]
    good = [(path, answer) for path, answer in pairs if not answer.error and not by_chance(answer)]
    found = claims_of_many([path for path, _ in good], OLDEST, settings, reasons=True)
    for (path, answer), theirs in zip(good, found, strict=True):
        if theirs.error is None:
            ours = [name for group in answer.partitions for name in group]
            yield path, answer, theirs, dict(differing(theirs, ours))


@pytest.mark.parametrize("level", [27, 30])
def test_its_claims_on_real_models_are_those_of_our_oldest_rules_but_for_four(
    real_models: list[Path], level: int
) -> None:
    fetch(OLDEST)
    different = {}
    answered = 0
    for path, _, theirs, side in compared(real_models, level):
        answered += 1
        if side or "" in theirs.nodes:
            different[path.stem] = next(one.__name__ for one in CLASSES if one(path, theirs, side))
    assert answered == len(real_models)
    assert different == {
        "conformer_block.fp16_op17": "functions",  # LayerNormalization without a kernel for fp16
        "convnext_tiny_slice.op20": "functions",  # Gelu
        "face_embedding.qdq_u8s8pc": "quantized",  # BatchNormalization
        "ghostnet.qdq_u8u8": "quantized",  # HardSigmoid
    }


def test_what_differs_on_one_operator_models_has_a_name(op_models: Path) -> None:
    fetch(OLDEST)
    unnamed, answered, different = [], 0, 0
    seen = set()
    for path, _, theirs, side in compared(sorted(op_models.rglob("*.onnx")), 30):
        answered += 1
        if not side and "" not in theirs.nodes:
            continue
        different += 1
        known = next((one.__name__ for one in CLASSES if one(path, theirs, side)), None)
        shapes = all(ours and NEWER_SHAPES.search(theirs.reasons.get(name, "")) for name, ours in side.items())
        seen.add(known)
        if known is None and not shapes:
            unnamed.append(f"{path.parent.name}/{path.stem}: {side}")
    assert unnamed == []
    assert seen >= {one.__name__ for one in CLASSES}, "a class that no model shows any more"
    assert answered > 4900
    assert different / answered < 0.06
