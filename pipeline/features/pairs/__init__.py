"""Compares two runs on the same devices in alternating rounds: gate, bisect, compare, and histories of campaigns."""
