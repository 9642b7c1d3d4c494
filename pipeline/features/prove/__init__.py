"""Proves a bundle without a phone: what it ships is loaded and run in the Android library that ships."""

from pipeline.features.prove.plan import ProofOrder
from pipeline.features.prove.run import prove_bundle

__all__ = ["ProofOrder", "prove_bundle"]
