"""Frames of sound: pieces that lie over one another, each of which becomes a row of features."""

from dataclasses import dataclass

from pipeline.features.app_data.graph_end import GraphEnd

FRAME_SECONDS, SHIFT_SECONDS = 0.025, 0.010
"""What Kaldi and Whisper have, and nearly every model of speech."""

END = 1 << 62
"""Beyond the end of any axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Each has `length` samples, and begins `shift` behind the one before it."""

    length: int
    shift: int

    def samples(self, count: int) -> int:
        """How many samples so many frames are cut out of."""
        return (count - 1) * self.shift + self.length

    def count(self, samples: int) -> int:
        """How many whole frames so many samples have."""
        return (samples - self.length) // self.shift + 1

    def cut(self, part: GraphEnd, samples: str, known: int | None) -> str:
        """float32 [1, frames, length] of [1, n]; `known` is n where it is fixed, else it is at least `length`.

        Blocks of `shift` samples lie side by side, as many as a frame is long: no sample is computed with.
        """
        beside = -(-self.length // self.shift)
        more = beside * self.shift - self.length
        if known is None:
            shape = part.add("Shape", [samples], "samples' shape")
            given = part.columns(shape, 1, 2, 0, "how many samples")
            step = part.integers("shift", self.shift)
            blocks = part.add(
                "Div", [part.add("Add", [given, part.integers("more", more)], "with more"), step], "blocks"
            )
            lacking = part.add("Sub", [part.add("Mul", [blocks, step], "samples of blocks"), given], "lacking")
            pads = part.add("Concat", [part.integers("none before", 0, 0, 0), lacking], "pads of blocks", axis=0)
        else:
            pads = part.integers("pads of blocks", 0, 0, 0, (known + more) // self.shift * self.shift - known)
        whole = part.add("Pad", [samples, pads], "whole blocks")
        rows = part.flat(whole, "rows of blocks", 1, -1, self.shift)
        pieces = [
            part.columns(rows, number, number + 1 - beside or END, 1, f"blocks from {number}")
            for number in range(beside)
        ]
        pieces[-1] = part.columns(pieces[-1], 0, self.shift - more, 2, "ends of frames")
        return part.add("Concat", pieces, "frames", axis=2) if beside > 1 else pieces[0]


def frames_of(rate: int) -> Frames:
    """Those of a rate; what is no whole sample falls away, as in Kaldi."""
    return Frames(length=int(rate * FRAME_SECONDS), shift=int(rate * SHIFT_SECONDS))
