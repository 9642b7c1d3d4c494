"""One kernel that an artifact needs."""

import msgspec

from pipeline.required_ops.rules import Slot


class Need(msgspec.Struct, frozen=True, gc=False):
    """An operator at its since-version with the types at the arguments that a build can restrict.

    `nameless`: one of these types has no name in a config (4-bit integers, complex numbers, a value without a type),
    so that the operator may not be restricted at all. `main_type` is what globally allowed types are checked against
    for operators without such arguments: None when it has no name, empty when it does not matter.
    """

    domain: str
    op: str
    since_version: int
    types: tuple[tuple[Slot, str], ...] = ()
    nameless: bool = False
    main_type: str | None = ""
