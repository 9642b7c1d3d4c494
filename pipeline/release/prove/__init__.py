"""Proves a bundle without a phone: what it ships is loaded and run in the Android library that ships."""

from pipeline.release.prove.plan import ProofOrder
from pipeline.release.prove.run import prove_bundle

__all__ = ["ProofOrder", "prove_bundle"]
