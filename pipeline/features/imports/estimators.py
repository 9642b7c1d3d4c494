"""Estimators of scikit-learn, with those of LightGBM and XGBoost in them: fitted on tables, exported by skl2onnx.

Their samples are rows. What estimators give and what skl2onnx makes of it differ in form: numbers for each sample stand
in a vector there and in a column here, and a ZipMap gives a dict for each sample.
"""

import contextlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.check.compare import OutputCheck
from pipeline.core import errors as core_errors
from pipeline.core.errors import ConfigError, MissingError
from pipeline.features.imports.trained import Trained, check_arguments

if TYPE_CHECKING:
    from pipeline.model.signature import Array

ML_OPSET = 3
"""The newest opset of ai.onnx.ml in which skl2onnx writes every estimator; releases from 1.16 on read it."""
TENSOR_TYPES: Mapping[str, str] = {
    "float16": "Float16TensorType",
    "float32": "FloatTensorType",
    "float64": "DoubleTensorType",
    "int8": "Int8TensorType",
    "int16": "Int16TensorType",
    "int32": "Int32TensorType",
    "int64": "Int64TensorType",
    "uint8": "UInt8TensorType",
    "uint16": "UInt16TensorType",
    "uint32": "UInt32TensorType",
    "uint64": "UInt64TensorType",
    "bool": "BooleanTensorType",
    "object": "StringTensorType",
}
"""skl2onnx's types by NumPy's; strings are objects."""
DTYPES = {name: dtype for dtype, name in TENSOR_TYPES.items()}
TIE = 1e-6
"""Probabilities of two classes are the same below this: sums of many trees in 32-bit floats."""
ROUNDING = 2.0**-22
"""Twice the distance between two numbers of 32 bits, relative to them."""
NUDGES = 6
"""Rounding errors that are tried where an answer differs."""
NO_64 = "leave initial_types out, so that the model takes 32-bit floats: trees and others have no 64-bit form"
REMEDY = "do what skl2onnx says, or take a step that it converts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boosted:
    """An estimator of another library: its converter in onnxmltools, by `module:name`, and its shapes in skl2onnx."""

    module: str
    name: str
    converter: str
    classifies: bool

    @property
    def alias(self) -> str:
        """The name that skl2onnx knows it by."""
        return f"{self.module}{self.name}"


LIGHTGBM = "onnxmltools.convert.lightgbm.operator_converters.LightGbm:convert_lightgbm"
XGBOOST = "onnxmltools.convert.xgboost.operator_converters.XGBoost:convert_xgboost"
BOOSTED = (
    Boosted(module="lightgbm", name="LGBMClassifier", converter=LIGHTGBM, classifies=True),
    Boosted(module="lightgbm", name="LGBMRegressor", converter=LIGHTGBM, classifies=False),
    Boosted(module="lightgbm", name="LGBMRanker", converter=LIGHTGBM, classifies=False),
    Boosted(module="xgboost", name="XGBClassifier", converter=XGBOOST, classifies=True),
    Boosted(module="xgboost", name="XGBRFClassifier", converter=XGBOOST, classifies=True),
    Boosted(module="xgboost", name="XGBRegressor", converter=XGBOOST, classifies=False),
    Boosted(module="xgboost", name="XGBRFRegressor", converter=XGBOOST, classifies=False),
)
"""Estimators that skl2onnx knows by onnxmltools' converters."""


