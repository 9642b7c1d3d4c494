"""The search for the best way to run a model on a device: pure functions from what was measured to what comes next."""
