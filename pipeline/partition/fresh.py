"""Fresh names as ONNX Runtime makes them."""

from collections.abc import Container


class FreshNames:
    """The one counter of a graph for new nodes and new values, never reset (ep_rules C.1)."""

    def __init__(self) -> None:
        self.counter = 0

    def take(self, base: str, taken: Container[str]) -> str:
        """The base itself, or with the next number that makes it new."""
        name = base
        while name in taken:
            name = f"{base}_token_{self.counter}"
            self.counter += 1
        return name
