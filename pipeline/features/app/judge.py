"""What speaks against a package: rules on what is in it, each with a name that `--fail-on` and SARIF use.

Sources: developer.android.com/guide/practices/page-sizes (16 KB pages); bionic's linker (symbol versions, loading from
an APK, one library for each DT_SONAME); onnxruntime_c_api.h (GetApi gives null for a version that is newer than the
library); docs/npu.md (files of QNN).
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from device_runner import library as ort_library
from device_runner import plugins
from pipeline.compat import contexts as npu_contexts
from pipeline.compat import defects as compat_defects
from pipeline.compat import rules as compat_rules
from pipeline.config import tables as config_tables
from pipeline.core import groups as counting
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import Finding, Severity
from pipeline.features.app import external
from pipeline.features.app.document import PHONE_ABIS, AppDocument, NativeLibrary, finding
from pipeline.features.app.inspection import Inspector
from pipeline.features.app.package import WHOLE, Package, kind_of

VERSION: Final = 1
WIDE_ABIS = ("arm64-v8a", "x86_64")
"""ABIs of phones with 16 KB pages."""
KNOWN_DOMAINS = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.experimental",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
    }
)
"""Domains whose operators ONNX Runtime has itself."""
QNN_PLUGIN, QNN_BACKEND, QNN_SYSTEM, QNN_PREPARE = (
    "libonnxruntime_providers_qnn.so",
    "libQnnHtp.so",
    "libQnnSystem.so",
    "libQnnHtpPrepare.so",
)
UNKNOWN = "an unknown release"
PROVIDER = "libonnxruntime_providers_"
"""What the names of libraries of providers begin with. Every full build holds a dozen of them as strings, and opens one
when an app asks for that provider: only what a library is linked with, or that it is a provider, tells of a need."""
SHARED = f"{PROVIDER}shared.so"
OF_LIBRARIES = frozenset(defect.name for defect in compat_defects.DEFECTS if defect.needs)
"""Defects that `_processors` says of a library, for all models."""


def inspect(path: Path) -> AppDocument:
    """Everything about an app or a package; raises ConfigError for what cannot be read."""
    inspector = Inspector(path)
    inspector.read()
    package = Package(kind_of(path, inspector.names), inspector)
    findings = (*inspector.findings, *(finding for rule in RULES for finding in rule(package)))
    return AppDocument(
        version=VERSION,
        path=str(path),
        kind=package.kind,
        libraries=tuple(inspector.libraries),
        models=tuple(inspector.models),
        served={library.path: runtime.path for library, runtime in package.served if runtime},
        parts=tuple(sorted(inspector.sizes.values(), key=lambda part: -part.packed_bytes)),
        findings=tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.severity is not Severity.ERROR)),
    )


def _pages(package: Package) -> Iterator[Finding]:
    for library in package.libraries:
        if library.system == "android" and library.abi in WIDE_ABIS and 0 < library.page_bytes < ort_library.PAGE_BYTES:
            yield finding(
                "pages",
                Severity.ERROR,
                "this library does not load on phones with 16 KB pages",
                library.path,
                f"its segments are aligned to {library.page_bytes // 1024} KB; Google Play refuses such apps",
                "build it with NDK r28 or later, or with -Wl,-z,max-page-size=16384; or take a newer release of it",
            )


def _in_archive(package: Package) -> Iterator[Finding]:
    """How libraries lie in an APK from which they are loaded without being unpacked."""
    for library in package.libraries:
        if library.system != "android" or package.inspector.extracts.get(library.archive) is not False:
            continue
        pages = ort_library.PAGE_BYTES if library.abi in WIDE_ABIS else 4096
        if library.offset < 0:
            yield finding(
                "packed-library",
                Severity.ERROR,
                "this app cannot be installed: a native library is compressed",
                library.path,
                "its manifest says extractNativeLibs=false, and then libraries are loaded from the APK",
                "store libraries uncompressed, or set useLegacyPackaging = true",
            )
        elif library.offset % pages:
            yield finding(
                "zip-alignment",
                Severity.ERROR,
                f"this library does not begin at a multiple of {pages // 1024} KB",
                library.path,
                f"it begins at byte {library.offset:,} of the APK and is loaded from there",
                "align it: `zipalign -P 16 -f 4 in.apk out.apk`, with Android's build tools 35 or later",
            )


def _same_path(package: Package) -> Iterator[Finding]:
    releases = {library.path: library.release for library in package.libraries if library.kind}
    return package.inspector.places.findings(releases, whole=package.kind in WHOLE)


def _app_store(package: Package) -> Iterator[Finding]:
    return package.inspector.frameworks.findings(whole=package.kind == "IPA")


def _abi_gap(package: Package) -> Iterator[Finding]:
    """Android installs an app for an ABI that it has any library of, and then takes those of this ABI alone."""
    rows_by_abi = {abi: rows for (system, abi), rows in package.scopes.items() if system == "android"}
    having = [abi for abi, rows in rows_by_abi.items() if any(row.kind for row in rows)]
    for abi in sorted(rows_by_abi.keys() - set(having)) if having else ():
        certain = package.kind in WHOLE and abi in PHONE_ABIS
        yield finding(
            "abi-gap",
            Severity.ERROR if certain else Severity.WARNING,
            f"devices that take the libraries for {abi} get no ONNX Runtime",
            rows_by_abi[abi][0].path,
            f"a library for {abi} is there, so that Android installs that ABI, and ONNX Runtime is there for "
            f"{_listed(having)} only",
            f"add ONNX Runtime for {abi}, or leave that ABI out of the app (ndk {{ abiFilters }})",
        )


def _trials(package: Package) -> Iterator[Finding]:
    """Android starts the program that tries models from the folder of the app's ABI."""
    for library in package.libraries:
        folder = library.path.split("/")[-2:-1]
        if library.tries and library.abi not in folder:
            yield finding(
                "trial-program",
                Severity.WARNING,
                "models are tried in the app itself: the program that would try them does not start",
                library.path,
                f"it is for {library.abi}, and lies with the libraries for {'/'.join(folder) or 'no ABI'}",
                "take the library as `ort-mobile release android` wrote it",
            )


