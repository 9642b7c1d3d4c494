"""What does not work, in the same words wherever it is said: in errors, failures of runs, findings and refusals."""

from msgspec import Struct


def joined(*parts: str) -> str:
    """Texts as one line, without those that are empty; one that another follows loses its full stop."""
    *before, last = [part.strip() for part in parts if part] or [""]
    return "; ".join([*(part.rstrip(".") for part in before), last])


class Problem(Struct, frozen=True, kw_only=True):
    """What is wrong, why, what to do about it, and where; `code` is one word by which programs decide, "" for none.

    Texts are for people alone. What derives it adds what it concerns. In documents some parts have other names, which
    are those of release 1.0: kind, rule, message, reason, cause, advice.
    """

    code: str = ""
    what: str
    why: str = ""
    remedy: str = ""
    where: str = ""

    @property
    def reason(self) -> str:
        """What and why, on one line without the place; ONNX Runtime's messages may say both already."""
        return joined(self.what, "" if self.why in self.what else self.why)

    @property
    def text(self) -> str:
        """As `reason`, with what to do."""
        return joined(self.reason, self.remedy)

    def lines(self) -> list[tuple[str, str]]:
        """The four parts for people with their labels, empty ones left out, in the order a terminal shows them."""
        parts = [("error", self.what), ("where", self.where), ("why", self.why), ("remedy", self.remedy)]
        return [(label, text) for label, text in parts if text]
