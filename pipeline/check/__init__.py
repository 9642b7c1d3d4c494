"""The original's outputs, and whether an artifact's are near enough: the one numeric check."""
