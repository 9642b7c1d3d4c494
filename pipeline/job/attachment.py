"""What features put at the ends of a model, before its precisions are made: none of it is quantized."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import config as configs
from pipeline.config import tables as config_tables
from pipeline.core import features
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.core.progress import Progress
from pipeline.dataset import guess as data_guess
from pipeline.model import sources as model_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A pass behind the transforms of a model; the nodes that it adds have names of ends, and so stay float."""

    step: config_tables.Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWithEnds:
    """A model behind its attachment, in float, and what its table says."""

    model: model_sources.NamedModel
    table: configs.ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """That `oracle`, a Python function, gives what the graph does: of so many samples, apart by a share at most."""

    oracle: str
    samples: int
    largest: float

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.oracle} gives the same for {self.samples} samples, at most {self.largest:.2g} apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLines:
    """Lines of a new config's [[models]], and the files that they name: their texts by their names."""

    lines: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def attached(self) -> bool:
        """Whether they say what the app has: sizes of the model's own input are then none of the config's."""
        return any(line.startswith("takes") for line in self.lines)


TABLES = features.Place[Callable[[Path, data_guess.Guess], TableLines | None]]("init.tables")


def tables_beside(model: Path, guess: data_guess.Guess) -> TableLines:
    """What the files beside a model say of an app's data; no lines where there are none."""
    for write in TABLES:
        if made := write(model, guess):
            return made
    return TableLines(lines=())


ATTACHMENTS = features.Place[Callable[[configs.ModelConfig], Attachment | None]]("models.attachments")


Confirm = Callable[[Mapping[str, ModelWithEnds], Path, Progress], Mapping[str, Confirmation | PipelineError]]
ORACLES = features.Place[Confirm]("models.oracles")


def confirmations(
    attached: Mapping[str, ModelWithEnds], work: Path, progress: Progress
) -> dict[str, Confirmation | PipelineError]:
    """By the name of a model that has an oracle what it says of the graph; its error where that is another."""
    asked = {name: of_model for name, of_model in attached.items() if of_model.table.oracle}
    results: dict[str, Confirmation | PipelineError] = {}
    for confirm in ORACLES if asked else ():
        results |= confirm(asked, work, progress)
    return results


def attachment_of(table: configs.ModelConfig, where: str) -> Attachment | None:
    """What is put at the ends of a table's model; ConfigError where nobody here can."""
    for attach in ATTACHMENTS:
        if made := attach(table):
            return made
    if table.takes or table.gives:
        raise ConfigError(
            "nothing here makes tensors of an app's data",
            where=where,
            remedy="leave out `takes` and `gives`, or install ort-mobile whole",
        )
    return None
