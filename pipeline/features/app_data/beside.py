"""Tables `takes` and `gives` of what makers put beside a model: Transformers' preprocessor_config.json, config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from device_runner import untrusted_files
from pipeline.config import app_data
from pipeline.dataset import guess as data_guess
from pipeline.features.app_data import beside_sound, image
from pipeline.job import attachment as job_attachment
from pipeline.job import template
from pipeline.model.signature import TensorInfo

PREPROCESSOR, CONFIG = "preprocessor_config.json", "config.json"
MOST_BYTES = 16 << 20

FILTERS = {2: app_data.Filter.PILLOW_BILINEAR}
"""By the number that Pillow, and so `resample`, has for a filter."""

RESAMPLES = {0: "nearest", 1: "Lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "Hamming"}
"""What the numbers are called."""


CLASSIFIERS = ("ForImageClassification", "ForAudioClassification")
"""How Transformers calls models with labels."""

BOTH_SIDES = 384
"""From which size on ConvNeXT's preprocessor resizes both sides at once and cuts nothing out."""


class Unfit(Exception):
    """Why a table cannot be written, in words."""


def tables_of(model: Path, guess: data_guess.Guess) -> job_attachment.TableLines | None:
    """The lines of a config's [[models]], and the file of labels that they name; None where nothing is beside a model.

    Beside it is its folder, or the one above where it lies in `onnx`, as Optimum writes it.
    """
    folders = [model.parent, *([model.parent.parent] if model.resolve().parent.name == "onnx" else [])]
    folder = next((folder for folder in folders if (folder / PREPROCESSOR).is_file()), None)
    if folder is None or len(guess.inputs) != 1:
        return None
    (tensor,) = guess.inputs
    lines, labels = list[str](), list[str]()
    try:
        config = _read(folder / PREPROCESSOR)
        of_sound = beside_sound.is_of_sound(config)
        if len(tensor.shape or ()) != (3 if of_sound else len("NCHW")):
            return None
        takes = _takes_of_sound(config, tensor) if of_sound else _takes(config, tensor)
    except Unfit as reason:
        return job_attachment.TableLines(
            lines=(f"# `takes` is not written: {PREPROCESSOR} {template.safe_line(str(reason))}.",)
        )
    lines += [f"# What the app has, by {PREPROCESSOR} beside the model: prove it with `oracle` (docs/app-data.md)."]
    least = image.FORMS[app_data.Filter.PILLOW_BILINEAR].opset
    if guess.opset < least and not of_sound:
        lines.append(f'transforms = [{{ do = "opset", options = {{ version = {least} }} }}]')
    lines.append(f"takes = {{ {', '.join(f'{key} = {_toml(value)}' for key, value in takes.items())} }}")
    try:
        labels = _labels(_read(folder / CONFIG)) if (folder / CONFIG).is_file() else []
    except Unfit as reason:
        lines.append(f"# `gives` is not written: {CONFIG} {template.safe_line(str(reason))}.")
    file = f"{template.campaign_name(model)}.labels.txt"
    if labels:
        lines += [
            f"# What it gets, by {CONFIG} beside the model.",
            f"gives = {{ classes = {template.quoted(file)}, softmax = true }}",
        ]
    return job_attachment.TableLines(
        lines=tuple(lines), files={file: "".join(f"{label}\n" for label in labels)} if labels else {}
    )


def _takes_of_sound(config: Mapping[str, Any], tensor: TensorInfo) -> dict[str, Any]:
    """The keys of `takes` that say what a feature extractor does; Unfit for what no graph of ours does."""
    takes = beside_sound.takes_of(config, tensor)
    if isinstance(takes, str):
        raise Unfit(takes)
    return takes