def _two_runtimes(package: Package) -> Iterator[Finding]:
    for scope in package.scopes:
        runtimes = package.runtimes(scope)
        names = {runtime.name for runtime in runtimes}
        if len(runtimes) < 2 or (len(names) < 2 and scope[0] == "android"):  # one name: `same-path`
            continue
        users = [
            (library.name, runtime.name) for library, runtime in package.served if runtime and library.scope == scope
        ]
        wins = "; ".join(f"{user} gets that of {runtime}" for user, runtime in users)
        yield finding(
            "two-runtimes",
            Severity.WARNING,
            f"{len(runtimes)} ONNX Runtimes in one app ({' '.join(scope)})",
            ", ".join(runtime.path for runtime in runtimes),
            f"{_listed(f'{runtime.release or UNKNOWN} in {runtime.name}' for runtime in runtimes)}: "
            + (wins or "each library calls the one that it was linked with"),
            "models and sessions of one cannot be used with the other, and both are in memory: ship one of them",
        )


def _other_release(package: Package) -> Iterator[Finding]:
    for library, runtime in package.served:
        if runtime is None:
            continue
        if library.asks and runtime.release and library.asks != runtime.release:
            yield finding(
                "other-release",
                Severity.ERROR,
                f"it does not load: it needs ONNX Runtime {library.asks}",
                library.path,
                f"its symbols have the version VERS_{library.asks}, and {runtime.path} is {runtime.release}",
                f"ship {ort_library.LIBRARY} {library.asks}, or a build of this library for {runtime.release}",
            )
        elif library.least_api > runtime.offered > 0:
            yield finding(
                "null-api",
                Severity.ERROR,
                f"GetApi gives it a null pointer for {library.api} and each down to "
                f"{library.least_api}: it stops with an exception",
                library.path,
                f"{runtime.path} is {runtime.release}, which has versions up to {runtime.offered}",
                f"ship ONNX Runtime 1.{library.least_api} or later",
            )
        elif library.needs_api > runtime.offered > 0:
            yield finding(
                "null-api",
                Severity.ERROR,
                f"GetApi({library.api}) gives it a null pointer: the app crashes",
                library.path,
                f"{runtime.path} is {runtime.release}, which has versions up to {runtime.offered}",
                f"ship ONNX Runtime 1.{library.api} or later",
            )


