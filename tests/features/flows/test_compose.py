"""One graph in place of sessions, windows and a loop: equal numbers, and what does not fit is refused by name."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from pipeline import config as configs
from pipeline.core.errors import ConfigError, ModelError
from pipeline.features.flows import compose, order
from tests import onnx_samples
from tests.features.flows import samples


def joined(feature: configs.FeatureConfig, tables: dict[str, configs.ModelConfig], folder: Path) -> configs.ModelConfig:
    """The feature's file in a folder, made in this process."""
    made = compose.join(msgspec.structs.replace(feature, path=str(folder / "joined.onnx")), tables, "features")
    return configs.ModelConfig(path=made.path, state=made.states, inputs=dict(made.begins))


def stream(table: configs.ModelConfig, sound: Any, step: int) -> list[float]:
    """The scores of the joined graph, a step at a time."""
    session = samples.session(Path(table.path))
    kept = {
        name: np.full(value.shape, table.inputs.get(name, 0), np.float32)
        for value in session.get_inputs()
        if (name := value.name) in table.state.values()
    }
    names, scores = [output.name for output in session.get_outputs()], []
    for at in range(0, len(sound), step):
        given = dict(zip(names, session.run(None, {"samples": sound[None, at : at + step], **kept}), strict=True))
        scores += given["value"].ravel().tolist()
        kept = {taken: given[made] for made, taken in table.state.items()}
    return scores


@pytest.mark.parametrize("chunk", [8, 3, 29])
def test_a_chain_with_windows_gives_the_bits_of_separate_sessions(tmp_path: Path, chunk: int) -> None:
    sound = np.random.default_rng(1).standard_normal(8 * 25).astype(np.float32)
    table = joined(samples.chain(), samples.tables(tmp_path), tmp_path)
    assert stream(table, sound, 8) == samples.chain_by_hand(sound, chunk)


def test_states_begin_with_what_windows_are_filled_with(tmp_path: Path) -> None:
    table = joined(samples.chain(), samples.tables(tmp_path), tmp_path)
    assert table.state == {
        "frames.x.next": "frames.x.kept",
        "embedding.x.next": "embedding.x.kept",
        "score.x.next": "score.x.kept",
        "score.h.next": "score.h.kept",
    }
    assert table.inputs == {"embedding.x.kept": 1}


def test_a_loop_chooses_the_tokens_that_python_chooses(tmp_path: Path) -> None:
    table = joined(samples.loop(), samples.tables(tmp_path), tmp_path)
    session = samples.session(Path(table.path))
    generator = np.random.default_rng(2)
    lengths = set()
    for _ in range(50):
        numbers = generator.standard_normal((1, int(generator.integers(1, 9)))).astype(np.float32)
        (tokens,) = session.run(["tokens"], {"numbers": numbers})
        assert tokens[0].tolist() == samples.loop_by_hand(numbers)
        lengths.add(tokens.shape[1])
    assert len(lengths) > 2, "sequences of several lengths: both ends of the loop were met"


def test_a_loop_with_all_tokens_begins_with_several(tmp_path: Path) -> None:
    def sums() -> onnx.ModelProto:
        nodes = onnx_samples.parsed_nodes(
            "f = Cast <to = 1> (ids)  s = ReduceSum <keepdims = 1> (f, one)  logits = Mul (s, w)"
        )
        constants = [onnx_samples.weight("w", 1, 5), onnx.numpy_helper.from_array(np.array([1]), "one")]
        ids = onnx_samples.value("ids", [1, "n"], onnx.TensorProto.INT32)
        return onnx_samples.make(nodes, [ids], [onnx_samples.value("logits", [1, 5])], constants)

    onnx.save(sums(), tmp_path / "sums.onnx")
    stage = configs.FlowStage(
        run="sums",
        when=configs.When.STEP,
        inputs={"ids": configs.Feed(tokens=configs.Tokens.ALL, begin=(3, 4))},
    )
    until = configs.Until(source="sums.logits", token=-1, most=3)
    tables = {"sums": configs.ModelConfig(path=str(tmp_path / "sums.onnx"))}
    table = joined(configs.FeatureConfig(name="sums", flow=(stage,), until=until), tables, tmp_path)
    tokens = samples.session(Path(table.path)).run(None, {})[0][0].tolist()
    by_hand = [3, 4]
    for _ in range(3):
        logits = samples.session(sums()).run(None, {"ids": np.array([by_hand], np.int32)})[0]
        by_hand.append(int(logits.argmax()))
    assert tokens == by_hand


