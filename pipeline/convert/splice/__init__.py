"""Provider-aware models without a provider: what is claimed stays, stock ONNX Runtime optimizes the rest.

The way of the data: model and its basic optimization -> `claims.find_claims` (a `WholeGraph`) -> `splicing.splice`
(`cut`, sessions, `merge`, `cleanup`) -> a model to be saved as it is. "ep_rules" in comments are the
project's notes on ONNX Runtime's sources, checked against real builds; H is the section on this method.
"""
