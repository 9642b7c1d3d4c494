"""What NNAPI, CoreML and XNNPACK will claim of a model, why not the rest, and what becomes of it on load.

The way of one claim, from a model to its verdict:

- `many`: models and providers that are asked for, as requests in workers;
- `judge`: a request, the model (`subject`), what the provider is shown of it (`shown`: functions inlined, level basic)
  as a `graph.Graph`, the claim, the answer (`answer.ModelAnswer`);
- `claiming`: `claim` asks where a provider's claims come from; `claim_by_rules` judges a graph, unit by unit
  (`units`), asks once of what is alike (`outline`), and groups what it claims;
- `pipeline.providers.NAME.claims`: `refusal` and `claim` of a provider; `rules` beside it has its TABLE, `load` what
  fails on load. Their words and factories are those of `rules` here;
- `answer`, `pipeline.report.partition`: the answer, and how it is shown.

"ep_rules" in comments are the project's notes on ONNX Runtime's sources, checked against real builds; letters and
numbers are their sections.

How a module of rules is written: `TABLE` maps op types to `rules.Rule`, or to a tuple of them where a release changed
the row. A row is data: bounds, formats, and tuples of checks in the order in which ONNX Runtime makes them. `refusal`
has the order of the checks that every row shares, `claim` gives that and the rest to `claim_by_rules`. `claiming` finds
the module by the provider's name (`provider` of its row in `core.providers.PROVIDER_RULES`).

A check gets a `Case` and returns `Refusal(code, text, remedy)` or None; what many rows need is made by the factories of
`rules` (`constant(1, "weight")`, `rank(0, 4, 4)`). Codes are those of ep_rules; the text explains to a model's author
what about this node is not supported (which value, its shape or type, which limit), the remedy what to change. A check
that predicts a crash or an exception returns a Refusal with `fatal=True`. Whatever a later release changed is a
`release` or `before` of the row, or a comparison with `case.settings.ort_release` inside the check.
"""
