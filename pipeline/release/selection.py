"""Which devices run what, where a search told classes of them apart: the manifest's table, and how an app reads it."""

from collections.abc import Callable, Iterator, Sequence

from device_runner.device import SOC_MAKER, SOC_PROPERTIES
from pipeline.campaign.options import options_name
from pipeline.campaign.tuned import TunedClass
from pipeline.release.manifest import Content, SelectionRow, Shipped

PICKING = """\
Pick by the device (Kotlin; `manifest` is the `manifest.json` of this bundle as an `org.json.JSONObject`):

```kotlin
fun pick(manifest: JSONObject, target: String, model: String): JSONObject {
    val content = manifest.getJSONObject("content")
    val rows = content.getJSONArray("selection")
    val soc = chip()
    for (index in 0 until rows.length()) {
        val row = rows.getJSONObject(index)
        val fits = row.getString("target") == target && row.getString("model") == model &&
            row.getString("soc") in setOf("", soc) && row.getString("abi") in setOf("", Build.SUPPORTED_ABIS[0]) &&
            row.getInt("min_api_level") <= Build.VERSION.SDK_INT
        if (fits) return content.getJSONArray("ships").getJSONObject(row.getInt("ships"))
    }
    throw IllegalStateException("no row fits: the last row of each model fits every device")
}

/** The chip as it was recorded: below API level 31 only the system's properties name it. */
private fun chip(): String {
    if (Build.VERSION.SDK_INT >= 31) return "${Build.SOC_MANUFACTURER} ${Build.SOC_MODEL}"
    fun property(name: String): String =
        ProcessBuilder("getprop", name).start().inputStream.bufferedReader().use { it.readText().trim() }
    val names = listOf(@PROPERTIES@)
    val chip = names.map(::property).firstOrNull { it.isNotEmpty() } ?: Build.MODEL
    return "${property("@MAKER@")} $chip".trim()
}
```
""".replace("@PROPERTIES@", ", ".join(f'"{name}"' for name in SOC_PROPERTIES)).replace("@MAKER@", SOC_MAKER)
"""How an Android app reads the table; `file` and the first of `runs` of what it returns say what to open and how."""


def selection(ships: Sequence[Shipped], classes: Sequence[Sequence[TunedClass]]) -> Iterator[SelectionRow]:
    """For each target and model the classes that were told apart, by what ships, then all others."""
    apart = [shipped for shipped, of_devices in zip(ships, classes, strict=True) if of_devices]
    for target, model in dict.fromkeys((shipped.target, shipped.model) for shipped in apart):
        numbers = [number for number, shipped in enumerate(ships) if (shipped.target, shipped.model) == (target, model)]
        rows = [
            SelectionRow(
                target=target, model=model, soc=each.chip, abi=each.abi, min_api_level=each.api_level, ships=number
            )
            for number in numbers
            for each in classes[number]
        ]
        yield from sorted(rows, key=lambda row: (row.soc, row.abi, -row.min_api_level))
        yield SelectionRow(target=target, model=model, ships=numbers[0])


def rows_of(content: Content, target: str) -> dict[str, tuple[SelectionRow, ...]]:
    """For each model of a target which devices run what, in order; the last row fits every device.

    A model of which no classes were told apart has one row: the first that ships.
    """
    by_model: dict[str, tuple[SelectionRow, ...]] = {}
    for row in content.selection:
        if row.target == target:
            by_model[row.model] = (*by_model.get(row.model, ()), row)
    apart = set(by_model)
    for number, shipped in enumerate(content.ships):
        if shipped.target == target and shipped.model not in apart:
            by_model.setdefault(shipped.model, (SelectionRow(target=target, model=shipped.model, ships=number),))
    return by_model


def selection_text(
    rows: Sequence[SelectionRow], ships: Sequence[Shipped], platform: str, code: Callable[[str], str]
) -> Iterator[str]:
    """The part of a bundle's README.md on one target's rows; nothing where each model runs in one way only.

    `code` shows text as code within a table.
    """
    if len({(row.model, row.ships) for row in rows}) == len({row.model for row in rows}):
        return
    yield "### Which devices run what\n"
    yield "The first row of a model that fits the device counts; empty cells fit every device.\n"
    yield "| model | chip | ABI | API level from | file | session options |\n|---|---|---|---|---|---|"
    for row in rows:
        shipped = ships[row.ships]
        options = code(options_name(shipped.runs[0]))
        level = str(row.min_api_level or "")
        soc, abi = row.soc and code(row.soc), row.abi and code(row.abi)
        cells = (code(row.model), soc, abi, level, code(shipped.file), options)
        yield f"| {' | '.join(cells)} |"
    yield ""
    if platform == "android":
        yield PICKING
