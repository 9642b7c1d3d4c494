"""Whose claims a conversion keeps."""

import msgspec

from pipeline.partition.answer import Provider, Settings

AWARE = (Provider.NNAPI, Provider.COREML_NN, Provider.COREML_MLPROGRAM)
"""Providers that a model can be made aware of. XNNPACK's nodes run on the CPU's own layout anyway."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Providers with their settings; `safe` leaves to the CPU what a provider's model cannot be built with.

    `reference` says whose own session is to save the file: a genuine library (a path or a release), `installed` for the
    onnxruntime of this Python, `auto` for that where it can; empty: splice.
    """

    providers: tuple[Settings, ...]
    safe: bool = False
    reference: str = ""
