"""Of which samples a model's input is: those of its own length, or of the frames and mel filters that it takes."""

from collections.abc import Mapping
from dataclasses import dataclass

from device_runner.spec import ElementType
from pipeline.config import app_data
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import frames as sound_frames
from pipeline.features.app_data import log_mel
from pipeline.model.signature import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundForm:
    """`window` samples at once, None where a recording is as long as it is; `bins` mel filters, 0 without features.

    `least` samples are needed for anything at all.
    """

    window: int | None
    bins: int = 0
    least: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Where a model has frames, and where mel filters."""

    frames: int
    bins: int


AXES: Mapping[app_data.SoundFeatures, Axes] = {
    app_data.SoundFeatures.LOG_MEL: Axes(frames=2, bins=1),
    app_data.SoundFeatures.FBANK: Axes(frames=1, bins=2),
}


def form_of(tensor: TensorInfo, takes: app_data.Takes, where: str) -> SoundForm:
    """The form for an input; ConfigError where it takes none, or another."""
    axes = AXES[takes.features] if takes.features else None
    wanted = ["n"] if axes is None else ["filters", "frames"] if axes.bins < axes.frames else ["frames", "filters"]
    shape = tensor.shape
    if (
        tensor.dtype is not ElementType.FLOAT32
        or not shape
        or len(shape) != 1 + len(wanted)
        or (isinstance(shape[0], int) and shape[0] != 1)
    ):
        raise ConfigError(
            f"the input {tensor.name!r} takes no {takes.features or 'samples'}",
            where=where,
            why=f"it is {tensor}; float32 [1, {', '.join(wanted)}] is wanted",
            remedy="name another input as `takes.input`, or export the model for one sound",
        )
    if axes is None:
        return SoundForm(window=_window(tensor, takes, where))
    return _of_features(tensor, _fixed(shape[axes.frames]), _fixed(shape[axes.bins]), takes, where)


def _fixed(size: int | str | None) -> int | None:
    return size if isinstance(size, int) else None


def _window(tensor: TensorInfo, takes: app_data.Takes, where: str) -> int:
    """The samples that an input takes at once."""
    own = _fixed((tensor.shape or ())[1])
    window = takes.window or own
    if window is None or (own is not None and window != own) or window < (takes.hop or window):
        raise ConfigError(
            f"a window of {window or 'no'} samples does not fit the input {tensor.name!r}",
            where=where,
            why=f"it is {tensor}, and {takes.hop} samples are new in each step",
            remedy="give `takes.window`, the samples that the model takes at once, and a `takes.hop` that is no larger",
        )
    return window


def _of_features(
    tensor: TensorInfo, count: int | None, own_bins: int | None, takes: app_data.Takes, where: str
) -> SoundForm:
    """The form for an input of `count` frames and `own_bins` filters, None where they are open."""
    bins = takes.bins or own_bins
    if bins is None or (own_bins is not None and bins != own_bins):
        raise ConfigError(
            f"{bins or 'an open number of'} mel filters do not fit the input {tensor.name!r}",
            where=where,
            why=f"it is {tensor}",
            remedy=f"set `takes.bins` to {own_bins or 'the number that the model was trained with'}",
        )
    frames = sound_frames.frames_of(takes.rate or 0)
    snips = takes.features is app_data.SoundFeatures.FBANK and takes.snip_edges
    window = takes.window
    if window is None and count is not None:
        window = frames.samples(count) if snips else count * frames.shift
    elif window is None and takes.hop:
        window = frames.samples(takes.hop // frames.shift)
    elif window is None and takes.features is app_data.SoundFeatures.LOG_MEL:
        window = log_mel.USUAL_SAMPLES
    least = frames.length
    if window is not None:
        made = frames.count(window) if snips else (window + frames.shift // 2) // frames.shift
        if window < least or (count is not None and made != count):
            raise ConfigError(
                f"a window of {window:,} samples does not fit the input {tensor.name!r}",
                where=where,
                why=f"it has {max(0, made):,} frames of {takes.features}, and the input is {tensor}",
                remedy="leave out `takes.window`, which then is as long as the model's frames need",
            )
        if takes.features is app_data.SoundFeatures.LOG_MEL and window % frames.shift:
            raise ConfigError(
                f"a window of {window:,} samples ends within a frame",
                where=where,
                why=f"log-mel has a frame for each {frames.shift} samples",
                remedy=f"give a multiple of {frames.shift} as `takes.window`, such as {log_mel.USUAL_SAMPLES}",
            )
        if takes.hop and (takes.hop % frames.shift or takes.hop > window):
            raise ConfigError(
                f"a hop of {takes.hop:,} samples does not fit frames of {takes.features}",
                where=where,
                why=f"a frame begins each {frames.shift} samples, and a window has {window:,}: frames of the next step "
                "would lie elsewhere",
                remedy=f"give a multiple of {frames.shift} as `takes.hop`, at most {window}",
            )
    return SoundForm(window=window, bins=bins, least=least)
