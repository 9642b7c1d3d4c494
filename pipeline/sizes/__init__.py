"""Sizes for open dimensions and values for inputs, from what the graph demands, tried by running the model."""

from pipeline.sizes.guess import Guess, GuessRequest, blame_dimensions, complete_data, guess_inputs
from pipeline.sizes.session import open_session, run_session

__all__ = ["Guess", "GuessRequest", "blame_dimensions", "complete_data", "guess_inputs", "open_session", "run_session"]