def _missing_runtime(package: Package) -> Iterator[Finding]:
    for library, runtime in package.served:
        if runtime is None and library.system == "android":
            asked = (
                f" {library.asks}" if library.asks else f" 1.{library.needs_api} or later" if library.needs_api else ""
            )
            whole = package.kind in WHOLE and not library.opens
            yield finding(
                "no-runtime",
                Severity.ERROR if whole else Severity.WARNING,
                f"it needs ONNX Runtime{asked}, which is not in this package",
                library.path,
                f"it {'opens' if library.opens else 'is linked with'} {ort_library.LIBRARY}",
                f"put {ort_library.LIBRARY}{asked} beside it, for {library.abi}",
            )


def _telemetry(package: Package) -> Iterator[Finding]:
    for library in package.libraries:
        if library.telemetry:
            yield finding(
                "telemetry",
                Severity.WARNING,
                "this library can report the app's use to Microsoft",
                library.path,
                "it holds the code of 1DS (events.data.microsoft.com): official builds of ONNX Runtime do from 1.29 on",
                "set ORT_DISABLE_TELEMETRY=1 in the process before it is loaded, or declare it in the stores' forms "
                "(docs/privacy.md)",
            )


def _processors(package: Package) -> Iterator[Finding]:
    """Processors that an ONNX Runtime is known to fail on, by its release, where it has the code that does."""
    for library in package.libraries:
        if library.arm_code is None or library.system != "android" or not library.release:
            continue
        runtime = compat_defects.Runtime(
            release=ort_releases.line_of(library.release),
            kind=config_tables.BuildKind(library.kind),
            abis=(library.abi,),
            system=library.system,
        )
        for defect in compat_defects.library_defects(
            library.release, runtime, {part.extension for part in library.arm_code.extensions}
        ):
            mark = f"any model with products of floats; this is {library.release}"
            yield finding(
                "processors", Severity.WARNING, defect.what.format(mark=mark), library.path, defect.why, defect.remedy
            )


def _models(package: Package) -> Iterator[Finding]:
    """What the libraries of the package say to its models, once for each release and kind of build."""
    builds = counting.grouped(
        ((library.release, library.kind, library.providers, library.system), library)
        for library in package.libraries
        if library.kind
    )
    for (release, kind, providers, system), rows in builds.items():
        if not release:
            continue
        runtime = compat_defects.Runtime(
            release=ort_releases.line_of(release),
            kind=config_tables.BuildKind(kind),
            providers=frozenset(providers),
            system=system,
            abis=tuple(dict.fromkeys(row.abi for row in rows)),
        )
        for model in package.inspector.facts:
            defects = {name: mark for name, mark in model.defects.items() if name not in OF_LIBRARIES}
            check = compat_rules.check_artifact if model.format_version else compat_rules.check_onnx
            for against in check(msgspec.structs.replace(model, defects=defects), runtime):
                yield msgspec.structs.replace(against, code="model")


def _external(package: Package) -> Iterator[Finding]:
    files = external.PackageFiles(package.kind, package.kind in WHOLE, package.inspector.file_bytes)
    return external.findings(package.inspector.models, files)


def _custom_operators(package: Package) -> Iterator[Finding]:
    if any("RegisterCustomOps" in library.entries for library in package.libraries):
        return
    for model in package.inspector.models:
        if unknown := sorted(set(model.domains) - KNOWN_DOMAINS):
            yield finding(
                "custom-operators",
                Severity.WARNING,
                f"no library here has operators of {_listed(unknown)}",
                model.path,
                "no native library exports RegisterCustomOps",
                "ship the library of custom operators (onnxruntime-extensions for ai.onnx.contrib), or register them "
                "in the app's own code",
            )


def _for_npu(library: NativeLibrary) -> bool:
    """Whether it has a provider for the NPU of a chip."""
    return any(map(provider_rules.of_chips, library.providers))


