"""Measures model files on a device without converting."""
