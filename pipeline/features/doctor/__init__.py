"""Tests the performance checklist on a model: each remedy is measured beside what is there."""
