"""What features put at the ends of a model, before its precisions are made: none of it is quantized."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline import config as configs
from pipeline.config import tables as config_tables
from pipeline.core import features
from pipeline.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A pass behind the transforms of a model, and the names of the nodes that it adds, which stay float."""

    step: config_tables.Step
    nodes: tuple[str, ...]


ATTACHMENTS = features.Place[Callable[[configs.ModelConfig], Attachment | None]]("models.attachments")


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