def test_positions_and_masks_follow_the_tokens(tmp_path: Path) -> None:
    """The model's values for words are made so that the chosen token is the sum of what it was given, and one."""
    text = (
        "p = ReduceSum <keepdims = 1> (places, one)  m = ReduceSum <keepdims = 1> (mask, one)  s = Add (p, m)"
        "  depth = Identity (words)  logits = OneHot (s, depth, values)  n = Identity (ids)"
    )
    constants = [
        onnx.numpy_helper.from_array(np.array([1]), "one"),
        onnx.numpy_helper.from_array(np.array(64), "words"),
        onnx.numpy_helper.from_array(np.array([0, 1], np.float32), "values"),
    ]
    kind = onnx.TensorProto.INT64
    inputs = [onnx_samples.value(name, [1, name], kind) for name in ("ids", "places", "mask")]
    model = onnx_samples.make(
        onnx_samples.parsed_nodes(text), inputs, [onnx_samples.value("logits", [1, 1, 64])], constants
    )
    onnx.save(model, tmp_path / "sums.onnx")
    stage = configs.FlowStage(
        run="sums",
        when=configs.When.STEP,
        inputs={
            "ids": configs.Feed(tokens=configs.Tokens.LAST, begin=(5, 6, 7)),
            "places": configs.Feed(positions=configs.Tokens.LAST),
            "mask": configs.Feed(mask=configs.Tokens.ALL),
        },
    )
    until = configs.Until(source="sums.logits", token=63, most=4)
    tables = {"sums": configs.ModelConfig(path=str(tmp_path / "sums.onnx"))}
    table = joined(configs.FeatureConfig(name="sums", flow=(stage,), until=until), tables, tmp_path)
    # places 0 + 1 + 2 and three ones; then the place 3 and four ones, and so on
    assert samples.session(Path(table.path)).run(None, {})[0][0].tolist() == [5, 6, 7, 6, 7, 9, 11]


def test_a_number_of_the_models_table_becomes_a_constant(tmp_path: Path) -> None:
    tables = samples.tables(tmp_path)
    tables["score"] = msgspec.structs.replace(tables["score"], inputs={"h": 0.25})
    (*before, last) = samples.CHAIN
    last = msgspec.structs.replace(last, inputs={"x": last.inputs["x"]})
    table = joined(samples.chain(flow=(*before, last)), tables, tmp_path)
    assert "score.h.kept" not in table.state.values()
    sound = np.ones(8 * 3, np.float32)
    assert stream(table, sound, 8)[0] != samples.chain_by_hand(sound, 8)[0]


def test_what_comes_without_a_window_is_divided_too(tmp_path: Path) -> None:
    feed = configs.Feed(source="samples", divide=4, add=1)
    flow = (configs.FlowStage(run="frames", inputs={"x": feed}),)
    table = joined(samples.chain(flow=flow, outputs={}), samples.tables(tmp_path), tmp_path)
    sound = np.arange(12, dtype=np.float32)[None]
    (given,) = samples.session(Path(table.path)).run(["y"], {"samples": sound})
    wanted = samples.session(samples.frames()).run(None, {"x": sound / np.float32(4) + np.float32(1)})[0]
    np.testing.assert_array_equal(given, wanted)


def test_a_window_without_a_hop_moves_on_by_itself(tmp_path: Path) -> None:
    flow = (
        configs.FlowStage(run="frames", inputs={"x": configs.Feed(source="samples", window=12)}),
        configs.FlowStage(run="pairs", inputs={"x": configs.Feed(source="frames.y", rows=2, window=2)}),
    )
    pairs = onnx_samples.make(
        onnx_samples.parsed_nodes("y = Neg (x)"),
        [onnx_samples.value("x", [1, 4])],
        [onnx_samples.value("y", [1, 4])],
        [],
    )
    onnx.save(pairs, tmp_path / "pairs.onnx")
    tables = samples.tables(tmp_path) | {"pairs": configs.ModelConfig(path=str(tmp_path / "pairs.onnx"))}
    table = joined(samples.chain(flow=flow, outputs={}), tables, tmp_path)
    assert table.state == {}
    sound = np.arange(12, dtype=np.float32)[None]
    (given,) = samples.session(Path(table.path)).run(["y"], {"samples": sound})
    frames = samples.session(samples.frames()).run(None, {"x": sound})[0]
    np.testing.assert_array_equal(given, -frames.reshape(2, 4))