def open_estimator(model: Any, example: Sequence[Any], options: Any) -> Trained:
    """An estimator or pipeline that was fitted, with samples: an array (rows are samples) or a pandas DataFrame."""
    import skl2onnx
    import sklearn
    from skl2onnx._supported_operators import sklearn_operator_name_map

    check_arguments(options, ("options", "initial_types", "target_opset"), "skl2onnx")
    if len(example) > 1 and all(isinstance(text, str) for text in example):
        example = (list(example),)
    if len(example) != 1:
        raise ConfigError(
            "an estimator takes one array or DataFrame of samples",
            why=f"there are {len(example)}",
            remedy="give one, whose rows are samples",
        )
    register_boosted(model)
    samples = Samples(example[0], model, options.get("initial_types"))
    asked = options.get("target_opset")

    def export(target: Path, opset: int | None) -> None:
        opsets = {"": skl2onnx.__max_supported_opset__, "ai.onnx.ml": ML_OPSET}
        opsets |= asked if isinstance(asked, Mapping) else {"": asked} if asked else {}
        opsets |= {"": opset} if opset else {}
        convert = partial(skl2onnx.convert_sklearn, model, initial_types=samples.types, target_opset=opsets)
        settings = options.get("options") or {}
        with whole_numbers():
            try:
                given = convert(options={id(model): {"zipmap": False}, **settings})
            except NameError:  # it has no such option
                given = convert(options=settings or None)
        target.write_bytes(given.SerializeToString())

    def layers(error: BaseException) -> list[str]:
        """Steps that skl2onnx does not know, or the one whose converter failed."""
        frames = (frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__))
        kinds = {type(getattr(names.get("operator"), "raw_operator", None)) for names in frames}
        steps = getattr(model, "steps", [("the model", model)])
        refused = (step for step in steps if type(step[1]) in kinds or type(step[1]) not in sklearn_operator_name_map)
        return [f"{name} ({type(step).__name__})" for name, step in refused if step != "passthrough"]

    classes = getattr(model, "classes_", None)
    methods = answers(model)
    return Trained(
        title=f"scikit-learn {sklearn.__version__}",
        example=samples.arrays,
        export=export,
        layers=layers,
        run=lambda inputs: arrays_of(method(samples.rebuilt(inputs)) for method in methods),
        remedy=lambda _: REMEDY,
        unloadable=NO_64 if any(array.dtype.name == "float64" for array in samples.arrays) else "",
        rows=True,
        classes=classes if getattr(classes, "ndim", 0) == 1 else None,
        notes=samples.notes,
    )


def answers(model: Any) -> list[Callable[[Any], Any]]:
    """The methods of an estimator that compute the outputs which skl2onnx gives it, in their order."""
    from sklearn import base

    if not hasattr(model, "predict"):
        return [model.transform]
    further = (
        "predict_proba"
        if hasattr(model, "predict_proba")
        else "decision_function"
        if base.is_outlier_detector(model)
        else "decision_function"
        if base.is_classifier(model) and len(model.classes_) > 2  # of two, of either sign
        else "transform"
        if base.is_clusterer(model)
        else ""
    )
    return [model.predict, *([getattr(model, further)] if hasattr(model, further) else [])]


def arrays_of(given: Iterable[Any]) -> list["Array"]:
    """What an estimator gives, as arrays, up to what is none: tables of several widths in a list.

    Vectorizers give sparse matrices.
    """
    import numpy as np

    arrays: list[Array] = []
    for value in given:
        if isinstance(value, list) and len({np.shape(table) for table in value}) > 1:
            break
        arrays.append(np.asarray(value.toarray() if hasattr(value, "toarray") else value))
    return arrays


class Samples:
    """Samples as a model in ONNX takes them: `arrays`, with skl2onnx's `types` by name; and back as they were given.

    A ColumnTransformer gets an input for each column of a DataFrame, everything else one for the table, or for a list
    of texts. Strings are objects, and numbers have 32 bits (64, if whole) unless `initial_types` say otherwise: many
    operators have no others.
    """

    def __init__(self, given: Any, model: Any, initial_types: Any) -> None:
        import numpy as np
        from sklearn.compose import ColumnTransformer

        first = model.steps[0][1] if getattr(model, "steps", None) else model
        self.frame = given if hasattr(given, "iloc") and hasattr(given, "columns") else None
        self.by_column = self.frame is not None and isinstance(first, ColumnTransformer)
        if self.frame is not None and self.by_column:
            named = {str(name): self.frame[name].to_numpy().reshape(-1, 1) for name in self.frame.columns}
        else:
            named = {"X": np.ascontiguousarray(given)}
        self.dtype = next(iter(named.values())).dtype
        self.texts = hasattr(first, "build_analyzer")  # vectorizers take a list of texts
        self.notes: tuple[str, ...] = ()
        if initial_types is not None:
            self.types = list(initial_types)
            self.arrays = tuple(as_declared(named, self.types))
            return
        self.arrays = tuple(map(plain, named.values()))
        module = importlib.import_module("skl2onnx.common.data_types")
        self.types = [
            (name, getattr(module, TENSOR_TYPES[str(array.dtype)])([None, *array.shape[1:]]))
            for name, array in zip(named, self.arrays, strict=True)
        ]
        if rounded := [name for name, array in named.items() if array.dtype == np.float64]:
            why = "the example has 64-bit floats, the model takes 32-bit ones"
            self.notes = (f"{', '.join(rounded)}: {why}",)

    def rebuilt(self, inputs: Sequence["Array"]) -> Any:
        """Inputs of the model as the estimator takes them, in the types that were given."""
        import numpy as np

        array = inputs[0] if len(inputs) == 1 else np.concatenate(inputs, 1)
        if self.frame is not None:
            columns = zip(self.frame.columns, (column for part in inputs for column in part.T), strict=True)
            return type(self.frame)(dict(columns)).astype(dict(self.frame.dtypes))
        return array.reshape(-1) if self.texts else array.astype(self.dtype)


