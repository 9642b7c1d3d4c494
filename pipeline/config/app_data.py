"""The tables `takes` and `gives` of a model: what an app has, and what it wants in place of tensors."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from device_runner import spec as run_spec
from pipeline.config import tables as config_tables
from pipeline.config.tables import Count


class ImageBytes(StrEnum):
    """The bytes of an image as an app has them: rows from the top, a pixel's channels together."""

    RGBA = "rgba"
    RGB = "rgb"

    @property
    def channels(self) -> int:
        """Bytes of a pixel."""
        return len(self.value)


class SampleKind(StrEnum):
    """What a sample of sound is for an app."""

    INT16 = "int16"
    FLOAT = "float"


class SoundFeatures(StrEnum):
    """What is computed of samples before a model sees them."""

    LOG_MEL = "log-mel"
    FBANK = "fbank"


class WindowType(StrEnum):
    """What the samples of a frame are multiplied with, by Kaldi's names."""

    POVEY = "povey"
    HAMMING = "hamming"
    HANNING = "hanning"


LENGTH = "length"
"""The open axis of a whole recording."""

LOG_MEL_RATE = 16_000
"""Samples a second that Whisper's features are of."""
LEAST_FBANK_RATE = 1_000
"""So that a frame has some samples."""

SAMPLES, KEPT, NEXT_KEPT = "samples", "samples_kept", "samples_next"
"""Of sound: the input with what is new, the one with what was kept of the step before, and the output that is kept."""


class Filter(StrEnum):
    """How an image is resized, by the library that the model was trained with."""

    PILLOW_BILINEAR = "pillow-bilinear"
    OPENCV_LINEAR = "opencv-linear"
    OPENCV_CUBIC = "opencv-cubic"
    ANDROID = "android"


class Proportions(StrEnum):
    """What becomes of an image's proportions."""

    STRETCH = "stretch"
    LETTERBOX = "letterbox"


class ChannelOrder(StrEnum):
    """The order of the channels that a model takes."""

    RGB = "RGB"
    BGR = "BGR"


SHORT_SIDE = r"short [1-9][0-9]{0,4}"
"""In place of height and width: the length of an image's short side."""

PerChannel = Annotated[tuple[float, ...], Meta(min_length=3, max_length=3)]