def test_a_number_of_the_models_table_becomes_a_constant_of_a_loop(tmp_path: Path) -> None:
    tables = samples.tables(tmp_path)
    tables["decoder"] = msgspec.structs.replace(tables["decoder"], inputs={"memory": 0.25})
    (_, step) = samples.LOOP
    step = msgspec.structs.replace(step, inputs={name: feed for name, feed in step.inputs.items() if name != "memory"})
    table = joined(samples.loop(flow=(step,)), tables, tmp_path)
    tokens = samples.session(Path(table.path)).run(["tokens"], {})[0][0].tolist()
    assert tokens == samples.tokens_by_hand(np.full((1, 4), 0.25, np.float32))


def test_a_feature_that_is_in_the_cache_is_not_written_again(tmp_path: Path) -> None:
    tables = samples.tables(tmp_path)
    file = Path(compose.join(samples.chain(), tables, "features").path)
    before = file.stat()
    assert compose.join(samples.chain(), tables, "features").path == str(file)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_large_weights_are_carried_over(tmp_path: Path) -> None:
    tables = samples.tables(tmp_path, "frames")
    wide = onnx_samples.make(
        onnx_samples.parsed_nodes("y = MatMul (x, w)"),
        [onnx_samples.value("x", [1, 8])],
        [onnx_samples.value("y", [1, 200_000])],
        [onnx_samples.weight("w", 8, 200_000)],
    )
    onnx.save(wide, tmp_path / "wide.onnx")
    tables["wide"] = configs.ModelConfig(path=str(tmp_path / "wide.onnx"))
    flow = (
        samples.CHAIN[0],
        configs.FlowStage(run="wide", inputs={"x": configs.Feed(source="frames.y", rows=2, window=4, hop=4)}),
    )
    table = joined(samples.chain(flow=flow, outputs={}), tables, tmp_path)
    sound = np.ones((1, 8), np.float32)
    given = samples.session(Path(table.path)).run(["y"], {"samples": sound, "frames.x.kept": np.zeros(4, np.float32)})
    rows = samples.session(samples.frames()).run(None, {"x": np.concatenate([np.zeros((1, 4), np.float32), sound], 1)})
    np.testing.assert_array_equal(given[0], samples.session(wide).run(None, {"x": rows[0].reshape(1, 8)})[0])


Feed = configs.Feed
STAGES = {stage.run: stage for stage in (*samples.CHAIN, *samples.LOOP)}


def stage(name: str, **inputs: Any) -> configs.FlowStage:
    return msgspec.structs.replace(STAGES[name], inputs={**STAGES[name].inputs, **inputs})