def _qnn(package: Package) -> Iterator[Finding]:
    """QNN needs its backend, and a Stub for the phone's processor with a Skel for its NPU, and for each context's."""
    contexts = [model.path for model in package.inspector.models if model.npu]
    plugins = [library for library in package.libraries if library.name == QNN_PLUGIN or _for_npu(library)]
    if contexts and not plugins and package.kind in WHOLE:
        yield finding(
            "provider-files",
            Severity.ERROR,
            "nothing in it opens the contexts of models for an NPU",
            contexts[0],
            f"{QNN_PLUGIN} is missing, and with it what it runs on",
            "add com.qualcomm.qti:onnxruntime-android-qnn, and the com.qualcomm.qti:qnn-runtime that belongs to it",
        )
    for scope, rows in package.scopes.items():
        provider = next((row for row in rows if row.name == QNN_PLUGIN or _for_npu(row)), None)
        if provider is None or scope != ("android", "arm64-v8a"):
            continue
        yield from _qnn_releases(package, provider)
        names = package.names(scope[1])
        stubs, skels = (
            {match[1] for name in names if (match := re.fullmatch(rf"libQnnHtp(V\d+){end}\.so", name))}
            for end in ("Stub", "Skel")
        )
        lacking = [f"libQnnHtp{version}Skel.so" for version in sorted(stubs - skels)]
        lacking += [f"libQnnHtp{version}Stub.so" for version in sorted(skels - stubs)]
        made_for = {f"V{model.npu}" for model in package.inspector.models if model.npu}
        for version in sorted(made_for - stubs - skels):
            lacking.append(f"libQnnHtp{version}Stub.so and libQnnHtp{version}Skel.so, which contexts in it are for")
        if QNN_BACKEND not in names:
            lacking.append(QNN_BACKEND)
        elif not stubs | skels | made_for:
            lacking.append("libQnnHtpV??Stub.so and libQnnHtpV??Skel.so of the phones' NPUs")
        if QNN_SYSTEM not in names and any(model.context for model in package.inspector.models):
            lacking.append(QNN_SYSTEM)
        if lacking:
            yield finding(
                "provider-files",
                Severity.ERROR if package.kind in WHOLE else Severity.WARNING,
                "QNN does not run: files of it are missing",
                provider.path,
                f"missing: {', '.join(lacking)}",
                "add them from the same release of Qualcomm's SDK (com.qualcomm.qti:qnn-runtime)",
            )
        elif QNN_PREPARE not in names and any(not model.context for model in package.inspector.models):
            yield finding(
                "provider-files",
                Severity.WARNING,
                "QNN runs models with a compiled context only",
                provider.path,
                f"without {QNN_PREPARE} phones compile nothing: other models run on the CPU",
                f"add {QNN_PREPARE} (90 MB), or compile a context for each NPU on a computer",
            )


def _qnn_contexts(package: Package) -> Iterator[Finding]:
    for model in package.inspector.models:
        if model.npu in npu_contexts.FAILING_ARCHS:
            yield finding(
                "qnn-context",
                Severity.WARNING,
                f"contexts for V{model.npu} that a computer compiled may not run",
                model.path,
                f"phones with V{model.npu} are reported to refuse them, and to run those that they compile "
                "themselves; nothing in the file tells which it is",
                "try it on such a phone, and let the app open the model on the CPU where it fails",
            )


