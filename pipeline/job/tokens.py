"""The tokenizer of a model whose app has texts: kept beside the artifacts when they are made, shipped with them."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline import config as configs
from pipeline.config import app_data
from pipeline.core import features
from pipeline.core import files as storage
from pipeline.core.errors import PipelineError
from pipeline.core.variant import Artifact
from pipeline.model import signature

ENDING = ".tokens"
FOLDER = "tokenizers/"
"""The bundle's folder of them."""

TOKENS = features.Place[Callable[[app_data.Takes], bytes]]("models.tokens")
"""The file of a tokenizer as an app reads it."""
TEXT_TOKENS = features.Place[Callable[[app_data.Takes, bytes, str], signature.TextTokens]]("models.text_tokens")
"""What a manifest says of such a file, at a path in the bundle."""


def keep(tables: Mapping[str, configs.ModelConfig], artifacts: Path) -> None:
    """Write the tokenizers of models, by their names, beside their artifacts; raises what reading one does."""
    for name, table in tables.items():
        if table.takes and table.takes.text:
            for tokens in TOKENS:
                with storage.storage_errors(artifacts):
                    artifacts.mkdir(parents=True, exist_ok=True)
                storage.write_bytes(artifacts / f"{name}{ENDING}", tokens(table.takes))


def kept(artifact: Artifact, table: configs.ModelConfig | None, artifacts: Path) -> signature.TextTokens | None:
    """What the bundle says of the tokenizer of an artifact; None for a model that takes no text.

    Raises PipelineError where the file is not the one that the artifact was made with.
    """
    if not (table and table.takes and table.takes.text):
        return None
    file = artifacts / f"{artifact.model}{ENDING}"
    content = file.read_bytes() if file.is_file() else b""
    digest = hashlib.sha256(content).hexdigest()
    if not any(digest in step for step in artifact.steps):
        raise PipelineError(
            "a tokenizer is not the one that its model was made with",
            where=str(file),
            why="it is missing or was changed after the campaign",
            remedy="run the campaign again: unchanged models are not converted anew",
        )
    described = iter(TEXT_TOKENS)
    return next(described)(table.takes, content, f"{FOLDER}{file.name}")
