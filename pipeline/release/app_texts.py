"""How the classes for apps make a model's inputs of a text; the same in every language."""

from dataclasses import dataclass

from pipeline.release import manifest as bundle_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFeed:
    """A text becomes `most` tokens at most by the tokenizer in `file` of the bundle.

    Where the model takes so many, neither more nor less, they are filled up to `length`, which is 0 elsewhere. `keys`
    say of each input in its order what it gets: ids, mask or types.
    """

    file: str
    algorithm: str
    most: int
    length: int
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        """The tokenizer's file without its folder."""
        return self.file.rpartition("/")[2]


def feed_of(signature: bundle_manifest.ModelSignature) -> TextFeed | None:
    """What a model needs of a text; None where it takes something else."""
    if not (signature.text and signature.takes_text):
        return None
    text, length = signature.text, signature.text.length(signature.inputs)
    keys = {name: key for key, name in text.inputs.items()}
    return TextFeed(
        file=text.file,
        algorithm=text.algorithm,
        most=min(text.most, length or text.most),
        length=length,
        keys=tuple(keys[given.name] for given in signature.inputs),
    )
