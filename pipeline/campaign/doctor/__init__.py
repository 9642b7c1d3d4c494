"""ONNX Runtime's performance checklist as a table: what each check tries on a model, and what came of it."""
