"""The graph of all stages while it grows: nodes, constants, its own inputs, outputs, and states from step to step."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from device_runner import spec as run_spec
from device_runner.spec import ElementType
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import graph_end
from pipeline.features.flows.member import StageModel
from pipeline.model.signature import TensorInfo

if TYPE_CHECKING:
    import onnx

Axes = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowState:
    """A value that a step gives, under the name `output`, and the next one takes as `input`; `fill` is the first."""

    input: str
    output: str
    fill: float


@dataclass(kw_only=True)
class Whole:
    """`values` has what stages gave so far, `STAGE.OUTPUT` with a name for each run of the stage in a step."""

    where: str
    links: graph_end.GraphEnd = field(default_factory=lambda: graph_end.GraphEnd("flow"))
    """Nodes and constants between the models; nodes of models come among its nodes."""
    members: dict[str, StageModel] = field(default_factory=dict)
    inputs: "dict[str, onnx.ValueInfoProto]" = field(default_factory=dict)
    outputs: "dict[str, onnx.ValueInfoProto]" = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    states: list[FlowState] = field(default_factory=list)

    def add_input(self, name: str, dtype: ElementType, axes: Axes) -> str:
        """An input of the feature; the same again is one, ConfigError where it would be two."""
        from onnx import helper

        made = helper.make_tensor_value_info(name, run_spec.ONNX_CODES[dtype], axes)
        before = self.inputs.setdefault(name, made)
        if before != made:
            raise ConfigError(
                f"two stages want another {name!r}",
                where=self.where,
                why=f"one of them {TensorInfo(name=name, dtype=dtype, shape=axes)}",
                remedy="give them the same window and hop, or inputs of other names",
            )
        return name

    def add_output(self, name: str, value: str, dtype: ElementType, axes: Axes | None) -> None:
        """An output of the feature."""
        from onnx import helper

        self.links.add("Identity", [value], f"gives {name}")
        self.links.nodes[-1].output[:] = [name]
        self.outputs[name] = helper.make_tensor_value_info(name, run_spec.ONNX_CODES[dtype], axes)

    def add_state(self, name: str, dtype: ElementType, axes: Axes, fill: float) -> FlowState:
        """A state of the feature: its input and output are there, and somebody must make `links.named(name)` of it."""
        from onnx import helper

        state = FlowState(input=f"{name}.kept", output=f"{name}.next", fill=fill)
        self.inputs[state.input] = helper.make_tensor_value_info(state.input, run_spec.ONNX_CODES[dtype], axes)
        self.outputs[state.output] = helper.make_tensor_value_info(state.output, run_spec.ONNX_CODES[dtype], axes)
        self.states.append(state)
        return state

    def add_constant(self, member: StageModel, info: TensorInfo, where: str) -> str:
        """The constant of an input that the model's table has a number for; ConfigError where nothing gives it."""
        import numpy as np

        number = member.constants.get(info.name)
        if not isinstance(number, int | float) or info.dtype is None or info.dtype is ElementType.STRING:
            raise ConfigError(
                f"nothing gives the input {info.name!r}",
                where=where,
                why=f"it is {info}",
                remedy=f'say in `inputs` of the stage where it comes from, as in `{info.name!r} = "x"` for an input of '
                "the feature, or give a number in `inputs` of the model",
            )
        axes = [axis if isinstance(axis, int) else 1 for axis in info.shape or ()]
        return self.links.constant(member.value(info.name), np.full(axes, number, info.dtype.value))

    def numbers(self, name: str, *values: int) -> str:
        """A constant of whole numbers, of one axis."""
        import numpy as np

        return self.links.constant(name, np.array(values, np.int64))


def stage_of(source: str, stages: Collection[str]) -> str | None:
    """The stage of `STAGE.OUTPUT`; None for a name of the feature's own."""
    return next((stage for stage in stages if source.startswith(f"{stage}.")), None)
