"""What every table of a config is, and the kinds of values that stand in many."""

from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Release = Annotated[str, Meta(pattern=r"^1\.\d{1,2}(\.\d{1,2})?$")]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the config: strict, unchanging."""
