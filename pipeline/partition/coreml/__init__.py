"""CoreML (ep_rules E and G)."""
