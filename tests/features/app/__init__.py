"""Tests of `ort-mobile app`."""
