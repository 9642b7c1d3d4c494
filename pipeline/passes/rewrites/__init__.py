"""Rewrites: other nodes in the place of some, with the same outputs, for providers that claim the others."""
