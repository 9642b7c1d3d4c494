"""Advice that is tested: fixes for a model, each applied, judged by the same rules, and checked numerically."""
