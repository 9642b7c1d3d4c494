"""Which devices run what of a bundle: rows by class of devices, contexts by chip, and how an app picks by them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from device_runner import device as runner_device
from device_runner import providers as runner_providers
from pipeline.campaign import run_options
from pipeline.campaign import tuned as campaign_tuned
from pipeline.release.manifest import Content, SelectionRow, Shipped

PICKING = """\
Pick by the device (Kotlin; `manifest` is the `manifest.json` of this bundle as an `org.json.JSONObject`):

```kotlin
fun pick(manifest: JSONObject, target: String, model: String): JSONObject {
    val content = manifest.getJSONObject("content")
    val rows = content.getJSONArray("selection")
    val chips = chips() + ""
    for (index in 0 until rows.length()) {
        val row = rows.getJSONObject(index)
        val fits = row.getString("target") == target && row.getString("model") == model &&
            row.getString("soc") in chips && row.getString("abi") in setOf("", Build.SUPPORTED_ABIS[0]) &&
            row.getInt("min_api_level") <= Build.VERSION.SDK_INT
        if (fits) return content.getJSONArray("ships").getJSONObject(row.getInt("ships"))
    }
    throw IllegalStateException("no row fits: the last row of each model fits every device")
}

/** The chip as it was recorded: below API level 31 only the system's properties name it. */
private fun chips(): Set<String> {
    if (Build.VERSION.SDK_INT >= 31 && Build.SOC_MODEL != "unknown") {
        // Letters of a variant may follow, as in SM8550-AC and SM8750P.
        val chip = Build.SOC_MODEL.substringBefore("-").replace(Regex("^(SM[0-9]+)[A-Z]+$"), "$1")
        return listOf(Build.SOC_MODEL, chip).flatMap { listOf(it, "${Build.SOC_MANUFACTURER} $it") }.toSet()
    }
    fun property(name: String): String =
        ProcessBuilder("getprop", name).start().inputStream.bufferedReader().use { it.readText().trim() }
    val names = listOf(@PROPERTIES@)
    val chip = names.map(::property).firstOrNull { it.isNotEmpty() }
        ?: return setOf(Build.BOARD, Build.HARDWARE, Build.MODEL)
    return setOf(chip, "${property("@MAKER@")} $chip".trim())
}
```
""".replace("@PROPERTIES@", ", ".join(f'"{name}"' for name in runner_device.SOC_PROPERTIES)).replace(
    "@MAKER@", runner_device.SOC_MAKER
)
"""How an Android app reads the table; `file` and the first of `runs` of what it returns say what to open and how."""


def selection(
    ships: Sequence[Shipped], classes: Sequence[Sequence[campaign_tuned.TunedClass]]
) -> Iterator[SelectionRow]:
    """For each target and model the classes that were told apart, by what ships, then all others."""
    apart = [shipped for shipped, of_devices in zip(ships, classes, strict=True) if of_devices]
    for target, model in dict.fromkeys((shipped.target, shipped.model) for shipped in apart):
        numbers = [number for number, shipped in enumerate(ships) if (shipped.target, shipped.model) == (target, model)]
        rows = [
            SelectionRow(
                target=target, model=model, soc=kind.chip, abi=kind.abi, min_api_level=kind.api_level, ships=number
            )
            for number in numbers
            for kind in classes[number]
        ]
        yield from sorted(rows, key=lambda row: (row.soc, row.abi, -row.min_api_level))
        yield SelectionRow(target=target, model=model, ships=numbers[0])


def rows_of(content: Content, target: str) -> dict[str, tuple[SelectionRow, ...]]:
    """For each model of a target which devices run what, in order; the last row fits every device.

    A model of which no classes were told apart has one row: the first that ships.
    """
    by_model: dict[str, tuple[SelectionRow, ...]] = {}
    for selected in content.selection:
        if selected.target == target:
            by_model[selected.model] = (*by_model.get(selected.model, ()), selected)
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
        options = code(run_options.options_name(shipped.runs[0]))
        level = str(row.min_api_level or "")
        soc, abi = row.soc and code(row.soc), row.abi and code(row.abi)
        cells = (code(row.model), soc, abi, level, code(shipped.file), options)
        yield f"| {' | '.join(cells)} |"
    yield ""
    if platform == "android":
        yield PICKING


def contexts_of(content: Content, target: str, model: str, asset: Callable[[str], str]) -> list[dict[str, Any]]:
    """What the NPU of each chip runs of a target's model, for templates.

    `asset` gives the path among the assets of a file of the bundle.
    """
    digests = {file.path: file.sha256 for file in content.files}
    return [
        {
            "chip": context.chip,
            "generation": runner_providers.CHIPS[context.chip].htp_arch
            if context.chip in runner_providers.CHIPS
            else 0,
            "compatibility": context.compatibility,
            "min_api_level": context.min_api_level,
            "asset": asset(context.file),
            "sha256": digests[context.file],
            "binary": asset(context.binary),
            "binary_sha256": digests[context.binary],
        }
        for context in content.contexts
        if (context.target, context.model) == (target, model)
    ]
