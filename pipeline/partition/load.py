"""What making a session on the phone will give: the file that ships is partitioned there again (ep_rules A.7, H.5)."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.partition.answer import LoadForecast, Settings
from pipeline.partition.claim import FORECASTS, Claim, claim
from pipeline.partition.graph import Graph
from pipeline.partition.inlining import View
from pipeline.partition.rounds import LayoutRound, rounds

if TYPE_CHECKING:
    from onnx import ModelProto

Forecast = Callable[..., LoadForecast]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """The graph of the file that ships. `model` is None for an ORT format file, in which nothing is inlined."""

    graph: Graph
    model: "ModelProto | None"
    view: View


def foresee(shipped: SavedFile, shown: Graph, found: Claim, settings: Settings) -> LoadForecast:
    """How many compiled nodes the session will have, or why it cannot be made.

    `found` is the claim on `shown`, which is not asked for again where that is the graph that ships.
    """
    first = LayoutRound(shipped.graph, found if shown is shipped.graph else claim(shipped.graph, settings))
    if first.claim.fatal is not None:
        return LoadForecast(error=first.claim.fatal.text, remedy=first.claim.fatal.remedy or None)
    forecast: Forecast = importlib.import_module(FORECASTS[settings.provider]).forecast
    if shipped.model is None:
        return forecast((first,), settings)
    return forecast(
        rounds(shipped.model, first, shipped.view, lambda graph, free: claim(graph, settings, free)), settings
    )
