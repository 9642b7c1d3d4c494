"""Passes of a file each: the registry finds a module here by its `PASS`."""
