"""Accuracy of a model file: metrics on data, compared with the original model, with intervals and a budget."""
