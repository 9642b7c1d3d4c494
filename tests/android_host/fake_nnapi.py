"""Calls the fake libneuralnetworks.so as ONNX Runtime's provider does, with numpy arrays, through ctypes."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from device_runner.android_host.build import NNAPI, build_host
from device_runner.android_host.device import operand_type_codes, operation_codes

TYPES = operand_type_codes()
KINDS: dict[Any, str] = {
    np.float32: "TENSOR_FLOAT32", np.int32: "TENSOR_INT32", np.uint8: "TENSOR_QUANT8_ASYMM", np.bool_: "TENSOR_BOOL8",
    np.int8: "TENSOR_QUANT8_SYMM_PER_CHANNEL",
}  # fmt: skip


class OperandType(ctypes.Structure):
    """ANeuralNetworksOperandType."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("dimension_count", ctypes.c_uint32),
        ("dimensions", ctypes.POINTER(ctypes.c_uint32)),
        ("scale", ctypes.c_float),
        ("zero_point", ctypes.c_int32),
    )


class ChannelScales(ctypes.Structure):
    """ANeuralNetworksSymmPerChannelQuantParams."""

    _fields_ = (
        ("channel_dimension", ctypes.c_uint32),
        ("scale_count", ctypes.c_uint32),
        ("scales", ctypes.POINTER(ctypes.c_float)),
    )


def _uints(values: Sequence[int]) -> Any:
    return (ctypes.c_uint32 * max(len(values), 1))(*values)


@cache
def _library() -> ctypes.CDLL:
    """The library, once in a process: to see that it is built already takes 20 ms."""
    return ctypes.CDLL(str(build_host() / NNAPI))


class FakeModel:
    """One model. Methods add operands and operations; `run` compiles and computes."""

    def __init__(self) -> None:
        self.library = _library()
        self.handle = ctypes.c_void_p()
        self.codes = [self.call("Model_create", ctypes.byref(self.handle))]
        self.count = 0
        self.inputs: list[tuple[int, NDArray[Any]]] = []
        self.kept: list[Any] = []

    def call(self, name: str, *arguments: Any) -> int:
        code: int = getattr(self.library, f"ANeuralNetworks{name}")(*arguments)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.call("Model_free", self.handle)

    def operand(self, kind: str, shape: Sequence[int] = (), scale: float = 0.0, zero_point: int = 0) -> int:
        sizes = _uints(shape)
        one = OperandType(TYPES[kind], len(shape), sizes, scale, zero_point)
        self.codes.append(self.call("Model_addOperand", self.handle, ctypes.byref(one)))
        self.count += 1
        return self.count - 1

    def input(self, array: NDArray[Any], scale: float = 0.0, zero_point: int = 0) -> int:
        index = self.operand(KINDS[array.dtype.type], array.shape, scale, zero_point)
        self.inputs.append((index, np.ascontiguousarray(array)))
        return index

    def constant(self, array: NDArray[Any], scale: float = 0.0, zero_point: int = 0) -> int:
        array = np.ascontiguousarray(array)
        index = self.operand(KINDS[array.dtype.type], array.shape, scale, zero_point)
        self.set_value(index, array)
        return index

    def per_channel(self, array: NDArray[Any], scales: NDArray[Any], dimension: int) -> int:
        index = self.constant(array)
        self.set_channels(index, scales, dimension)
        return index

    def set_channels(self, index: int, scales: NDArray[Any], dimension: int) -> None:
        held = scales.astype(np.float32)
        pointer = held.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params = ChannelScales(dimension, len(held), pointer)
        name = "Model_setOperandSymmPerChannelQuantParams"
        self.codes.append(self.call(name, self.handle, index, ctypes.byref(params)))

    def scalar(self, value: float | bool, kind: str = "INT32") -> int:
        index = self.operand(kind)
        dtype = {"INT32": np.int32, "FLOAT32": np.float32, "BOOL": np.bool_}[kind]
        self.set_value(index, np.array(value, dtype))
        return index

    def set_value(self, index: int, array: NDArray[Any]) -> None:
        self.kept.append(array)
        pointer = ctypes.c_void_p(array.ctypes.data)
        code = self.call("Model_setOperandValue", self.handle, index, pointer, ctypes.c_size_t(array.nbytes))
        self.codes.append(code)

    def operation(self, name: str, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        code = self.call(
            "Model_addOperation", self.handle, operation_codes()[name],
            len(inputs), _uints(inputs), len(outputs), _uints(outputs),
        )  # fmt: skip
        self.codes.append(code)
        return code

    def run(self, outputs: dict[int, NDArray[Any]]) -> int:
        """Compile and compute into the arrays; the first code that is not 0, of all calls."""
        indices = [index for index, _ in self.inputs]
        identify = "Model_identifyInputsAndOutputs"
        self.codes.append(
            self.call(identify, self.handle, len(indices), _uints(indices), len(outputs), _uints(list(outputs)))
        )
        self.codes.append(self.call("Model_finish", self.handle))
        compilation = ctypes.c_void_p()
        self.codes.append(self.call("Compilation_create", self.handle, ctypes.byref(compilation)))
        self.codes.append(self.call("Compilation_finish", compilation))
        if not any(self.codes):
            self._execute(compilation, outputs)
        self.call("Compilation_free", compilation)
        return next((code for code in self.codes if code), 0)

    def _execute(self, compilation: ctypes.c_void_p, outputs: dict[int, NDArray[Any]]) -> None:
        execution, event = ctypes.c_void_p(), ctypes.c_void_p()
        self.codes.append(self.call("Execution_create", compilation, ctypes.byref(execution)))
        for name, arrays in (("setInput", [array for _, array in self.inputs]), ("setOutput", list(outputs.values()))):
            for index, array in enumerate(arrays):
                pointer = ctypes.c_void_p(array.ctypes.data)
                size = ctypes.c_size_t(array.nbytes)
                self.codes.append(self.call(f"Execution_{name}", execution, index, None, pointer, size))
        self.codes.append(self.call("Execution_startCompute", execution, ctypes.byref(event)))
        if event.value:
            self.codes.append(self.call("Event_wait", event))
            self.call("Event_free", event)
        self.call("Execution_free", execution)


def compute(
    name: str, operands: Sequence[NDArray[Any] | int | float | bool], shape: Sequence[int], dtype: Any = np.float32
) -> NDArray[Any]:
    """One operation on arrays and scalars; the first array is the model's input, the others are constants."""
    with FakeModel() as model:
        indices = [_operand(model, value, first=position == 0) for position, value in enumerate(operands)]
        out = np.full(shape, 7, dtype)
        target = model.operand(KINDS[dtype], shape)
        model.operation(name, indices, [target])
        code = model.run({target: out})
    if code:
        raise RuntimeError(f"{name} ended with code {code}")
    return out


def _operand(model: FakeModel, value: NDArray[Any] | float | bool, *, first: bool) -> int:
    if isinstance(value, np.ndarray):
        return model.input(value) if first else model.constant(value)
    return model.scalar(value, "BOOL" if isinstance(value, bool) else "INT32" if isinstance(value, int) else "FLOAT32")
