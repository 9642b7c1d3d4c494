"""What a program in an app's language is given of a bundle's vectors, and the lines that it must print: equal bits.

It reads a line for each vector: the width and the height of a picture, then paths of what the app has, or of tensors.
It prints a line for each value (a text, then numbers with `|` before each, floats as the integers of their bits), and
`#` behind each vector.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from device_runner.spec import TensorFile
from pipeline.check.compare import read_tensor
from pipeline.config.app_data import AnswerKind
from pipeline.release.kept import KeptTensor, KeptVector, KeptVectors
from pipeline.release.manifest import ModelSignature, read_manifest


def _bits(values: Any) -> Iterator[str]:
    values = np.ravel(values)
    whole = values if values.dtype.kind == "i" else values.astype("<f4").view(np.int32)
    return (f"|{number}" for number in whole.tolist())


def _rows(*columns: Any) -> Iterator[str]:
    """A text with numbers behind it, a line for each."""
    for text, *numbers in zip(*columns, strict=True):
        yield text + "".join(bits for number in numbers for bits in _bits(number))


Outputs = Mapping[str, Any]
ANSWERS: Mapping[AnswerKind, Callable[[Outputs], Iterator[str]]] = {
    AnswerKind.CLASSES: lambda outputs: _rows(outputs["labels"][0], outputs["scores"][0]),
    AnswerKind.BOXES: lambda outputs: _rows(
        outputs["labels"] if "labels" in outputs else [""] * len(outputs["scores"]),
        *(outputs[name] for name in ("scores", "boxes", "classes")),
    ),
    AnswerKind.TEXT: lambda outputs: iter(["".join(outputs["text"].ravel())]),
    AnswerKind.EMBEDDING: lambda outputs: _bits(outputs["embedding"]),
    AnswerKind.MASK: lambda outputs: ("".join(f"{number} " for number in row) for row in outputs["mask"]),
    AnswerKind.PROBABILITY: lambda outputs: _bits(outputs["probability"]),
}


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of a model of a bundle, which has files for programs beside it."""

    bundle: Path
    kept: KeptVectors
    signature: ModelSignature

    def written(self) -> Path:
        """The lines that a program reads, as a file."""
        stem = self.bundle.parent / self.kept.model
        lines = [
            self._line(vector, stem.with_name(f"{stem.name}.given_{number}"))
            for number, vector in enumerate(self.kept.vectors)
        ]
        file = stem.with_name(f"{stem.name}.vectors")
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return file

    def equal(self, printed: Sequence[str]) -> int:
        """How many vectors a program gave again in all bits; fails for one that it did not."""
        answers = "\n".join(printed).split("#")[:-1]
        for answer, vector in zip(answers, self.kept.vectors, strict=True):
            outputs = {kept.name: self._array(kept) for kept in vector.outputs}
            answer_kind = self.signature.answer
            wanted = ANSWERS[answer_kind](outputs) if answer_kind else _bits(next(iter(outputs.values())))
            assert answer.strip("\n").split("\n") == ("\n".join(wanted)).split("\n")
        return len(self.kept.vectors)

    def _array(self, kept: KeptTensor) -> Any:
        file = str(self.bundle / kept.path)
        return read_tensor(TensorFile(name=kept.name, dtype=kept.dtype, shape=kept.shape, file=file))

    def _line(self, vector: KeptVector, file: Path) -> str:
        if self.signature.takes_image:
            pixels = self._array(vector.inputs[0])[0]
            opaque = np.full((*pixels.shape[:2], 4), 255, np.uint8)
            opaque[..., : pixels.shape[2]] = pixels
            file.write_bytes(opaque.tobytes())
            return f"{pixels.shape[1]} {pixels.shape[0]} {file}"
        if vector.text:
            file.write_bytes(vector.text.encode())
            return f"0 0 {file}"
        return " ".join(["0 0", *(str(self.bundle / kept.path) for kept in vector.inputs)])


def of_bundle(bundle: Path) -> tuple[Vectors, ...]:
    """The vectors of each model, of which all must have some."""
    manifest = read_manifest(bundle)
    for kept in manifest.vectors:
        assert kept.vectors, f"{kept.model}: {kept.none}"
    return tuple(Vectors(bundle, kept, manifest.content.signature(kept.model)) for kept in manifest.vectors)
