"""Sizes for open dimensions and values for inputs, from what the graph demands, tried by running the model."""

from pipeline.sizes.candidates import open_session, run_session
from pipeline.sizes.guess import (
    Guess,
    GuessRequest,
    InputsChecked,
    blame_dimensions,
    blame_optimization,
    check_inputs,
    complete_data,
    guess_inputs,
    no_size,
)

__all__ = [
    "Guess", "GuessRequest", "InputsChecked", "blame_dimensions", "blame_optimization", "check_inputs",
    "complete_data", "guess_inputs", "no_size", "open_session", "run_session",
]  # fmt: skip
