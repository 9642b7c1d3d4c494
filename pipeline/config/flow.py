"""The tables of a feature: models that an app runs one after the other, which become one graph.

`run`, `when`, init and step are the words of onnxruntime-genai's pipelines.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from device_runner import spec as run_spec
from pipeline.config.tables import Count, OneOrMore, Table
from pipeline.core import documents


class When(StrEnum):
    """When a stage runs."""

    INIT = "init"
    STEP = "step"


class Tokens(StrEnum):
    """The tokens that a stage of a loop gets."""

    ALL = "all"
    LAST = "last"


class Feed(Table, frozen=True, kw_only=True):
    """What an input of a stage gets: a value, a window over values, its own output of the step before, or tokens."""

    source: run_spec.Text | None = msgspec.field(name="from", default=None)
    """`STAGE.OUTPUT` of a stage before it, or a name of your own: that is an input of the feature."""
    window: Count | None = None
    """How many of the latest rows it gets; those that the next step needs again are kept as a state."""
    hop: Count | None = None
    """By how many rows the window moves on for each run of the stage; by all of them where it is left out."""
    rows: Count | None = None
    """Elements of a row; one, as of sound, where it is left out."""
    fill: float = 0.0
    """What stands in a window, or in a state, before the first step."""
    divide: Annotated[float, Meta(gt=0)] | None = None
    """Divided by first."""
    add: float | None = None
    """Added then."""
    state: run_spec.Text | None = None
    """The stage's output that becomes this input at the next step. `%d` stands for a number, in the input's name too:
    `"past.%d.key" = { state = "present.%d.key" }`."""
    first: run_spec.Text | None = None
    """Of a loop, `STAGE.OUTPUT` that it gets at the first step; or "empty": open axes are of length 0, as of a cache
    that grows."""
    tokens: Tokens | None = None
    """Of a loop: all tokens so far, or the last one."""
    positions: Tokens | None = None
    """Of a loop: the places of those tokens in the text, from 0 on, as of `position_ids`."""
    mask: Tokens | None = None
    """Of a loop: a 1 for each of those tokens, as of `attention_mask`."""
    begin: Annotated[tuple[int, ...], Meta(min_length=1, max_length=1000)] | None = None
    """The tokens that a loop begins with."""

    @property
    def rows_taken(self) -> int:
        """By how many rows its window moves on for a run: `hop`, or all of it."""
        return self.hop or self.window or 1


class FlowStage(Table, frozen=True, kw_only=True):
    """A model of a feature and what its inputs get."""

    run: documents.Name
    """Name of one of [[models]], which then ships in this feature alone."""
    when: When = When.INIT
    """init: once for each inference; step: at every step of the loop that ends as `until` says."""
    inputs: dict[str, run_spec.Text | Feed] = {}
    """By input: `STAGE.OUTPUT`, a name of the feature's own input, or a table. An input with a number in the model's
    `inputs` becomes a constant."""

    @property
    def feeds(self) -> dict[str, Feed]:
        """By input a table; a text is its `from`."""
        return {name: Feed(source=feed) if isinstance(feed, str) else feed for name, feed in self.inputs.items()}


class Until(Table, frozen=True, kw_only=True):
    """How the loop of a feature chooses tokens, and when it ends."""

    source: run_spec.Text = msgspec.field(name="from")
    """`STAGE.OUTPUT` with a value for each token, for the last token or for all: the largest is chosen."""
    token: OneOrMore[int]
    """The token that ends a text, or several."""
    most: Annotated[int, Meta(ge=1, le=100_000)]
    """The largest number of steps."""
