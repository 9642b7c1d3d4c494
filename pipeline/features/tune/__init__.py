"""Searches for the best artifact and session options on devices, by class of device."""
