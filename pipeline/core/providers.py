"""The execution providers that the pipeline knows: each is a folder of pipeline/providers, found by what it gives.

Command line, config, reports and generated docs list what is in the tables here, in this order.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Final

from device_runner import providers as runner_providers
from pipeline.core.provider import BuildProvider, Provider, ProviderRules

NNAPI: Final = "nnapi"
COREML_NN: Final = "coreml-nn"
COREML_MLPROGRAM: Final = "coreml-mlprogram"
XNNPACK: Final = "xnnpack"
QNN: Final = "qnn"
WEBGPU: Final = "webgpu"


def _discovered() -> tuple[Provider, ...]:
    """The providers that have a folder; a run may ask for those that bring a row of their own, too."""
    folder = importlib.import_module("pipeline.providers")
    names = [module.name for module in pkgutil.iter_modules(folder.__path__)]
    providers: list[Provider] = [importlib.import_module(f"pipeline.providers.{name}").PROVIDER for name in names]
    for provider in providers:
        if provider.run:
            runner_providers.register(provider.run)
    return tuple(sorted(providers, key=lambda provider: (provider.position, provider.name)))


_PROVIDERS = _discovered()

PROVIDER_RULES: dict[str, ProviderRules] = {rules.name: rules for known in _PROVIDERS for rules in known.formats}
"""Execution providers whose claims are known, by their names on the command line and in configs.

Of two formats of one provider, the first is the one that a run has without options.
"""

_BUILDS = {provider.name: provider.build for provider in _PROVIDERS if provider.build}

BUILD_PROVIDERS: dict[str, BuildProvider] = {
    name: _BUILDS[name] for name in runner_providers.PROVIDERS if name in _BUILDS
}
"""Providers that a build can contain in addition to the CPU. All of them compile kernels or change the layout at load,
which a plain minimal build cannot do (cmake/onnxruntime_providers_nnapi.cmake and its like refuse it)."""


def on_any_chip() -> tuple[str, ...]:
    """Those that can be asked about without naming a chip, as commands do where no provider is named."""
    return tuple(rules.name for rules in PROVIDER_RULES.values() if not rules.by_chip)


def of_chips(provider: str) -> bool:
    """Whether what a provider of a run takes depends on the chip, so that models are compiled ahead for it."""
    return any(rules.by_chip for rules in PROVIDER_RULES.values() if rules.provider == provider)


def with_copies(names: Iterable[str]) -> tuple[str, ...]:
    """Those of some providers whose files have copies between the provider and the CPU in them."""
    return tuple(name for name in names if PROVIDER_RULES[name].copies)


def on_gpu(names: Iterable[str]) -> bool:
    """Whether one of some providers, by their names in variants, computes on a GPU."""
    return any(name in PROVIDER_RULES and PROVIDER_RULES[name].run.gpu for name in names)


def rules_of_run(provider: str, options: Mapping[str, str]) -> ProviderRules | None:
    """Whose claims a run with a provider and its options has; None where no rules are known."""
    formats = [rules for rules in PROVIDER_RULES.values() if rules.provider == provider and not rules.by_chip]
    asked = (rules for rules in formats if rules.options.items() <= options.items())
    return next(asked, formats[0] if formats else None)


def in_android_libraries() -> tuple[str, ...]:
    """The providers of which an Android library can be asked what it claims."""
    known = (rules for rules in PROVIDER_RULES.values() if not rules.by_chip)
    return tuple(rules.name for rules in known if not rules.run.never_on("android"))


def aware_names() -> tuple[str, ...]:
    """The providers that variants can be aware of."""
    return tuple(rules.name for rules in PROVIDER_RULES.values() if rules.aware)
