"""What a part behind a model is made for: the tensor that it reads, and what is known of the app's data."""

from dataclasses import dataclass

from device_runner.spec import ElementType
from pipeline.config import app_data
from pipeline.core.errors import ConfigError
from pipeline.features.app_data.original import Original
from pipeline.model.signature import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The part behind `tensor`: `names` are its labels or characters, `original` the app's image where there is one.

    `mask` is the input that says which of a row of tokens count, "" where there is none.
    """

    gives: app_data.Gives
    tensor: TensorInfo
    names: tuple[str, ...] = ()
    original: Original | None = None
    mask: str = ""
    where: str = ""

    @property
    def shape(self) -> tuple[int | str | None, ...]:
        """The tensor's shape; () where it is not known."""
        return self.tensor.shape or ()

    def refusal(self, what: str, why: str, remedy: str) -> ConfigError:
        """What does not fit, with its place."""
        return ConfigError(what, where=self.where, why=why, remedy=remedy)

    def require(self, wanted: str, *ranks: int) -> None:
        """ConfigError where the tensor is no float32 of one of these ranks, which are any where there is none."""
        known = self.tensor.shape is not None
        if self.tensor.dtype is not ElementType.FLOAT32 or (known and ranks and len(self.shape) not in ranks):
            raise self.refusal(
                f"the output {self.tensor.name!r} has no {wanted}",
                f"it is {self.tensor}; float32 of {' or '.join(map(str, ranks)) or 'any'} axes is wanted",
                "name another output as `gives.output`",
            )

    def size(self, axis: int) -> int | None:
        """The size of an axis; None where it is open."""
        size = self.shape[axis] if self.shape else None
        return size if isinstance(size, int) else None
