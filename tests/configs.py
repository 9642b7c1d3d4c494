"""Tables of configs that the jobs of many tests have: `name = "demo"`, then these and what a test is about."""

from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "build_configs" / "examples" / "mnist"

MNIST = f"""[[models]]
path = "{EXAMPLE / "mnist.onnx"}"
test_data = "{EXAMPLE}"
"""
PHONE = """[[targets]]
name = "phone"
platform = "android"
"""
DESK = """[[targets]]
name = "desk"
platform = "linux"
"""
BASIC = """[variants]
levels = ["basic"]
styles = ["fixed"]
"""
EVERY = """[[runs]]
variants = ["*"]
"""


def short(rounds: int = 1, min_runs: int = 3) -> str:
    """Few inferences in few rounds; other keys of [measure] may follow."""
    return f"[measure]\nrounds = {rounds}\nmin_runs = {min_runs}\nmin_seconds = 0.001\n"