def plain(array: "Array") -> "Array":
    """An array in a type that skl2onnx's operators take."""
    import numpy as np

    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind == "b":
        return array
    kinds = {type(value).__name__ for value in array.reshape(-1) if not isinstance(value, str)}
    if kinds:
        why = f"it has {', '.join(sorted(kinds))}"
        raise ConfigError(
            "the example is no array of numbers, nor of strings",
            why=why,
            remedy="give one of strings, or a DataFrame to a ColumnTransformer",
        )
    return array.astype(object)


def as_declared(named: Mapping[str, "Array"], types: Sequence[tuple[str, Any]]) -> Iterator["Array"]:
    """The example in the types and shapes that initial_types declare; ConfigError where it does not fit them."""
    import numpy as np

    parts = list(named.values())
    widths = [int(kind.shape[1]) for _, kind in types if len(kind.shape) == 2 and kind.shape[1]]
    if len(parts) == 1 < len(types) and parts[0].ndim == 2 and parts[0].shape[1] == sum(widths):
        parts = np.split(parts[0], np.cumsum(widths)[:-1], axis=1)
    if len(parts) != len(types):
        raise ConfigError(
            "initial_types are not those of the example",
            why=f"they are {len(types)}, of {len(parts)}",
            remedy="give one for the array, or one for each column of a DataFrame",
        )
    for part, (name, kind) in zip(parts, types, strict=True):
        dtype = DTYPES.get(type(kind).__name__)
        if dtype is None:
            raise ConfigError(
                f"the type of {name!r} is none of a tensor",
                why=type(kind).__name__,
                remedy=f"take one of skl2onnx's {', '.join(DTYPES)}",
            )
        yield part.reshape(-1, 1).astype(dtype) if part.ndim == 1 < len(kind.shape) else part.astype(dtype)


@contextlib.contextmanager
def whole_numbers() -> Iterator[None]:
    """Let converters give booleans where attributes are whole numbers: onnx from 1.23 on refuses them.

    Measured: HistGradientBoosting of skl2onnx 1.20.
    """
    import numpy as np
    from onnx import helper

    make = helper.make_attribute

    def make_attribute(key: str, value: Any, *words: Any, **named: Any) -> Any:
        if isinstance(value, Sequence) and any(isinstance(part, bool | np.bool_) for part in value):
            value = [int(part) for part in value]
        return make(key, value, *words, **named)

    helper.make_attribute = make_attribute
    try:
        yield
    finally:
        helper.make_attribute = make


def register_boosted(model: Any) -> None:
    """Tell skl2onnx onnxmltools' converters for what there is of LightGBM and XGBoost in an estimator.

    MissingError where it needs them and they are not installed.
    """
    parts = [model, *(model.get_params(deep=True).values() if hasattr(model, "get_params") else ())]
    kinds = {
        getattr(sys.modules[boosted.module], boosted.name): boosted
        for boosted in BOOSTED
        if boosted.module in sys.modules and hasattr(sys.modules[boosted.module], boosted.name)
    }
    needed = {type(part): kinds[type(part)] for part in parts if type(part) in kinds}
    converters = {kind: converter_of(boosted) for kind, boosted in needed.items()}
    if not needed:
        return
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator

    for kind, boosted in needed.items():
        options = {"zipmap": [True, False, "columns"], "nocl": [True, False]} if boosted.classifies else None
        task = "classifier" if boosted.classifies else "regressor"
        shapes = getattr(shape_calculator, f"calculate_linear_{task}_output_shapes")
        update_registered_converter(kind, boosted.alias, shapes, converters[kind], options=options)


def converter_of(boosted: Boosted) -> Callable[..., None]:
    """Onnxmltools' converter of an estimator; MissingError where it is not installed."""
    module, _, name = boosted.converter.partition(":")
    try:
        convert: Callable[..., None] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise MissingError(
            f"{boosted.name} needs the package onnxmltools",
            why=str(error)[:200],
            remedy=core_errors.install_extra("boosting"),
        ) from error
    return convert


