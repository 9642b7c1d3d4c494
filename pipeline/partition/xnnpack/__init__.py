"""XNNPACK (ep_rules F)."""