REFUSED: dict[str, tuple[configs.FeatureConfig, str, str]] = {
    "an unknown model": (samples.chain(flow=(configs.FlowStage(run="none"),)), "no model is called 'none'", "`name`"),
    "a model twice": (samples.chain(flow=(samples.CHAIN[0],) * 2), "the model frames runs twice", "another `name`"),
    "a later stage": (samples.chain(flow=samples.CHAIN[::-1]), "is not there yet", "a `state`"),
    "itself": (samples.chain(flow=(stage("frames", x="frames.y"),)), "is not there yet", "a `state`"),
    "rows left out": (
        samples.chain(flow=(stage("frames", x=Feed(source="samples", window=12, hop=13)),)),
        "leaves out rows",
        "at least as large as `hop`",
    ),
    "a hop alone": (samples.chain(flow=(stage("frames", x=Feed(source="s", hop=8)),)), "without a window", "`window`"),
    "a name twice": (samples.chain(outputs={"samples": "score.y"}), "cannot be the name", "another name"),
    "a name with a slash": (
        samples.chain(flow=(stage("frames", x=Feed(source="frames/x", window=12)),)),
        "cannot be the name",
        "without /",
    ),
    "rows alone": (samples.chain(flow=(stage("frames", x=Feed(source="s", rows=8)),)), "without a window", "`window`"),
    "tokens of a chain": (
        samples.chain(flow=(stage("frames", x=Feed(tokens=configs.Tokens.ALL, begin=(1,))),)),
        "`tokens` of a stage that is no loop",
        'when = "step"',
    ),
    "a first value of a chain": (
        samples.chain(flow=(*samples.CHAIN[:2], stage("score", h=Feed(state="hn", first="frames.y")))),
        "`first` of a stage that is no loop",
        'when = "step"',
    ),
    "a window of a state": (
        samples.chain(flow=(*samples.CHAIN[:2], stage("score", h=Feed(state="hn", window=3)))),
        "`window` says nothing of this input",
        "remove it",
    ),
    "two writers": (
        samples.chain(flow=(stage("frames", x=Feed(source="s", state="y")),)),
        "an input gets two things",
        "write one of them",
    ),
    "no end": (samples.loop(until=None), "the loop is not whole", "`until`"),
    "no loop": (samples.chain(until=samples.UNTIL), "the loop is not whole", "`until`"),
    "an unknown input": (samples.chain(flow=(stage("frames", z="s"),)), "the model has no input 'z'", "name one"),
    "an open input": (
        samples.chain(flow=(configs.FlowStage(run="frames"),)),
        "nothing gives the input 'x'",
        "`inputs`",
    ),
    "hops": (
        samples.chain(
            flow=(
                samples.CHAIN[0],
                stage("embedding", x=Feed(source="frames.y", rows=2, window=600, hop=131)),
            )
        ),
        "a step would run models",
        "hops that divide each other",
    ),
    "an unknown output": (samples.chain(outputs={"value": "score.z"}), "no stage gives 'score.z'", "name one"),
    "no first value": (
        samples.loop(flow=(samples.LOOP[0], stage("decoder", **{"past_%d_key": Feed(state="present_%d_key")}))),
        "the state 'past_0_key' has no first value",
        '"empty"',
    ),
    "no beginning": (
        samples.loop(flow=(samples.LOOP[0], stage("decoder", ids=Feed(tokens=configs.Tokens.LAST)))),
        "which tokens the loop begins with",
        "begin = [1]",
    ),
    "no values of tokens": (
        samples.loop(until=msgspec.structs.replace(samples.UNTIL, source="decoder.present_0_key")),
        "no token can be chosen",
        "as `until.from`",
    ),
    "no state": (
        samples.chain(flow=(*samples.CHAIN[:2], stage("score", h=Feed(state="z")))),
        "the input 'h' is no state",
        "name the output that becomes it",
    ),
    "a source": (samples.chain(source="train:model"), "`source` of a feature", "[[models]]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    feature, what, remedy = REFUSED[name]
    tables = samples.tables(tmp_path)

    def made() -> None:
        order.refuse(feature, tables, "features")
        joined(feature, tables, tmp_path)

    with pytest.raises(ConfigError) as raised:
        made()
    assert what in raised.value.what
    assert remedy in raised.value.remedy
    assert not (tmp_path / "joined.onnx").exists()


def test_models_of_two_opsets_are_refused_until_one_is_raised(tmp_path: Path) -> None:
    tables = samples.tables(tmp_path)
    old = samples.frames()
    old.opset_import[0].version = 14
    onnx.save(old, tmp_path / "frames.onnx")
    with pytest.raises(ConfigError, match="opsets 14 and 17") as raised:
        joined(samples.chain(), tables, tmp_path)
    assert "raise that of frames" in raised.value.remedy
    step = configs.tables.Step(do="opset", options={"version": 17})
    tables["frames"] = msgspec.structs.replace(tables["frames"], transforms=(step,))
    sound = np.random.default_rng(1).standard_normal(8 * 5).astype(np.float32)
    table = joined(samples.chain(), tables, tmp_path)
    assert stream(table, sound, 8) == samples.chain_by_hand(sound, 8)


def test_a_model_that_is_none_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    tables = samples.tables(tmp_path)
    (tmp_path / "frames.onnx").write_text("none")
    with pytest.raises(ModelError) as raised:
        compose.made_of(samples.chain(path=str(tmp_path / "joined.onnx")), tables)
    assert raised.value.where.endswith("frames.onnx")
    assert not (tmp_path / "joined.onnx").exists()
