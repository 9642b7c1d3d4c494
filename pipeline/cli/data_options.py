"""Options of what models are run on: test data, values of inputs, samples, labels, dimensions."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.callbacks import sizes
from pipeline.cli.command import AnyCommand, together
from pipeline.cli.values import one_value

if TYPE_CHECKING:
    from pipeline import config as configs
    from pipeline.dataset import Dataset


def input_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """A callback for NAME=VALUE, NAME=LOW:HIGH and NAME="TEXT" given any number of times; names may hold a `=`."""
    given: dict[str, Any] = {}
    for value in values:
        name, quote, text = value.partition('="')
        if name and quote and text.endswith('"'):
            given[name] = text[:-1]
            continue
        name, _, text = value.rpartition("=")
        ends = [_number(part) for part in text.split(":")]
        if not name or not 1 <= len(ends) <= 2 or None in ends:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE or NAME=LOW:HIGH, as in sr=16000", ctx, param)
        given[name] = ends[0] if len(ends) == 1 else {"low": ends[0], "high": ends[1]}
    return given


def _number(text: str) -> bool | int | float | None:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def preprocess_table(
    _ctx: click.Context, param: click.Parameter, text: str | None
) -> "configs.PreprocessConfig | None":
    """A callback for the keys of [models.preprocess], as in `resize = [224, 224], scale = 0.0039`."""
    if not text:
        return None
    import msgspec

    from pipeline import config as configs
    from pipeline.core import toml as core_toml
    from pipeline.core.errors import ConfigError

    where = f"{param.opts[0]} {text}"
    remedy = "write keys of [models.preprocess] as in a config: resize = [224, 224], scale = 0.0039"
    try:
        return msgspec.convert(
            core_toml.read_toml(f"table = {{ {text} }}", where, remedy)["table"], configs.PreprocessConfig
        )
    except msgspec.ValidationError as error:
        raise ConfigError("this is no preprocessing", where=where, why=str(error), remedy=remedy) from error


def dataset_from(test_data: str | None, input_values: dict[str, Any]) -> "Dataset":
    """What --test-data and --input say to run models on."""
    import msgspec

    from pipeline import config as configs
    from pipeline import dataset as datasets

    inputs = msgspec.convert(input_values, dict[str, configs.InputValue])
    return datasets.Dataset(test_data=test_data or "", inputs=inputs)


def preprocessed(data: "Dataset", preprocess: "configs.PreprocessConfig | None") -> "Dataset":
    """The data with --preprocess."""
    import msgspec

    return msgspec.structs.replace(data, preprocess=preprocess)


def sampled(data: "Dataset", part: str, samples: int | None) -> "Dataset":
    """The data with --part and --samples."""
    import msgspec

    from pipeline import dataset as datasets

    return msgspec.structs.replace(data, part=datasets.Part(part), limit=samples or 0)


def labelled(data: "Dataset", labels: str | None) -> "Dataset":
    """The data with --labels."""
    import msgspec

    return msgspec.structs.replace(data, labels=labels or "")


data_words = together(
    click.option(
        "--test-data",
        metavar="PATH",
        help="Inputs to run on: test_data_set folders, .npz, .npy, or module:function.  [default: random numbers]",
    ),
    click.option(
        "--input",
        "input_values",
        callback=input_values,
        multiple=True,
        metavar="NAME=VALUE|NAME=LOW:HIGH",
        help='Value of an input ("TEXT" of strings), or a range for random numbers below HIGH; repeatable.',
    ),
)
"""--test-data and --input, as they are given."""


data_options = together(data_words, one_value("data", dataset_from, "test_data", "input_values"))
"""The same: a command gets `data`, the Dataset that a model is run on."""


dimension_option = click.option(
    "--dimension",
    "dimensions",
    callback=sizes,
    metavar="NAME=N",
    multiple=True,
    help="Size of a dynamic dimension, by its name or as INPUT[AXIS]; repeatable.",
)


preprocess_option = together(
    click.option(
        "--preprocess",
        callback=preprocess_table,
        metavar="KEYS",
        help="How images and recordings become the input, as in a config: 'resize = [224, 224], scale = 0.0039'.",
    ),
    one_value("data", preprocessed, "data", "preprocess"),
)
"""Below `data_options`, which it refines."""


sample_options = together(
    preprocess_option,
    click.option(
        "--part",
        type=click.Choice(["all", "calibration", "evaluation"]),
        default="all",
        show_default=True,
        help="Which samples: all, or those for one purpose. They are divided by their content, one in four for "
        "calibration, the same in every command.",
    ),
    click.option("--samples", type=click.IntRange(1, 2**31 - 1), help="At most so many samples.  [default: all]"),
    one_value("data", sampled, "data", "part", "samples"),
)
"""--preprocess, --part and --samples, below `data_options`, which they refine."""


def labels_option(text: str) -> Callable[[AnyCommand], AnyCommand]:
    """--labels, below `data_options`, which it refines."""
    return together(click.option("--labels", metavar="FILE", help=text), one_value("data", labelled, "data", "labels"))
