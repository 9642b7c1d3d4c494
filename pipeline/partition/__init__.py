"""What NNAPI, CoreML and XNNPACK will claim of a model, why not the rest, and what becomes of it on load.

The way of the data: model -> `graph.Graph` (`onnx_view` or `ort_view`) -> `units` -> a provider's
rules -> `grouping` -> `rules.Claim` -> `judge.judge`, which answers with a `ModelAnswer`. "ep_rules" in comments are
the project's notes on ONNX Runtime's sources, checked against real builds; letters and numbers are their sections.

How a provider module is written. It exports

- `TABLE`: op type -> `rules.Rule`, or a tuple of them where a release changed the row. A row is data: bounds, formats,
  and tuples of checks in the order in which ONNX Runtime makes them;
- `refusal(case) -> Refusal | None`: the order of the checks that every row shares (`rules.first_refusal` does the
  rest);
- `claim(graph, settings) -> rules.Claim`: units (`units.node_units`, or `units.plain_units` where QDQ means nothing),
  judged one by one, grouped by `grouping.group_by_waves`, vetoes. It is called for the main graph and for each body.

It is named in its row of `core.providers.PROVIDER_RULES`. A check gets a `rules.Case` and returns
`Refusal(code, text, remedy)` or None; what many rows need is made by the factories of `rules` (`constant(1, "weight")`,
`rank(0, 4, 4)`). Codes are those of ep_rules; the text explains to a model's author what about this node is not
supported (which value, its shape or type, which limit), the remedy what to change. A check that predicts a crash or an
exception returns a Refusal with `fatal=True`. Whatever a later release changed is a `release` or `before` of the row,
or a comparison with `case.settings.ort_release` inside the check.
"""
