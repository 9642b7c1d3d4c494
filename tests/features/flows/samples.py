"""Small models that run one after the other, and the same by hand: sessions, windows and a loop of Python."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from pipeline import config as configs
from tests.onnx_samples import make, parsed_nodes, value, weight

WORDS = 11


def frames() -> onnx.ModelProto:
    """Sound [b, 12] to 4 frames of 2 numbers, of open sizes as exporters leave them."""
    nodes = parsed_nodes("m = MatMul (x, w)  y = Reshape (m, shape)")
    shape = numpy_helper.from_array(np.array([4, 1, 1, 2]), "shape")
    return make(nodes, [value("x", ["b", 12])], [value("y", ["t", 1, 1, 2])], [weight("w", 12, 8), shape])


def embedding() -> onnx.ModelProto:
    """Six frames [b, 6, 2, 1] to three numbers; the body of an If reads a value of the graph around it."""
    flat, other = parsed_nodes("o = Neg (h)"), parsed_nodes("o = Abs (h)")
    outputs = [value("o", None)]
    branches = {
        f"{name}_branch": helper.make_graph(nodes, name, [], outputs)
        for name, nodes in (("then", flat), ("else", other))
    }
    nodes = [
        *parsed_nodes("f = Flatten (x)  h = MatMul (f, w)  s = ReduceSum <keepdims = 0> (h)  c = Greater (s, zero)"),
        helper.make_node("If", ["c"], ["r"], **branches),
        *parsed_nodes("y = Reshape (r, shape)"),
    ]
    constants = [
        weight("w", 12, 3, seed=1),
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(np.array([-1, 1, 1, 3]), "shape"),
    ]
    return make(nodes, [value("x", ["b", 6, 2, 1])], [value("y", ["b", 1, 1, 3])], constants)


def score() -> onnx.ModelProto:
    """Five embeddings [1, 5, 3] to a number, which a state of its own smooths."""
    nodes = parsed_nodes(
        "f = Flatten (x)  m = MatMul (f, w)  a = Add (m, h)  hn = Mul (a, half)  y = Sigmoid (a)",
    )
    constants = [weight("w", 15, 1, seed=2), numpy_helper.from_array(np.array(0.5, np.float32), "half")]
    inputs = [value("x", [1, 5, 3]), value("h", [1, 1])]
    return make(nodes, inputs, [value("y", [1, 1]), value("hn", [1, 1])], constants)


def encoder() -> onnx.ModelProto:
    """Numbers [1, n] to a memory [1, 4]."""
    nodes = parsed_nodes("s = ReduceSum <keepdims = 1> (x, axis)  memory = MatMul (s, w)")
    constants = [weight("w", 1, 4, seed=3), numpy_helper.from_array(np.array([1]), "axis")]
    return make(nodes, [value("x", [1, "n"])], [value("memory", [1, 4])], constants)


def decoder() -> onnx.ModelProto:
    """The last token with a cache that grows by one to a value for each word, [1, 1, words]."""
    nodes = parsed_nodes(
        "e = Gather (table, ids)  u = Unsqueeze (e, one)  present_0_key = Concat <axis = 2> (past_0_key, u)"
        "  s = ReduceSum <keepdims = 0> (present_0_key, two)  t = Add (s, memory)  l = Sin (t)"
        "  logits = MatMul (l, w)",
    )
    constants = [
        weight("table", WORDS, 4, seed=4),
        weight("w", 4, WORDS, seed=5),
        numpy_helper.from_array(np.array([1]), "one"),
        numpy_helper.from_array(np.array([2]), "two"),
    ]
    inputs = [value("ids", [1, 1], TensorProto.INT64), value("memory", [1, 4]), value("past_0_key", [1, 1, "p", 4])]
    return make(nodes, inputs, [value("logits", [1, 1, WORDS]), value("present_0_key", [1, 1, "q", 4])], constants)


MODELS = {"frames": frames, "embedding": embedding, "score": score, "encoder": encoder, "decoder": decoder}


def tables(folder: Path, *names: str) -> dict[str, configs.ModelConfig]:
    """Models as files, with their tables."""
    made = {}
    for name in names or MODELS:
        onnx.save(MODELS[name](), folder / f"{name}.onnx")
        made[name] = configs.ModelConfig(path=str(folder / f"{name}.onnx"), name=name)
    return made


CHAIN = (
    configs.FlowStage(run="frames", inputs={"x": configs.Feed(source="samples", window=12, hop=8)}),
    configs.FlowStage(
        run="embedding", inputs={"x": configs.Feed(source="frames.y", rows=2, window=6, hop=2, divide=4, add=1, fill=1)}
    ),
    configs.FlowStage(
        run="score",
        inputs={"x": configs.Feed(source="embedding.y", rows=3, window=5, hop=1), "h": configs.Feed(state="hn")},
    ),
)
LOOP = (
    configs.FlowStage(run="encoder", inputs={"x": "numbers"}),
    configs.FlowStage(
        run="decoder",
        when=configs.When.STEP,
        inputs={
            "ids": configs.Feed(tokens=configs.Tokens.LAST, begin=(1,)),
            "memory": "encoder.memory",
            "past_%d_key": configs.Feed(state="present_%d_key", first="empty"),
        },
    ),
)
UNTIL = configs.Until(source="decoder.logits", token=(2, 7), most=20)


def chain(**keys: Any) -> configs.FeatureConfig:
    """Three models with three windows and a state."""
    return configs.FeatureConfig(**{"name": "chain", "flow": CHAIN, "outputs": {"value": "score.y"}, **keys})


def loop(**keys: Any) -> configs.FeatureConfig:
    """An encoder, and a decoder in a loop."""
    return configs.FeatureConfig(**{"name": "loop", "flow": LOOP, "until": UNTIL, **keys})


def session(model: onnx.ModelProto | Path) -> Any:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


class Window:
    """The latest rows of a stream, by hand."""

    def __init__(self, size: int, hop: int, row: tuple[int, ...], fill: float) -> None:
        self.size, self.hop = size, hop
        self.rows = np.full((size - hop, *row), fill, np.float32)

    def push(self, rows: Any) -> Iterator[Any]:
        self.rows = np.concatenate([self.rows, rows])
        while len(self.rows) >= self.size:
            yield self.rows[: self.size]
            self.rows = self.rows[self.hop :]


def chain_by_hand(samples: Any, chunk: int) -> list[float]:
    """The scores of a stream that comes in chunks of any length."""
    first, second, third = session(frames()), session(embedding()), session(score())
    sound, rows, vectors = Window(12, 8, (), 0), Window(6, 2, (2,), 1), Window(5, 1, (3,), 0)
    state, scores = np.zeros((1, 1), np.float32), []
    for at in range(0, len(samples), chunk):
        for piece in sound.push(samples[at : at + chunk]):
            made = first.run(None, {"x": piece[None]})[0].reshape(-1, 2) / np.float32(4) + np.float32(1)
            for window in rows.push(made):
                vector = second.run(None, {"x": window[None, :, :, None]})[0].reshape(-1, 3)
                for latest in vectors.push(vector):
                    result, state = third.run(None, {"x": latest[None], "h": state})
                    scores.append(float(result.item()))
    return scores


def loop_by_hand(numbers: Any) -> list[int]:
    """The tokens that a loop of Python chooses."""
    return tokens_by_hand(session(encoder()).run(None, {"x": numbers})[0])


def tokens_by_hand(memory: Any) -> list[int]:
    """The same of an encoder's output."""
    decode, cache, tokens = session(decoder()), np.zeros((1, 1, 0, 4), np.float32), [1]
    for _ in range(UNTIL.most):
        feeds = {"ids": np.array([tokens[-1:]]), "memory": memory, "past_0_key": cache}
        logits, cache = decode.run(None, feeds)
        tokens.append(int(logits[0, -1].argmax()))
        if tokens[-1] in (2, 7):
            break
    return tokens
