"""From places in what a model saw of an image to those in the image itself, by the numbers that it was resized with."""

from dataclasses import dataclass

from pipeline.config import app_data
from pipeline.features.app_data import image
from pipeline.features.app_data.graph_end import GraphEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The app's image, the input `name` of uint8 [1, height, width, channels], which became one of `size`."""

    name: str
    takes: app_data.Takes
    size: tuple[int, int]

    @property
    def cropped(self) -> bool:
        """Whether the model saw a part of it only."""
        return bool(self.takes.crop or self.takes.short_side)

    def lengths(self, part: GraphEnd) -> str:
        """Height and width of the image, int64 [2]."""
        return part.columns(part.add("Shape", [self.name], "image's shape"), 1, 3, 0, "image's lengths")

    def corners(self, part: GraphEnd, corners: str) -> str:
        """Left, top, right and bottom [n, 4] in pixels of the image, and within it, of those in the model's input."""
        twice = part.integers("x and y twice", 1, 0, 1, 0)
        whole = part.cast(self.lengths(part), "image's float lengths", "f32")
        lengths = part.add("Gather", [whole, twice], "image's sides")
        title, takes = image.TITLE, self.takes
        if takes.fit is app_data.Proportions.LETTERBOX and not takes.short_side:
            margin = part.add("Gather", [f"{title}/before", twice], "margins")
            inside = part.add("Sub", [corners, margin], "inside margins")
            placed = part.add("Div", [inside, f"{title}/ratio"], "in pixels of the image")
        else:
            if self.cropped:
                start = part.add("Gather", [part.cast(f"{title}/start", "float start", "f32"), twice], "cut off")
                corners = part.add("Add", [corners, start], "before the cut")
            if takes.short_side:
                resized = part.add("Gather", [f"{title}/new lengths", twice], "resized sides")
            else:
                height, width = takes.resize if isinstance(takes.resize, tuple) else self.size
                resized = part.floats("resized sides", [width, height, width, height])
            times = part.add("Mul", [corners, lengths], "times the image's sides")
            placed = part.add("Div", [times, resized], "in pixels of the image")
        above = part.add("Max", [placed, part.floats("edge", 0.0)], "not before the image")
        return part.add("Min", [above, lengths], "within the image")
