"""Executes RunSpecs on devices and gives RunResults. Usable alone: it knows nothing of the pipeline."""
