"""Another batch size: where samples lie in each value, by rules that prove that no operator mixes them."""
