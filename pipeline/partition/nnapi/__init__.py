"""NNAPI (ep_rules D)."""
