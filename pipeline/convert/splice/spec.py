"""Whose claims a conversion keeps."""

import msgspec

from pipeline.partition.answer import Provider, Settings

AWARE = (Provider.NNAPI, Provider.COREML_NN, Provider.COREML_MLPROGRAM)
"""Providers that a model can be made aware of. XNNPACK's nodes run on the CPU's own layout anyway."""


class AwareSource(msgspec.Struct, frozen=True, kw_only=True):
    """Whose own session saves a provider-aware file: an Android library, or the installed onnxruntime ("").

    `optional`: where it lacks the provider, refuses the model or crashes on it, the file is spliced.
    """

    library: str = ""
    release: str = ""
    sha256: str = ""
    optional: bool = False


class AwareSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Providers with their settings; `safe` leaves to the CPU what a provider's model cannot be built with.

    `reference` says whose own session is to save the file; None: splice.
    """

    providers: tuple[Settings, ...]
    safe: bool = False
    reference: AwareSource | None = None