def _takes(config: Mapping[str, Any], tensor: TensorInfo) -> dict[str, Any]:
    """The keys of `takes` that say what a preprocessor does; Unfit for what no graph of ours does."""
    takes: dict[str, Any] = {"image": "rgba"}
    crop = _sides(config.get("crop_size")) if config.get("do_center_crop") else None
    if config.get("do_resize", True):
        resample = config.get("resample", 2)
        if resample not in FILTERS:
            raise Unfit(f"resizes by {RESAMPLES.get(resample, resample)}, which has no form in ONNX that is near")
        takes |= _resize(config, crop)
    takes["filter"] = app_data.Filter.PILLOW_BILINEAR.value
    if config.get("do_pad"):
        raise Unfit("fills images up (do_pad)")
    if crop and "crop" not in takes:
        takes["crop"] = list(crop)
    if config.get("do_flip_channel_order"):
        takes["channels"] = "BGR"
    if tensor.shape and tensor.shape[1] != 3 and tensor.shape[3] == 3:
        takes["layout"] = "NHWC"
    if config.get("do_rescale", True):
        factor = _number(config.get("rescale_factor", 1 / 255), "rescale_factor")
        takes["divide"] = _short(1 / factor)
    if config.get("do_normalize", True):
        mean, deviation = (_three(config.get(key), key) for key in ("image_mean", "image_std"))
        takes["mean"], takes["scale"] = mean, [1 / value for value in deviation]
    return takes


def _resize(config: Mapping[str, Any], crop: tuple[int, int] | None) -> dict[str, Any]:
    """`resize`, and `crop` where the form of the size brings one."""
    size = config.get("size")
    if isinstance(size, Mapping) and "shortest_edge" in size and "longest_edge" not in size:
        short = _whole(size["shortest_edge"], "size.shortest_edge")
        if "crop_pct" in config:  # ConvNeXT's: larger first, or both sides at once
            share = _number(config["crop_pct"], "crop_pct")
            larger = {"resize": f"short {int(short / share)}", "crop": [short, short]}
            return {"resize": [short, short]} if short >= BOTH_SIDES else larger
        if not crop:
            raise Unfit("resizes the short side and does not crop, so that images have no one size")
        return {"resize": f"short {short}"}
    if isinstance(size, int) and crop:
        return {"resize": f"short {_whole(size, 'size')}"}
    sides = _sides(size)
    if sides is None:
        raise Unfit(f"has a size of another form, {json.dumps(size)[:100]}")
    return {"resize": list(sides)}


def _labels(config: Mapping[str, Any]) -> list[str]:
    """The labels of a classifier of images or sound in the order of its classes; [] of other models."""
    names = config.get("architectures")
    if not isinstance(names, list) or not any(str(name).endswith(CLASSIFIERS) for name in names):
        return []
    by_number = config.get("id2label")
    if not isinstance(by_number, Mapping) or not by_number:
        return []
    labels = [by_number.get(str(number)) for number in range(len(by_number))]
    if not all(isinstance(label, str) and label and len(label.splitlines()) == 1 for label in labels):
        raise Unfit("has id2label with numbers that are not 0, 1, 2 and so on, or labels that are no lines")
    return [str(label) for label in labels]


def _read(file: Path) -> Mapping[str, Any]:
    """A JSON file with an object."""
    try:
        value = json.loads(untrusted_files.read_regular(file, MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise Unfit(f"cannot be read: {error}"[:200]) from error
    if not isinstance(value, Mapping):
        raise Unfit("is no object")
    return value


def _sides(size: object) -> tuple[int, int] | None:
    """Height and width of `{height, width}`, or of one number; None for another form."""
    if isinstance(size, Mapping) and {*size} == {"height", "width"}:
        return _whole(size["height"], "height"), _whole(size["width"], "width")
    if isinstance(size, Mapping) or size is None:
        return None
    return (_whole(size, "size"),) * 2


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 100_000:
        raise Unfit(f"has no size as {name}: {json.dumps(value)[:100]}")
    return value


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-6 < value < 1e6:
        raise Unfit(f"has no number above 0 as {name}: {json.dumps(value)[:100]}")
    return float(value)


def _three(value: object, name: str) -> list[float]:
    if not isinstance(value, list) or len(value) != 3:
        raise Unfit(f"has no three numbers as {name}: {json.dumps(value)[:100]}")
    least = 1e-6 if name == "image_std" else -1e6
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not least < number < 1e6:
            raise Unfit(f"has no three numbers as {name}: {json.dumps(value)[:100]}")
    return [float(number) for number in value]


def _short(number: float) -> int | float:
    """255 for 255.00000000000003, which is what 1 / (1 / 255) gives."""
    return round(number) if abs(number - round(number)) < 1e-9 * number else number


def _toml(value: object) -> str:
    return template.quoted(value) if isinstance(value, str) else json.dumps(value)
