"""Simulations of what no device can show often enough, with fixed seeds."""
