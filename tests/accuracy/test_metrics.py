"""Metrics against values computed by hand and by other libraries."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.accuracy import texts
from pipeline.accuracy.metrics import METRICS, Metric, Needs, find_metric
from pipeline.accuracy.score import score
from pipeline.config import AccuracyConfig, MetricName
from pipeline.core.errors import ConfigError, MissingError
from pipeline.dataset import Sample


def value(metric: Metric, pairs: list[tuple[Any, Any]], weights: list[int] | None = None) -> float:
    """The metric over (output, truth) pairs of one output called `y`."""

    def named(one: Any) -> Any:
        return {"y": np.asarray(one)}

    made = [
        metric.measure(named(output), named(truth) if metric.needs is Needs.REFERENCE else truth)
        for output, truth in pairs
    ]
    counts = np.ones(len(made), np.int64) if weights is None else np.array(weights)
    return metric.value(metric.pack(made), counts)


def asked(config: AccuracyConfig) -> Metric:
    """The metric of labelled data."""
    metric = find_metric(config, labelled=True)
    assert metric is not None
    return metric


SCORES = [0.1, 0.5, 0.2, 0.05, 0.06, 0.07, 0.02]
"""By falling score: classes 1, 2, 0, 5, 4, 3, 6."""


@pytest.mark.parametrize(("label", "first", "five"), [(1, 1, 1), (2, 0, 1), (4, 0, 1), ("3", 0, 0), (6, 0, 0)])
def test_top_k(label: int | str, first: int, five: int) -> None:
    for shape in ((1, 7), (7,), (1, 7, 1, 1)):
        scores = np.array(SCORES, np.float32).reshape(shape)
        assert value(METRICS[MetricName.TOP_1], [(scores, label)]) == first
        assert value(METRICS[MetricName.TOP_5], [(scores, label)]) == five


def test_equal_scores_and_nan_are_no_luck() -> None:
    """Of equal scores argmax takes the first; an output of NaN is never right, though argmax names its place."""
    assert value(METRICS[MetricName.TOP_1], [([[0.5, 0.5]], 0), ([[0.5, 0.5]], 1)]) == 0.5
    broken = [[0.0, math.nan, 1.0]]
    for label in range(3):
        assert value(METRICS[MetricName.TOP_1], [(broken, label)]) == 0
        assert value(METRICS[MetricName.TOP_5], [(broken, label)]) == 0
    assert value(METRICS[MetricName.AGREEMENT], [(broken, broken)]) == 0


def test_infinite_scores_are_no_luck_and_classes_that_are_ruled_out_are() -> None:
    """An overflow makes the first class the largest; a mask of minus infinity is what the model means."""
    for broken in ([[math.inf] * 3], [[0.0, 1.0, math.inf]], [[-math.inf] * 3]):
        for label in range(3):
            assert value(METRICS[MetricName.TOP_1], [(broken, label)]) == 0
        assert value(METRICS[MetricName.AGREEMENT], [(broken, [[1.0, 0.0, 0.0]])]) == 0
    assert value(METRICS[MetricName.TOP_1], [([[-math.inf, 1.0, 0.0]], 1)]) == 1


@pytest.mark.parametrize(
    ("output", "label", "words"),
    [
        ([[1.0, 2.0]], 2, "2 classes"),
        ([[1.0, 2.0]], "cat", "'cat'"),
        ([[1.0, 2.0]], -1, "'-1'"),
        ([[1.0, 2.0]], 0.5, "'0.5'"),
        ([[1.0, 2.0]], [0, 1], "array of shape [2]"),
        ([[1.0, 2.0], [1.0, 2.0]], 1, "[2, 2]"),
        ([[1.0]], 0, "[1, 1]"),
        ([[1, 2]], 1, "int64"),
    ],
)
def test_labels_and_outputs_that_do_not_fit_top_1(output: Any, label: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        value(METRICS[MetricName.TOP_1], [(output, label)])
    assert words in f"{caught.value.what} {caught.value.why}"


def one_hot(answer: int, classes: int = 3) -> Any:
    return np.eye(classes, dtype=np.float32)[answer][None]


def test_macro_f1_by_hand() -> None:
    """Class 0: 2 of 3 given right, 2 of 2 found: 0.8. Class 1: 1 of 1, 1 of 2: 2/3. Class 2 never occurs."""
    pairs = [(one_hot(answer), label) for answer, label in ((0, 0), (0, 0), (0, 1), (1, 1))]
    assert value(METRICS[MetricName.F1], pairs) == pytest.approx((0.8 + 2 / 3) / 2)
    # the third sample twice: class 0 has 2 of 4, 2 of 2 (2/3), class 1 has 1 of 1, 1 of 3 (1/2)
    assert value(METRICS[MetricName.F1], pairs, [1, 1, 2, 1]) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_mean_iou_by_hand_with_pixels_of_no_class() -> None:
    """Class 0: 1 in both of 3 in either; class 1: 1 of 3; the pixel labelled 255 counts nowhere."""
    label = np.array([[0, 0, 1], [1, 255, 255]])
    given_ = np.array([[0, 1, 1], [0, 1, 0]])
    by_scores = np.stack([given_ == 0, given_ == 1, given_ == 2]).astype(np.float32)[None]
    for output in (given_[None], given_, by_scores):
        assert value(METRICS[MetricName.MIOU], [(output, label)]) == pytest.approx(1 / 3)
    perfect = (np.array([[1, 1, 0]]), np.array([[1, 1, 0]]))
    # with a second sample: class 0 has 2 of 4, class 1 has 3 of 5
    assert value(METRICS[MetricName.MIOU], [(given_, label), perfect]) == pytest.approx((2 / 4 + 3 / 5) / 2)


@pytest.mark.parametrize(("label", "words"), [(np.zeros((3, 2), int), "[3, 2]"), (np.full((2, 3), 7), "3 classes")])
def test_maps_of_classes_that_do_not_fit(label: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        value(METRICS[MetricName.MIOU], [(np.zeros((1, 3, 2, 3), np.float32), label)])
    assert words in caught.value.why


def test_error_measures_by_hand() -> None:
    pairs = [([[3.0, 4.0]], [[3.0, 4.5]]), ([[1.0, 0.0]], [[1.0, 0.0]])]
    signal, noise = 9 + 4.5**2 + 1, 0.25
    assert value(METRICS[MetricName.SQNR], pairs) == pytest.approx(10 * math.log10(signal / noise))
    assert value(METRICS[MetricName.PSNR], pairs) == pytest.approx(10 * math.log10(4.5**2 / (noise / 4)))
    cosine = (9 + 18) / (5 * math.hypot(3, 4.5))
    assert value(METRICS[MetricName.COSINE], pairs) == pytest.approx((cosine + 1) / 2)
    assert value(METRICS[MetricName.MAX_ERROR], pairs) == 0.5
    equal = [([[3.0, 4.0]], [[3.0, 4.0]])]
    assert value(METRICS[MetricName.SQNR], equal) == math.inf
    assert value(METRICS[MetricName.COSINE], equal) == pytest.approx(1)


def test_zeros_beside_zeros_are_equal_and_beside_numbers_are_not() -> None:
    assert value(METRICS[MetricName.COSINE], [([0.0, 0.0], [0.0, 0.0])]) == 1
    assert value(METRICS[MetricName.COSINE], [([0.0, 0.0], [1.0, 0.0])]) == 0


@pytest.mark.parametrize("metric", [metric for metric in METRICS.values() if metric.name not in ("map", "wer", "cer")])
@given(data=st.data())
def test_a_weight_is_how_often_a_sample_counts(metric: Metric, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    weights = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    generator = np.random.default_rng(data.draw(st.integers(0, 9999)))
    pairs: list[tuple[Any, Any]] = []
    for _ in range(count):
        scores = generator.normal(size=(1, 6))
        truth: Any = int(generator.integers(0, 6)) if metric.needs is Needs.LABELS else generator.normal(size=(1, 6))
        if metric.name == "miou":
            scores, truth = generator.normal(size=(1, 3, 2, 2)), generator.integers(0, 3, (2, 2))
        pairs.append((scores, truth))
    repeated = [pair for pair, weight in zip(pairs, weights, strict=True) for _ in range(weight)]
    assert value(metric, pairs, weights) == pytest.approx(value(metric, repeated), abs=1e-12)


# --- texts ------------------------------------------------------------------------------------------------------------


def test_error_rates_of_words_and_characters() -> None:
    pytest.importorskip("jiwer", reason="jiwer is not installed")
    pairs = [(np.array(["a cat sat"]), "the cat sat down"), (np.array(["x"]), "x")]
    wer, cer = (asked(AccuracyConfig(metric=name)) for name in ("wer", "cer"))
    assert value(wer, pairs) == pytest.approx(2 / 5)  # one substituted, one left out, of five words
    assert value(cer, [(np.array(["kitten"]), "sitting")]) == pytest.approx(3 / 7)
    assert not wer.higher_is_better


def test_texts_of_class_scores_by_a_vocabulary(tmp_path: Path) -> None:
    vocabulary = ("<blank>", "a", "b", " ")
    steps = [1, 1, 0, 1, 2, 2, 0, 3, 2]
    scores = np.eye(4, dtype=np.float32)[steps][None]
    assert texts.decoded(scores, vocabulary) == "aab b"
    assert texts.decoded(np.array([[1, 1, 2]]), vocabulary) == "aab"
    assert texts.decoded(np.array(["as", "is"], object), ()) == "as is"
    with pytest.raises(ConfigError, match="no text"):
        texts.decoded(scores, vocabulary[:3])
    (tmp_path / "v.txt").write_text("<blank>\na\nb\n \n", encoding="utf-8")
    pytest.importorskip("jiwer", reason="jiwer is not installed")
    config = AccuracyConfig(metric="cer", vocabulary=str(tmp_path / "v.txt"))
    assert value(asked(config), [(scores, "aab b")]) == 0
    with pytest.raises(ConfigError, match="vocabulary"):
        asked(AccuracyConfig(metric="wer", vocabulary=str(tmp_path / "none.txt")))


def test_without_jiwer_the_remedy_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jiwer", None)
    metric = asked(AccuracyConfig(metric="wer"))
    with pytest.raises(MissingError, match="jiwer") as caught:
        value(metric, [(np.array(["a"]), "a")])
    assert " 'jiwer" in caught.value.remedy


# --- detections -------------------------------------------------------------------------------------------------------


def random_detections(generator: np.random.Generator) -> tuple[Any, Any]:
    """Labels [N, 5], and detections of which many lie near one of them."""
    low = generator.uniform(0, 50, (int(generator.integers(0, 6)), 2))
    boxes = np.concatenate([low, low + generator.uniform(5, 40, low.shape)], axis=1)
    label = np.column_stack([generator.integers(0, 3, len(boxes)), boxes])
    near = np.repeat(label, 2, axis=0)
    noise = np.column_stack(
        [generator.integers(0, 3, 3), generator.uniform(0, 50, (3, 2)), generator.uniform(51, 99, (3, 2))]
    )
    found = np.concatenate([near, noise])
    found[:, 1:] += generator.normal(0, 1.5, (len(found), 4))
    rows = np.column_stack(
        [found[:, 1:], generator.permutation(len(found)) / 1000 + generator.uniform(0, 1e-4), found[:, 0]]
    )
    return rows[None], label


@pytest.mark.parametrize("seed", range(8))
def test_mean_average_precision_is_that_of_pycocotools(seed: int) -> None:
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    cocoeval = pytest.importorskip("pycocotools.cocoeval", reason="pycocotools is not installed")
    generator = np.random.default_rng(seed)
    pairs = [random_detections(generator) for _ in range(12)]
    truth = coco.COCO()
    annotations = [
        {"image_id": image, "category_id": int(row[0]), "bbox": [*row[1:3], *(row[3:] - row[1:3])], "iscrowd": 0,
         "area": float(np.prod(row[3:] - row[1:3]))}
        for image, (_, label) in enumerate(pairs) for row in label
    ]  # fmt: skip
    truth.dataset = {
        "images": [{"id": image} for image in range(len(pairs))],
        "categories": [{"id": number} for number in range(3)],
        "annotations": [{"id": place + 1} | one for place, one in enumerate(annotations)],
    }
    truth.createIndex()
    found = truth.loadRes(
        [
            {"image_id": image, "category_id": int(row[5]), "score": row[4], "bbox": [*row[:2], *(row[2:4] - row[:2])]}
            for image, (rows, _) in enumerate(pairs)
            for row in rows[0]
        ]
    )
    judge = cocoeval.COCOeval(truth, found, "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    assert value(METRICS[MetricName.MAP], pairs) == pytest.approx(judge.stats[0], abs=1e-9)
    assert 0.1 < judge.stats[0] < 1


def test_detections_in_three_outputs_are_found_by_name() -> None:
    rows, label = random_detections(np.random.default_rng(1))
    metric = METRICS[MetricName.MAP]
    parts = {"det_boxes": rows[..., :4], "det_scores": rows[..., 4], "det_labels": rows[..., 5]}
    assert np.array_equal(metric.measure(parts, label)[2], metric.measure({"y": rows}, label)[2])
    with pytest.raises(ConfigError, match="no detections"):
        metric.measure({"logits": np.zeros((1, 10))}, label)
    with pytest.raises(ConfigError, match="no boxes"):
        metric.measure(parts, 3)


def test_r2_sees_scale_and_offset() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(5, 2, (30, 4))
    metric = METRICS[MetricName.R2]
    for ours in (truth, truth + random.normal(0, 0.5, truth.shape), truth * 0.1, truth * -1, truth + 3):
        expected = 1 - np.square(truth - ours).sum() / np.square(truth - truth.mean()).sum()
        assert value(metric, list(zip(ours, truth, strict=True))) == pytest.approx(expected, abs=1e-9)
    assert value(metric, [([2.0], [2.0]), ([2.0], [2.0])]) == 1
    assert value(metric, [([2.2], [2.0]), ([2.2], [2.0])]) == pytest.approx(0.99)  # by the power, nothing varies
    assert value(metric, [([0.0], [0.0])]) == 1
    assert value(metric, [([0.1], [0.0])]) == -math.inf


# --- which metric -----------------------------------------------------------------------------------------------------


def test_the_metric_follows_the_labels() -> None:
    assert find_metric(AccuracyConfig(), labelled=True) is METRICS[MetricName.TOP_1]
    assert find_metric(AccuracyConfig(), labelled=False) is None
    assert find_metric(AccuracyConfig(metric="cosine"), labelled=True) is METRICS[MetricName.COSINE]


SOFTMAX = np.exp(np.arange(5.0)) / np.exp(np.arange(5.0)).sum()


@pytest.mark.parametrize(
    ("name", "values", "metric"),
    [
        ("y", SOFTMAX.reshape(1, 5), "agreement"),
        ("y", SOFTMAX.astype(np.float16).reshape(1, 5, 1, 1), "agreement"),
        ("y", np.log(SOFTMAX).reshape(1, 5), "agreement"),
        ("Logits", np.linspace(-9, 4, 5).reshape(1, 5), "agreement"),
        ("class_scores", np.ones((1, 5)), "agreement"),
        ("embedding", np.linspace(-1, 1, 96).reshape(1, 1, 1, 96), "r2"),
        ("y", np.linspace(0, 1, 96).reshape(1, 96), "r2"),
        ("y", -np.ones((1, 96)), "r2"),
        ("logits", np.ones((1, 5, 7)), "r2"),
        ("score", np.ones((1, 1)), "r2"),
        ("label", np.ones(1, np.int64), "equal"),
        ("map", np.arange(48, dtype=np.uint8) % 20, "equal"),
        ("image", np.arange(256, dtype=np.uint8), "r2"),
        ("found", np.ones(4, bool), "equal"),
        ("text", np.array(["a", "b"], dtype=object), "equal"),
    ],
)
def test_without_labels_only_classes_have_a_top_1(name: str, values: Any, metric: str) -> None:
    values = values.astype(np.float32) if values.dtype == np.float64 else values
    sample = Sample(name="s", inputs={}, expected=[(name, values)])
    assert score([(sample, {name: values})], "m", AccuracyConfig(), "d").metric == metric


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AccuracyConfig(metric="top-1"), "needs labels"),
        (AccuracyConfig(metric="topp"), "no metric 'topp'"),
        (AccuracyConfig(metric="sqnr", max_drop=0.1), "has no drop"),
        (AccuracyConfig(metric="no_such_module_here:f"), "no such module for the metric"),
        (AccuracyConfig(metric="json:no_such_function"), "no function 'no_such_function'"),
    ],
)
def test_metrics_that_do_not_suit_the_data(config: AccuracyConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_metric(config, labelled=False)


def test_a_metric_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "own_metric.py").write_text(
        "def score(outputs, label): return float(outputs['y'][0, label])\ndef broken(outputs, label): return 1 / 0\n"
    )
    metric = asked(AccuracyConfig(metric=str(tmp_path / "own_metric:score")))
    assert metric.name == "own_metric:score"
    assert value(metric, [([[0.25, 0.5]], 0), ([[0.25, 0.75]], 1)]) == 0.5
    broken = asked(AccuracyConfig(metric=str(tmp_path / "own_metric:broken")))
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        value(broken, [([[1.0]], 0)])


def test_every_name_has_a_metric() -> None:
    assert set(METRICS) == set(MetricName)
