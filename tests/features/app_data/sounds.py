"""Sound like speech, made here: a voice with formants that comes and goes over the noise of a room."""

from typing import Any

import numpy as np

FORMANTS = ((1, 0.30), (2, 0.20), (5, 0.12), (9, 0.08), (18, 0.04), (31, 0.015))
"""Harmonics of a voice, and how loud they are."""


def speech(seconds: float, rate: int = 16_000, seed: int = 0) -> Any:
    """int16: words of a gliding voice with pauses between them, hissing sounds, and a noise 60 dB below."""
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    words, pitch = (
        np.interp(time * a_second, np.arange(int(seconds * a_second) + 2), values)
        for a_second, values in (
            (4, generator.random(int(seconds * 4) + 2) ** 2),
            (2, generator.uniform(90, 260, int(seconds * 2) + 2)),
        )
    )
    phase = np.cumsum(2 * np.pi * pitch / rate)
    voice = sum(loud * np.sin(number * phase) for number, loud in FORMANTS if number * 260 < rate / 2)
    hiss = generator.standard_normal(time.size) * np.roll(words, rate // 5) ** 4 * 0.1
    sound = voice * words + hiss + 1e-3 * generator.standard_normal(time.size)
    return (sound.clip(-1, 1) * 32767).astype(np.int16)
