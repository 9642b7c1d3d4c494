"""Options about execution providers: their names, chips, and what is said of each."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

import click

from pipeline.cli.callbacks import (
    Callback,
    words,
)
from pipeline.cli.command import together
from pipeline.cli.values import one_value
from pipeline.core import providers as provider_rules

if TYPE_CHECKING:
    from pipeline.partition import answer as claim_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderWords:
    """What options say of providers with rules, in words; what is left out has ONNX Runtime's own default."""

    abi: str
    api_level: int | None
    coreml_version: int | None
    coreml_options: tuple[str, ...]
    webgpu_options: tuple[str, ...]
    nnapi_flags: tuple[str, ...]
    stop_ops: str | None

    def of_oldest(self) -> "ProviderWords":
        """With the oldest API level and version of Core ML that are judged, where none is given."""
        from pipeline.partition import answer as claim_answer

        return replace(
            self,
            api_level=self.api_level or claim_answer.OLDEST["api_level"],
            coreml_version=self.coreml_version or claim_answer.OLDEST["coreml_version"],
        )

    def settings(
        self, providers: tuple[str, ...], release: str, chips: Sequence[str] = ()
    ) -> tuple["claim_answer.Settings", ...]:
        """The settings of each provider in an app's library, of one by chip for each of the chips.

        ConfigError for values that it would refuse itself.
        """
        from pipeline.core import abis as core_abis
        from pipeline.partition import answer as claim_answer

        given = {**asdict(self), "abi": self.abi or core_abis.ARM64}
        given["options"] = {name: given.pop(f"{name}_options") for name in ("coreml", "webgpu")}
        named = chips_named(chips, "--chip") or ("",)
        return tuple(
            claim_answer.make_settings(provider, release=release, chip=chip, android=True, **given)
            for provider in providers
            for chip in (named if provider_rules.PROVIDER_RULES[provider].by_chip else ("",))
        )


provider_options = together(
    click.option(
        "--abi",
        default="",
        metavar="ABI",
        help="Android ABI of the library in the app: providers run a few quantized nodes on ARM or x86 only, XNNPACK "
        "half precision on ARM only.  [default: arm64-v8a]",
    ),
    click.option(
        "--api-level", type=click.IntRange(min=1), help="NNAPI feature level (Android API level).  [default: 31]"
    ),
    click.option(
        "--coreml-version",
        type=click.IntRange(min=3),
        help="CoreML version: 5 for iOS 15, 6 for 16, 7 for 17, 8 for 18.  [default: 7]",
    ),
    click.option("--coreml-options", callback=words(), metavar="KEY=VALUE,...", help="Options of the CoreML provider."),
    click.option("--webgpu-options", callback=words(), metavar="KEY=VALUE,...", help="Options of the WebGPU provider."),
    click.option("--nnapi-flags", callback=words(), metavar="FLAG,...", help="NNAPI flags, such as USE_NCHW."),
    click.option(
        "--stop-ops",
        metavar="OP,...",
        help="Leave these operators and all nodes after them to the CPU.  [default: NonMaxSuppression]",
    ),
    one_value("provider_words", ProviderWords, *(field.name for field in fields(ProviderWords))),
)
"""The options of execution providers: a command gets `provider_words`."""


chip_option = click.option(
    "--chip",
    "chips",
    callback=words(),
    metavar="CHIP,…",
    help="Snapdragons whose NPU is asked about, by Android's Build.SOC_MODEL, such as SM8650; docs/npu.md lists them.",
)


def provider_names(choices: Iterable[str]) -> Callback:
    """A callback for providers with rules, given as `a,b`, repeatedly, or in capitals.

    The name of a run's provider means all its formats, as `coreml` does.
    """
    formats: dict[str, tuple[str, ...]] = {name: (name,) for name in choices}
    for name in tuple(formats):
        run = provider_rules.PROVIDER_RULES[name].provider
        formats[run] = tuple(dict.fromkeys((*formats.get(run, ()), name)))
    split = words(tuple(formats))

    def names(ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...] | None) -> tuple[str, ...]:
        text = ",".join(value) if isinstance(value, tuple) else value or ""
        given = split(ctx, param, text.lower())
        return tuple(dict.fromkeys(provider for name in given for provider in formats[name]))

    return names


def known_providers() -> list[str]:
    """The names of all providers with rules; behind the formats of one, its own name for all of them."""
    texts: list[str] = []
    for rules in provider_rules.PROVIDER_RULES.values():
        texts.append(rules.name)
        formats = [other.name for other in provider_rules.PROVIDER_RULES.values() if other.provider == rules.provider]
        if len(formats) > 1 and rules.name == formats[-1]:
            texts.append(f"{rules.provider} for {'both' if len(formats) == 2 else 'all'} formats")
    return texts


def either(names: Sequence[str], last: str = " or ") -> str:
    """Names as in `a, b or c`."""
    return last.join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def refuse_divided(providers: Sequence[str], ctx: click.Context) -> None:
    """UsageError for providers that one file cannot serve."""
    alone = provider_rules.with_copies(providers)
    if alone and len(providers) > 1:
        others = ",".join(name for name in providers if name not in alone)
        raise click.UsageError(
            f"--ep {alone[0]} makes files of its own: the copies between GPU and CPU in them divide what others take; "
            f"run the command twice, with --ep {alone[0]} and with --ep {others}",
            ctx,
        )


def chips_named(texts: Sequence[str], where: str) -> tuple[str, ...]:
    """The names of chips, each once; ConfigError for one that is not known."""
    from device_runner import providers as runner_providers
    from device_runner.errors import SpecError
    from pipeline.core.errors import ConfigError

    if together := next((text for text in texts if "+" in text), None):
        raise ConfigError(
            f"{together}: contexts of several chips in one file are not made",
            where=where,
            why="its bytes differ each time, and nothing on a computer loads it, so that no release could vouch for it",
            remedy=f"a file for each: {together.replace('+', ',')}",
        )
    try:
        return tuple(dict.fromkeys(runner_providers.chip_named(text).name for text in texts))
    except SpecError as error:
        raise ConfigError.of(error.problem, where=where) from error
