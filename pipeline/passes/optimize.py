"""ONNX Runtime's own graph optimizations, saved as an ONNX model: what a session would do at every start, done once."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from pipeline.core.errors import ModelError
from pipeline.core.ort_session import CPU, HostSession, first_line, load_session, ort_errors
from pipeline.core.variant import Level
from pipeline.model.edit import ONNX_DOMAINS, all_nodes, drop_unused_domains
from pipeline.model.guards import computed_constants
from pipeline.model.onnx_model import loadable
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import model_bytes, read_back, whole
from pipeline.passes.surgery import check_folding

if TYPE_CHECKING:
    from onnx import ModelProto

LAYOUT = "NchwcTransformer"
"""Puts weights into blocks as wide as the vector registers of the processor that it runs on."""
NCHWC_DOMAIN = "com.microsoft.nchwc"
STANDARD = frozenset({*ONNX_DOMAINS, "ai.onnx.ml"})


class OptimizeOptions(Options, frozen=True, kw_only=True):
    """Options of optimize."""

    level: Literal["basic", "extended", "layout", "all"] = "basic"
    """What is done: basic keeps to ONNX's own operators, from extended on some are ONNX Runtime's."""

    platform: Literal["unspecified", "arm", "amd64"] = "unspecified"
    """The processor that it is for: arm keeps int8 as it is, amd64 allows this computer's layout at layout and all."""

    loads_in: Literal["onnxruntime", "any"] = "onnxruntime"
    """any refuses a result with operators that other runtimes do not know."""


def optimize(model: Model, options: OptimizeOptions, context: PassContext) -> Model:
    """The model as ONNX Runtime saves it at a level; ModelError when it refuses it."""
    level = Level(options.level)
    config = {"session.qdqisint8allowed": "1"} if level is not Level.BASIC and options.platform == "arm" else {}
    saved = saved_at(model, level, context, config=config, layout=options.platform == "amd64")
    drop_unused_domains(saved.proto)
    foreign = foreign_operators(saved.proto)
    if foreign and options.loads_in == "any":
        raise NotApplicable(
            "the optimized model loads in ONNX Runtime alone", where=context.where, why=f"it has {_listed(foreign)}",
            remedy="use level basic, or leave loads_in out",
        )  # fmt: skip
    for note in loads_where(saved.proto):
        context.warn(note)
    return saved


def foreign_operators(proto: "ModelProto") -> Counter[str]:
    """The operators of domains that ONNX does not have, counted, bodies included."""
    return Counter(f"{node.domain}:{node.op_type}" for node in all_nodes(proto.graph) if node.domain not in STANDARD)


def loads_where(proto: "ModelProto") -> Iterator[str]:
    """What an optimized ONNX model cannot be loaded in, in words."""
    foreign = foreign_operators(proto)
    if foreign:
        yield f"only ONNX Runtime loads this: it has {_listed(foreign)}"
    yield from for_processors(foreign)


def for_processors(operators: Iterable[str]) -> Iterator[str]:
    """That a file with these operators is for processors like this computer's, in words; nothing for most files."""
    if any(name.startswith(f"{NCHWC_DOMAIN}:") for name in operators):
        yield (
            "its weights lie in blocks of this computer's processor (NCHWc, 16 channels with AVX-512, else 8): it is "
            "for such processors only, as ONNX Runtime itself warns"
        )


def _listed(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" if count > 1 else name for name, count in operators.items())


def saved_at(
    model: Model, level: Level, context: PassContext, *, config: Mapping[str, str] | None = None, layout: bool = False
) -> Model:
    """The model as a session saves it at a level, its large weights in a file of their own.

    Without `layout` the optimizer that knows only this computer's processor is left out. ModelError when ONNX Runtime
    refuses the model.
    """
    if computed_constants(model.proto.graph):
        check_folding(whole(model), model_bytes(model), context.where)
    target = context.new_file(".onnx")
    file = {"session.optimized_model_external_initializers_file_name": f"{target.stem}.weights"}
    entries = {**(file if model.weights else {}), **(config or {})}
    settings = HostSession(level=level, save_to=target, weights=model.folder, config=entries)
    try:
        session = load_session(loadable(model).SerializeToString(), settings)
        session.initialize_session([CPU], [{}], set() if layout else {LAYOUT})
    except ort_errors() as error:
        raise refused(error, context.where) from error
    return read_back(target)


def refused(error: Exception, where: str) -> ModelError:
    """ONNX Runtime's complaint about a model."""
    return ModelError("ONNX Runtime cannot run the model on this computer's CPU", where=where, why=first_line(error),
                      remedy="fix what it names; onnx.checker.check_model often says more")  # fmt: skip


PASS = Pass(
    name="optimize",
    title="Save the model as ONNX Runtime optimizes it at a level.",
    apply=optimize,
    effect=Effect.ROUNDING,
    options=OptimizeOptions,
)