class Takes(config_tables.Table, frozen=True, kw_only=True):
    """What an app has in place of a model's tensors: an image, samples or a text, never two.

    Of an image, the graph that makes a tensor goes into the model's file, in this order: resize, crop, channels, then
    (value / divide - mean) * scale with values from 0 to 255, then layout. Of a text the app's class makes ids.
    """

    image: ImageBytes | None = None
    """The bytes of an image, of any height and width: rgba (as of Android's Bitmap and iOS's CGImage) or rgb."""
    samples: SampleKind | None = None
    """Samples of sound, mono: int16 or float, in steps of `hop`, where the window that the model takes is a state; of
    `features` without `hop` a whole recording of any length."""
    rate: Count | None = None
    """Of samples: how many a second, which the app must record with."""
    window: Count | None = None
    """Of samples: how many the model takes in each step; by default the length of its input. Of a whole recording: to
    which length it is cut, or filled up with silence."""
    hop: Count | None = None
    """Of samples: how many are new in each step, at most `window`; the others are kept of the step before."""
    features: SoundFeatures | None = None
    """Of samples: what a model takes in their place. log-mel is Whisper's, of a recording of 30 s by default; fbank is
    Kaldi's, with frames of 25 ms each 10 ms."""
    bins: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Of features: how many mel filters (Kaldi's num_mel_bins); by default as many as the model's input has."""
    low_freq: Annotated[float, Meta(ge=0)] = 20.0
    """Of fbank: where the lowest filter begins, in Hz."""
    high_freq: float = 0.0
    """Of fbank: where the highest filter ends, in Hz; 0 and less are counted from half the rate, as in Kaldi."""
    window_type: WindowType = WindowType.POVEY
    """Of fbank: povey, hamming or hanning: what the samples of a frame are multiplied with."""
    snip_edges: bool = True
    """Of fbank: true has only frames that lie in the recording; false one for each 10 ms, with mirrored edges."""
    text: str | None = None
    """The tokenizer.json that the model was trained with: WordPiece with BERT's normalizer, or byte-level BPE."""
    ids: run_spec.Text | None = None
    """Of a text: the input that gets the ids of tokens, [1, n]."""
    mask: run_spec.Text | None = None
    """Of a text: the input that gets 1 for each token, and 0 for what fills up."""
    types: run_spec.Text | None = None
    """Of a text: the input that gets the type of each token, which is 0."""
    most: Count | None = None
    """Of a text: the most tokens, those around it too; what is longer loses its end. By default the tokenizer's own."""
    input: run_spec.Text | None = None
    """Of an image or samples: the input that gets it; by default the model's only one."""
    resize: tuple[Count, Count] | Annotated[str, Meta(pattern=f"^{SHORT_SIDE}$")] | None = None
    """Height and width; or the length of the short side, as in "short 256", which `crop` must follow. By default those
    of the model's input, or of `crop`."""
    fit: Proportions = Proportions.STRETCH
    """stretch both sides to `resize`, or letterbox: keep the proportions and fill up both ends with `fill`."""
    fill: Annotated[int, Meta(ge=0, le=255)] = 114
    """The value of what a letterbox fills up, in every channel."""
    crop: tuple[Count, Count] | None = None
    """Height and width cut out of the middle after resizing."""
    filter: Filter | None = None
    """Of an image, always: pillow-bilinear (torchvision and Transformers on images), opencv-linear, opencv-cubic or
    android (createScaledBitmap with its filter): that of the training, or the model gets other pixels than it knows."""
    channels: ChannelOrder = ChannelOrder.RGB
    """RGB or BGR: their order for the model."""
    layout: config_tables.ImageLayout = config_tables.ImageLayout.NCHW
    """NCHW or NHWC."""
    divide: Annotated[float, Meta(gt=0)] | None = None
    """Divided by first: 255 gives 0 to 1 of an image, 32768 gives -1 to 1 of int16 samples."""
    mean: float | PerChannel | None = None
    """Subtracted then: one number, or one for each channel."""
    scale: float | PerChannel | None = None
    """Multiplied with last: one number, or one for each channel."""

    @property
    def channels_of_image(self) -> int:
        """The bytes of a pixel of the app's image; 0 where it has none."""
        return self.image.channels if self.image else 0

    @property
    def short_side(self) -> int:
        """The length that the short side of an image is resized to; 0 where that is not asked for."""
        return int(self.resize.split()[1]) if isinstance(self.resize, str) else 0

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that the model gets, where they are named."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    @property
    def least_size(self) -> tuple[int, int] | None:
        """The least height and width that any image is resized to, where that is said."""
        return (self.short_side, self.short_side) if isinstance(self.resize, str) else self.resize

    @property
    def whole_recording(self) -> bool:
        """Whether the app gives all samples of a recording at once, however many there are."""
        return bool(self.samples and self.features and not self.hop)

    @property
    def highest_freq(self) -> float:
        """Where the highest filter of fbank ends, in Hz."""
        return self.high_freq if self.high_freq > 0 else (self.rate or 0) / 2 + self.high_freq

    @property
    def usual_sizes(self) -> dict[str, int]:
        """Lengths of the open axes for who has no data: neither those of the model's input, nor square."""
        if self.whole_recording:
            return {LENGTH: (self.window or 5 * (self.rate or 1)) - 1}
        height, width = self.size or (224, 224)
        return {"height": 2 * height + 1, "width": 3 * width} if self.image else {}


FEATURE_KEYS: Mapping[SoundFeatures | None, tuple[str, ...]] = {
    None: (),
    SoundFeatures.LOG_MEL: ("bins",),
    SoundFeatures.FBANK: ("bins", "low_freq", "high_freq", "window_type", "snip_edges"),
}
"""By the features of samples, the keys that say more of them."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "image": ("input", "resize", "fit", "fill", "crop", "filter", "channels", "layout", "divide", "mean", "scale"),
    "samples": ("input", "rate", "divide", "window", "hop", "features", *FEATURE_KEYS[SoundFeatures.FBANK]),
    "text": ("ids", "mask", "types", "most"),
}
"""By what an app has, the keys of `takes` that say more of it."""
NEEDED = {"image": ("filter",), "samples": ("rate",), "text": ("ids",)}
"""Of these those that have no default."""


def state_of(takes: Takes | None) -> dict[str, str]:
    """The state that samples of an app add to a model: an output and the input that it becomes."""
    stepwise = takes and takes.samples and not takes.whole_recording
    keeps = takes and stepwise and (takes.window is None or takes.window > (takes.hop or 0))
    return {NEXT_KEPT: KEPT} if keeps else {}


class AnswerKind(StrEnum):
    """What an app gets in place of a model's tensor, by the key of `gives` that asks for it."""

    CLASSES = "classes"
    BOXES = "boxes"
    TEXT = "text"
    EMBEDDING = "embedding"
    MASK = "mask"
    PROBABILITY = "probability"


class BoxLayout(StrEnum):
    """How the head of a detector gives boxes: centres with width and height, or corners."""

    XYWH_CLASSES = "xywh+classes"
    XYWH_OBJECTNESS_CLASSES = "xywh+objectness+classes"
    XYXY_SCORE_CLASS = "xyxy+score+class"


class Pool(StrEnum):
    """How one row is made of those of tokens, or of the places in a picture."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"


class MaskResize(StrEnum):
    """What becomes as large as the picture: values, or the classes that they say."""

    LINEAR = "linear"
    NEAREST = "nearest"


class Gives(config_tables.Table, frozen=True, kw_only=True):
    """What an app gets in place of a model's tensor: one of classes, boxes, text, embedding, mask, probability."""

    classes: str | None = None
    """Text file with the label of each class, one a line: the app gets those with the largest values, and these."""
    boxes: str | bool = False
    """Text file with the label of each class, one a line, or true without: the app gets boxes in its picture."""
    text: str | bool = False
    """Text file with a character a line, without the blank, or true for those that the model's metadata has under
    `character`: the app gets the text that CTC reads of values for characters at each step."""
    embedding: bool = False
    """The app gets one row of numbers, for comparison with others."""
    mask: bool = False
    """The app gets of each pixel of its picture the number of its class."""
    probability: bool = False
    """The app gets one number: the model's only one, or that of the class `index`."""
    output: run_spec.Text | None = None
    """The output that it is made of; by default the model's only one."""
    softmax: bool = False
    """Whether values of classes, text and probability become probabilities first; false where the model makes some."""
    sigmoid: bool = False
    """Whether the value of a probability, or of a mask with one class, becomes one by itself."""
    top: Annotated[int, Meta(ge=1, le=1000)] = 5
    """How many classes; at most as many as there are."""
    layout: BoxLayout = BoxLayout.XYWH_CLASSES
    """xywh+classes: [1, 4 + classes, n] as of YOLOv8 and later; xywh+objectness+classes: [1, n, 5 + classes] as of
    YOLOv5; xyxy+score+class: [1, n, 6], where the model leaves out boxes of one object itself."""
    score: Annotated[float, Meta(ge=0, lt=1)] = 0.25
    """Boxes have larger values than this."""
    overlap: Annotated[float, Meta(ge=0, le=1)] = 0.45
    """Of two boxes of a class that share more than this of what they cover together, the better one is left."""
    most: Annotated[int, Meta(ge=1, le=10_000)] = 300
    """How many boxes at most."""
    blank: Annotated[int, Meta(ge=-1, le=1_000_000)] = 0
    """The number of CTC's blank; -1 for the last."""
    pool: Pool = Pool.NONE
    """mean of the tokens that count, or of the places in a picture; cls, the first token; or none for a model that
    gives one row."""
    counts: run_spec.Text | None = None
    """The input that says which tokens count in a mean; by default attention_mask, or mask."""
    normalize: bool = False
    """Whether embeddings are made as long as 1."""
    resize: MaskResize = MaskResize.LINEAR
    """linear makes a mask's values as large as the picture, then compares them; nearest compares them first, which
    needs far less memory for large pictures."""
    index: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """The number of the class whose probability is given."""

    @property
    def answers(self) -> tuple[AnswerKind, ...]:
        """What is asked for: one, unless the table is wrong."""
        return tuple(answer for answer in AnswerKind if getattr(self, answer.value))

    @property
    def answer(self) -> AnswerKind:
        """What the app gets."""
        return self.answers[0]

    @property
    def file(self) -> str:
        """The text file with labels or characters; "" without one."""
        value = getattr(self, self.answers[0].value) if self.answers else ""
        return value if isinstance(value, str) else ""

    @property
    def strange(self) -> tuple[str, ...]:
        """Keys that are set and mean nothing for what is asked for."""
        meant = {"output", *(answer.value for answer in AnswerKind), *KEYS_OF[self.answer]}
        return tuple(
            name
            for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
            if name not in meant and getattr(self, name) != default
        )

    def blank_of(self, count: int) -> int:
        """The number of the blank among so many."""
        return count - 1 if self.blank < 0 else self.blank

    def placed(self, folder: Path) -> "Gives":
        """The same with its file in a folder."""
        return msgspec.structs.replace(self, **{self.answer.value: str(folder / self.file)}) if self.file else self


KEYS_OF = {
    AnswerKind.CLASSES: ("softmax", "top"),
    AnswerKind.BOXES: ("layout", "score", "overlap", "most"),
    AnswerKind.TEXT: ("softmax", "blank"),
    AnswerKind.EMBEDDING: ("pool", "counts", "normalize"),
    AnswerKind.MASK: ("sigmoid", "resize"),
    AnswerKind.PROBABILITY: ("softmax", "sigmoid", "index"),
}
"""What each answer has keys of its own for, beside `output`."""

OUTPUTS_OF: Mapping[AnswerKind, Mapping[str, run_spec.ElementType]] = {
    AnswerKind.CLASSES: {"labels": run_spec.ElementType.STRING, "scores": run_spec.ElementType.FLOAT32},
    AnswerKind.BOXES: {
        "boxes": run_spec.ElementType.FLOAT32,
        "scores": run_spec.ElementType.FLOAT32,
        "classes": run_spec.ElementType.INT64,
    },
    AnswerKind.TEXT: {"text": run_spec.ElementType.STRING, "scores": run_spec.ElementType.FLOAT32},
    AnswerKind.EMBEDDING: {"embedding": run_spec.ElementType.FLOAT32},
    AnswerKind.MASK: {"mask": run_spec.ElementType.UINT8},
    AnswerKind.PROBABILITY: {"probability": run_spec.ElementType.FLOAT32},
}
"""The outputs of each answer, with what they are of. Boxes have `labels`, too, where there is a file of these."""