def by_class(expected: list["Array"], outputs: int, classes: "Array") -> list["Array"]:
    """What a classifier gives, as so many outputs: a ZipMap of columns has one for each class."""
    if len(expected) == 2 and outputs == 1 + len(classes) > 2 and expected[1].shape[1:] == (len(classes),):
        return [expected[0], *expected[1].T]
    return expected


def in_form_of(given: Any, expected: "Array", classes: "Array | None") -> "Array":
    """What a model gives in the form of the estimator's: a column as a vector, dicts of a ZipMap as a table."""
    import numpy as np

    if isinstance(given, list) and given and isinstance(given[0], dict) and classes is not None:
        given = [[scores[name] for name in classes.tolist()] for scores in given]
    array = np.asarray(given)
    return array.reshape(-1) if expected.ndim == 1 and array.shape == (len(expected), 1) else array


def excused(
    checks: Sequence[OutputCheck],
    expected: Sequence["Array"],
    given: Sequence["Array"],
    trained: Trained,
    inputs: Sequence["Array"],
) -> Iterator[OutputCheck]:
    """The checks of an estimator's outputs; those pass whose differing samples are ties, or unsteady.

    A tie: the estimator gives the two classes one probability, as 25 of 50 trees do. Unsteady: the estimator's own
    answer changes as much when the sample changes by a rounding error, as on a threshold. Either answer is right then;
    where most samples are unsteady, nothing is judged.
    """
    import numpy as np

    nudged: list[list[Array]] = []
    for index, (check, wanted, array) in enumerate(zip(checks, expected, given, strict=False)):
        if not check.failed or array.shape != wanted.shape or not wanted.ndim:
            yield check
            continue
        left = differing(wanted, array, check.limit)
        of, reasons, few = f"of {len(left)} samples", [], True
        if (
            index == 0
            and trained.classes is not None
            and (tied := left & _ties(expected, array, trained.classes)).any()
        ):
            reasons.append(f"{tied.sum()} {of} are ties: both classes have one probability")
            left &= ~tied
        if left.any():
            nudged = nudged or [trained.run(arrays) for arrays in nudges(inputs)]
            steep = left & np.logical_or.reduce([differing(wanted, other[index], check.limit) for other in nudged])
            reasons.append(f"{steep.sum()} {of} are unsteady: a rounding error of theirs changes the answer as much")
            left &= ~steep
            few = 2 * int(steep.sum()) <= len(steep)
        if left.any():
            yield check
        else:
            yield OutputCheck(output=check.output, passed=few, unknown=not few, reason="; ".join(reasons))


def differing(expected: "Array", given: "Array", limit: float | None) -> "Array":
    """Which samples have another answer; numbers beyond the limit."""
    import numpy as np

    if expected.dtype.kind in "fiub" and given.dtype.kind in "fiub":
        near = np.abs(given.astype(np.float64) - expected.astype(np.float64)) <= (limit or 0.0)
    else:
        near = np.asarray(expected == given)
    return np.asarray(~near.reshape(len(expected), -1).all(1))


def _ties(expected: Sequence["Array"], given: "Array", classes: "Array | None") -> "Array":
    """Which samples have the label of a class whose probability is that of the estimator's label."""
    import numpy as np

    labels = expected[0]
    probabilities = np.stack(expected[1:], 1) if len(expected) > 2 else expected[-1]
    if classes is None or probabilities.shape != (len(labels), len(classes)):
        return np.zeros(len(labels), bool)
    of_each = {name: probabilities[:, index] for index, name in enumerate(classes.tolist())}
    pairs = enumerate(zip(labels.tolist(), given.tolist(), strict=True))
    return np.array(
        [
            wanted in of_each and other in of_each and abs(of_each[wanted][sample] - of_each[other][sample]) <= TIE
            for sample, (wanted, other) in pairs
        ]
    )


def nudges(inputs: Sequence["Array"]) -> Iterator[list["Array"]]:
    """The inputs with each float changed by a rounding error of 32 bits, up, down, and either way by chance."""
    import numpy as np

    random = np.random.default_rng(0)
    for number in range(NUDGES):
        changed = []
        for array in inputs:
            signs = (1.0, -1.0)[number] if number < 2 else random.choice([-1.0, 1.0], array.shape)
            changed.append((array * (1 + ROUNDING * signs)).astype(array.dtype) if array.dtype.kind == "f" else array)
        yield changed
