"""What a search for a mixed precision came to: plain data, stored with campaigns and in a model's metadata."""

import msgspec


class LayerLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What quantizing some nodes alone costs: one layer, or a run of layers that was not worth dividing."""

    nodes: tuple[str, ...]
    op_type: str
    sqnr_db: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that was measured whole: what is left float and what that gives."""

    types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    sqnr_db: float
    quantized: int
    partitions: int | None = None
    """Partitions of the provider; None without one, and where its partitions cost nothing."""
    load_error: str = ""
    """Why no session can be made on the phone."""


class MixedSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search and its result. `spread`: no operator type and no layer is to blame for the loss."""

    goal_db: float
    evaluations: int
    start: Trial
    best: Trial
    spread: bool
    layers: tuple[LayerLoss, ...] = ()
    trials: tuple[Trial, ...] = ()

    @property
    def text(self) -> str:
        """The result in one line."""
        start = f"{_figures(self.start)} with all quantized"
        if not self.best.types and not self.best.nodes and not self.spread:
            return f"{start}: nothing must stay float"
        gain = f"{start}, {_figures(self.best)}"
        left = [f"all {', '.join(self.best.types)}"] if self.best.types else []
        left += [f"{len(self.best.nodes)} layer{'s' * (len(self.best.nodes) != 1)}"] if self.best.nodes else []
        if self.spread:
            return f"{gain} at best: the loss is spread, no layer helps; use wider activations or fewer operator types"
        return f"{gain} with {' and '.join(left)} float, after {self.evaluations} evaluations"


def _figures(trial: Trial) -> str:
    """As in `31.0 dB in 2 partitions`."""
    count = "" if trial.partitions is None else f" in {trial.partitions} partition{'s' * (trial.partitions != 1)}"
    return f"{trial.sqnr_db:.1f} dB{count}{', which does not load' if trial.load_error else ''}"