def _qnn_releases(package: Package, plugin: NativeLibrary) -> Iterator[Finding]:
    """The plugin beside contexts and ONNX Runtime: each of its releases belongs to one runtime of Qualcomm's."""
    pairs = {release: (qairt, least) for qairt, (release, least) in npu_contexts.PLUGINS.items()}
    qairt, least = pairs.get(plugin.plugin, ("", ""))
    if plugin.plugin in npu_contexts.NO_NPU:
        fitting = next(
            f"{name} with qnn-runtime:{versions[0]}"
            for name, versions in pairs.items()
            if name not in npu_contexts.NO_NPU
        )
        yield finding(
            "qnn-release",
            Severity.ERROR,
            f"plugin {plugin.plugin} finds no NPU in an Android app",
            plugin.path,
            "it lists /dev, which no app may: nothing runs on the NPU, and a session falls back to the CPU",
            f"ship com.qualcomm.qti:onnxruntime-android-qnn:{fitting}, or later ones",
        )
    contexts = [model for model in package.inspector.models if model.qairt]
    newer = [
        model for model in contexts if qairt and ort_releases.numbers_of(model.qairt) > ort_releases.numbers_of(qairt)
    ]
    # What has the options of the newest release that is known may be a later one.
    if newer and plugin.plugin != next(iter(npu_contexts.PLUGIN_OPTIONS)):
        needed = max((model.qairt for model in newer), key=ort_releases.numbers_of)
        fitting, _ = npu_contexts.PLUGINS.get(needed, ("", ""))
        beside = f"com.qualcomm.qti:onnxruntime-android-qnn:{fitting}" if fitting else "that belongs to it"
        yield finding(
            "qnn-release",
            Severity.ERROR,
            "contexts are newer than the NPU's runtime that belongs to the plugin",
            plugin.path,
            f"it is plugin {plugin.plugin}, of QAIRT {qairt}; {newer[0].path} was compiled by {needed}",
            f"ship com.qualcomm.qti:qnn-runtime:{needed} with the plugin {beside}, or compile the contexts by "
            f"onnxruntime-qnn {plugin.plugin}",
        )
    for runtime in package.runtimes(plugin.scope) if least else ():
        if runtime.release and ort_releases.numbers_of(runtime.release) < ort_releases.numbers_of(least):
            yield finding(
                "qnn-release",
                Severity.WARNING,
                "the plugin is published for a later ONNX Runtime",
                plugin.path,
                f"it is plugin {plugin.plugin}, for {least} or later; {runtime.path} is {runtime.release}",
                f"ship ONNX Runtime {least} or later, or the plugin that belongs to "
                f"{ort_releases.line_of(runtime.release)}",
            )


def _for_linux(package: Package) -> Iterator[Finding]:
    """Libraries of a wheel or of a Linux package do not load on phones: Android has another libc."""
    for library in package.libraries:
        if library.system == "linux" and package.kind in (*WHOLE, "AAR"):
            yield finding(
                "other-system",
                Severity.ERROR,
                "this library is for Linux and does not load on Android",
                library.path,
                "it needs libc.so.6, which Android has not",
                "take the library of the same name from the package for Android",
            )


def _plugins(package: Package) -> Iterator[Finding]:
    """Providers in libraries of their own: what ONNX Runtime needs to load them."""
    for library in package.libraries:
        runtimes = package.runtimes(library.scope)
        asked = [SHARED] * ("GetProvider" in library.entries) + [
            name for name in library.needed if name.startswith(PROVIDER)
        ]
        if lacking := sorted(set(asked) - {other.name for other in package.scopes[library.scope]}):
            yield finding(
                "provider-files",
                Severity.ERROR,
                "this library does not load",
                library.path,
                f"{_listed(lacking)} is not beside it",
                "ship what one build of ONNX Runtime made, all of it",
            )
        for runtime in runtimes if "CreateEpFactories" in library.entries else ():
            old = bool(runtime.release) and ort_releases.numbers_of(runtime.release) < plugins.PLUGINS_SINCE
            if old or runtime.kind != config_tables.BuildKind.FULL:
                since = ".".join(map(str, plugins.PLUGINS_SINCE))
                yield finding(
                    "plugin",
                    Severity.ERROR,
                    f"{runtime.path} does not load this plugin",
                    library.path,
                    f"plugins need a full build of {since} or later; it is a {runtime.kind} build of {runtime.release}",
                    f"ship ONNX Runtime {since} or later",
                )


def _java(package: Package) -> Iterator[Finding]:
    return package.inspector.java.findings(package.scopes, package.kind, whole=package.kind in WHOLE)


def _listed(texts: object) -> str:
    return ", ".join(sorted(map(str, texts)))  # type: ignore[call-overload]


RULES: tuple[Callable[[Package], Iterator[Finding]], ...] = (
    _pages, _in_archive, _same_path, _two_runtimes, _other_release, _missing_runtime, _telemetry, _processors, _models,
    _external, _custom_operators, _for_linux, _qnn, _qnn_contexts, _plugins, _java, _app_store, _abi_gap, _trials,
)  # fmt: skip
