"""Settings and answers: what was asked (ep_rules A.3, D.2.7), decisions, partitions, JSON of `ort-mobile partition`."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from device_runner import providers as runner_providers
from device_runner import spec as run_spec
from device_runner.problem import Problem
from pipeline.core import abis as core_abis
from pipeline.core import errors as core_errors
from pipeline.core import provider as core_provider
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError

SUFFIXES = (".onnx", ".ort")
"""Files that can be judged."""

NO_SIZES: Mapping[str, int] = {}


class Optimize(StrEnum):
    """What is judged: the file as it stands, or what ONNX Runtime's basic level makes of it."""

    NONE = "none"
    BASIC = "basic"


NNAPI_FLAGS = tuple(flag.value for flag in run_spec.NnapiFlag)
"""Flags of NNAPI; only USE_NCHW changes claims (ep_rules D.1)."""

IGNORED_BELOW = {
    "USE_FP16": (runner_providers.NNAPI_RELAXED_API_LEVEL, "it computes in single precision"),
    "CPU_DISABLED": (runner_providers.NNAPI_DEVICES_API_LEVEL, "the system decides"),
    "CPU_ONLY": (runner_providers.NNAPI_DEVICES_API_LEVEL, "the system decides"),
}
"""Flags of NNAPI with the API level from which they have an effect, and what happens below it."""

NNAPI_ADVISED_API_LEVEL = 28
"""From which API level on ONNX Runtime's documentation of the NNAPI provider recommends it."""


OLDEST = {"api_level": runner_providers.NNAPI_API_LEVEL, "coreml_version": 5}
"""The oldest systems that the providers of current releases run on, by the settings that name them (ep_rules E.1)."""


class WebGpuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the WebGPU provider that its claims depend on (webgpu.md W.1.5), with its own defaults.

    `int64` is enableInt64, which brings kernels for i64; graph capture turns it on, too. `cpu_nodes` are the names of
    forceCpuNodeNames. `plugin` is for the library of onnxruntime-ep-webgpu, not WebGPU built in as for phones.
    """

    layout: str = "NHWC"
    int64: bool = False
    graph_capture: bool = False
    cpu_nodes: tuple[str, ...] = ()
    plugin: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the model that a claim depends on. Options that another provider reads are ignored.

    `chip` is the name of one of `CHIPS`, for a provider whose claims depend on it.

    `provider` is a name of `PROVIDER_RULES`; ConfigError for another.
    `ort_release` is (major, minor) of the ONNX Runtime on the phone, `abi` that of its library by Android's name, and
    `android` whether it is built for Android, whose XNNPACK has no half precision on x86 (android_library.md).
    `api_level` is NNAPI's feature level (27 to 31 as Android's API levels). `coreml_version` is 5 for iOS 15 to 8 for
    iOS 18. `coreml6_types` says whether the library was built by Apple's tools, which lets MLProgram take f16 and i64
    from release 1.24 on (ep_rules E.2).
    """

    provider: str
    ort_release: tuple[int, int] = ort_releases.DEFAULT_RELEASE
    abi: str = core_abis.X86_64
    android: bool = False
    api_level: int = 31
    coreml_version: int = 7
    require_static_input_shapes: bool = False
    enable_on_subgraphs: bool = False
    coreml6_types: bool = True
    nnapi_flags: tuple[str, ...] = ()
    webgpu: WebGpuOptions = WebGpuOptions()
    chip: str = ""
    stop_ops: tuple[str, ...] = ("NonMaxSuppression",)

    def __post_init__(self) -> None:
        if self.provider not in provider_rules.PROVIDER_RULES:
            raise ConfigError(
                f"no rules for the execution provider {self.provider!r}",
                remedy=f"use one of {', '.join(provider_rules.PROVIDER_RULES)}",
            )
        if self.rules.by_chip and not self.chip:
            raise ConfigError(
                f"what {self.rules.title} takes depends on the chip, and none is named",
                remedy="name one with --chip, such as SM8650; several with commas between",
            )
        if self.ort_release < ort_releases.OLDEST_RULES:
            raise ConfigError(
                f"no rules for ONNX Runtime {ort_releases.Release(*self.ort_release)}",
                why=f"the tables begin with release {ort_releases.OLDEST_RULES}",
                remedy=f"give --ort-release {ort_releases.OLDEST_RULES} or later",
            )
        for flag in self.nnapi_flags:
            if flag not in NNAPI_FLAGS:
                raise ConfigError(f"unknown NNAPI flag '{flag}'", remedy=f"use one of {', '.join(NNAPI_FLAGS)}")
        if {"CPU_DISABLED", "CPU_ONLY"} <= set(self.nnapi_flags):
            raise ConfigError("NNAPI flags CPU_DISABLED and CPU_ONLY exclude one another", remedy="leave one out")

    @property
    def rules(self) -> core_provider.ProviderRules:
        """The registry's row of the provider."""
        return provider_rules.PROVIDER_RULES[self.provider]

    @property
    def nchw(self) -> bool:
        """Whether NNAPI keeps layouts unchanged (flag USE_NCHW)."""
        return "USE_NCHW" in self.nnapi_flags

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the settings has no effect, or is against the advice of ONNX Runtime's NNAPI guide."""
        if not self.rules.run.nnapi:
            return ()
        texts = [
            f"{flag} is ignored below API level {level}, asked for is {self.api_level}: {instead}"
            for flag, (level, instead) in IGNORED_BELOW.items()
            if flag in self.nnapi_flags and self.api_level < level
        ]
        if self.nchw and self.api_level < runner_providers.NNAPI_DEVICES_API_LEVEL:
            texts.append(
                f"USE_NCHW needs API level {runner_providers.NNAPI_DEVICES_API_LEVEL}, asked for is "
                f"{self.api_level}: below, NNAPI "
                "takes no node whose layout matters (Conv, pools); leave it out"
            )
        if runner_providers.NNAPI_API_LEVEL <= self.api_level < NNAPI_ADVISED_API_LEVEL:
            texts.append(
                f"ONNX Runtime recommends NNAPI from API level {NNAPI_ADVISED_API_LEVEL} (Android 9) on, asked for is "
                f"{self.api_level}: leave older phones to the CPU, or measure on one"
            )
        return tuple(texts)

    @property
    def mlprogram(self) -> bool:
        """Whether CoreML's model format is MLProgram."""
        return self.rules.options.get("ModelFormat") == "MLProgram"

    @property
    def system(self) -> str:
        """The version of the phone's system that claims depend on, in words; "" where they depend on none."""
        if self.rules.by_chip:
            return f"{self.chip} ({runner_providers.CHIPS[self.chip].title})"
        if self.rules.by_api_level:
            return f"API level {self.api_level}"
        ios = f" (iOS {self.coreml_version + 10})" if self.coreml_version in range(3, 9) else ""
        return f"Core ML {self.coreml_version}{ios}" if self.rules.by_coreml_version else ""

    @property
    def nhwc(self) -> bool:
        """Whether the provider has layouts transformed to channels last when a session is made (ep_rules A.3)."""
        run = self.rules.run
        if run.layout_key:
            return self.webgpu.layout == "NHWC"
        return bool(run.nhwc) and not (run.has_flags and self.nchw)

    @property
    def in_nchw(self) -> "Settings":
        """The same with WebGPU's preferredLayout=NCHW."""
        return msgspec.structs.replace(self, webgpu=msgspec.structs.replace(self.webgpu, layout="NCHW"))


class Refusal(Problem, frozen=True):
    """Why a node is not claimed: a stable code, the reason in the words of a model's author, and what fixes it.

    `fatal` marks what ends the session or the process instead of refusing the node.
    """

    code: str
    what: str
    remedy: str = ""
    fatal: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one node. `partition` is the position of its group in `partitions`, None when refused."""

    name: str
    op_type: str
    domain: str
    since_version: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...]
    claimed: bool
    partition: int | None = None
    code: str | None = None
    reason: str | None = None
    remedy: str | None = None


MOST_COPIES = 4
"""Copies of an inference up to which a provider that is judged by them may pay off: what one partition and two cost at
most where one value crosses each border. ONNX Runtime's mobile usability checker has no word for WebGPU; by these its
guidance for partitions holds for copies."""


class LoadForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What making a session on the phone will give: compiled nodes, or why it fails.

    `partitions` counts what the last round compiles, `rounds` what each does: a provider is asked again when functions
    were inlined, and the nodes of earlier rounds stay compiled. `estimate` marks answers that had to predict the layout
    transformation of NHWC providers. `code` is that of the refusal behind `error`: "build" (the model of a partition
    cannot be built), "level" (NNAPI has what it is built of at a later API level), "layout" (the transformation undoes
    a claim, or ONNX Runtime crashes on that of the rest), or that of what ends the session while the provider is asked.
    `at_run`: a session is made, and then fails, crashes or computes something else.
    """

    partitions: int = 0
    rounds: tuple[int, ...] = ()
    code: str | None = None
    error: str | None = None
    remedy: str | None = None
    estimate: bool = False
    at_run: bool = False

    @staticmethod
    def failing(problem: Refusal, *, estimate: bool = False) -> "LoadForecast":
        """No session is made, for this reason."""
        return LoadForecast(code=problem.code, error=problem.what, remedy=problem.remedy or None, estimate=estimate)

    @property
    def what(self) -> str:
        """What its error is about, in words."""
        return "is refused at a run" if self.at_run else "does not load on the phone"

    @property
    def why_not(self) -> str:
        """Why the model does not run with the provider, in one line; "" where it does."""
        if self.at_run or not self.error:
            return self.error or ""
        return f"no session can be made on the phone: {self.error}"

    @property
    def compiled(self) -> int:
        """Compiled nodes of the session, whichever round they are of."""
        return sum(self.rounds) or self.partitions


class BodyClaim(msgspec.Struct, frozen=True, kw_only=True, rename={"owner": "in"}):
    """Claims inside a body of If, Loop or Scan; `owner` is the first output of the node that owns the body."""

    owner: str
    partitions: tuple[tuple[str, ...], ...]


NAMES_AND_SHAPES = re.compile(r"'[^']*'|\[[^\]]*\]")


def same_reason(reason: str) -> str:
    """What is equal in reasons that differ in names and shapes alone."""
    return NAMES_AND_SHAPES.sub("", reason)


def percent_of(claimed: int, nodes: int) -> int:
    """The claimed share of the nodes in whole per cent, rounded down: 100 is all of them."""
    return 100 * claimed // nodes if nodes else 0


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A refused node that separates partitions or causes copies, and what claiming it would give."""

    output: str
    op_type: str
    reason: str
    remedy: str
    partitions: int
    claimed: int
    copies: int | None = None


class OperatorGain(msgspec.Struct, frozen=True, kw_only=True):
    """What supporting all `nodes` refused nodes of an operator would give. XNNPACK counts no partitions."""

    op_type: str
    nodes: int
    partitions: int
    claimed: int
    copies: int | None = None


class SizedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the same model would give with sizes for its dynamic dimensions, by `--dimension`'s names."""

    sizes: dict[str, int]
    nodes: int
    claimed: int
    partitions: int
    copies: int | None = None
    copies_estimated: bool = False
    load: LoadForecast | None = None


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What a chip's simulator computes of a model, compared with the original on the CPU; nothing about time.

    `passed` is None where these inputs cannot show it. `error` is the largest difference of the `output` that is worst,
    up to `limit` passes. `first` is the first output of the first node whose numbers depart, where one was found. Of a
    form of another model, `sqnr_db` is the signal to noise against that model's outputs, `cpu_sqnr_db` the CPU's;
    `noisy` where much of it is lost, and enough is left.
    """

    passed: bool | None
    output: str = ""
    error: float | None = None
    limit: float | None = None
    reason: str = ""
    first: str = ""
    op_type: str = ""
    remedy: str = ""
    data: str = ""
    sqnr_db: float | None = None
    cpu_sqnr_db: float | None = None
    noisy: bool = False


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One model's answer, as it stands in the JSON. With `error` set, nothing else is known.

    `chip` is the phone's and `compiler` what was asked about it, where claims depend on a chip. `copies` are those that
    one inference makes between the GPU's memory and the CPU's, for a provider whose borders are counted in them: each
    of a body once, and about as many where they are `copies_estimated`. For others with partitions `given_bytes` go
    into these and `taken_bytes` come out, None where sizes are not known.

    `nodes` and `claimed` count the model's own nodes of the main graph, and all else here is of these; `ends` are the
    nodes, by their first outputs, that make tensors of an app's data and back, of which partitions have `claimed_ends`.
    `partitions` lists each group's nodes by their first outputs. `rules_release` is the release whose rules decided for
    `ort_release`, which has none of its own when it is later; "" where a library's own claims are the answer. `dynamic`
    names the dimensions of inputs that have no size where the model's own nodes meet them, `fixed` is what likely sizes
    would give where that is more. `shapes_from` is the release whose shape inference was used.
    """

    path: str
    ep: str
    chip: str = ""
    compiler: str = ""
    ort_release: str
    rules_release: str = ""
    nodes: int = 0
    claimed: int = 0
    ends: tuple[str, ...] = ()
    claimed_ends: int = 0
    partitions: tuple[tuple[str, ...], ...] = ()
    copies: int | None = None
    copies_estimated: bool = False
    given_bytes: int | None = None
    taken_bytes: int | None = None
    subgraphs: tuple[BodyClaim, ...] = ()
    decisions: tuple[Decision, ...] = ()
    load: LoadForecast | None = None
    cuts: tuple[Cut, ...] = ()
    operators: tuple[OperatorGain, ...] = ()
    shapes_from: str = ""
    dynamic: tuple[str, ...] = ()
    fixed: SizedAnswer | None = None
    simulated: Simulation | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None
    remedy: str | None = None

    @property
    def borders(self) -> int:
        """What the provider's borders cost: copies where it has these, else partitions."""
        return len(self.partitions) if self.copies is None else self.copies

    @property
    def ends_text(self) -> str:
        """What is said of the nodes that are not counted, where there are some."""
        taken = f", but for {self.claimed_ends} that the provider takes" if self.claimed_ends else ""
        what = f"the ends ({len(self.ends)} nodes, which make tensors of the app's data and back) run on the CPU"
        return f"{what}{taken}, and are not counted"

    @property
    def asked_text(self) -> str:
        """Who was asked: the provider, and the chip with its compiler where there is one."""
        if not self.chip:
            return self.ep
        compiler = f", {self.compiler}" if self.compiler else ""
        return f"{self.ep} on {self.chip} ({runner_providers.CHIPS[self.chip].title}){compiler}"

    @property
    def refused_operators(self) -> dict[str, int]:
        """How many nodes of each operator are not claimed, by its name, with its domain where that is not ONNX's."""
        names = (
            f"{decision.domain}:{decision.op_type}" if decision.domain else decision.op_type
            for decision in self.decisions
            if not decision.claimed
        )
        return dict(Counter(names))

    @property
    def release_text(self) -> str:
        """The release, and whose rules decided where it has none of its own."""
        return ort_releases.by_rules(ort_releases.line_of(self.ort_release)) if self.rules_release else self.ort_release


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side's answer for a node. `partition` is None for a refused node, and where groups are not reported."""

    claimed: bool
    partition: int | None = None
    reason: str = ""


class NodeDiff(msgspec.Struct, frozen=True, kw_only=True):
    """One node by its first output. A side is None where it has no answer: no rules of ours, a node without a name."""

    output: str
    op_type: str
    ours: Side | None
    library: Side | None
    different: bool = False


class ClaimDiff(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `same` is None where nothing could be compared; with `error` set the library gave no answer.

    A model without an answer of ours is not `asked` about: what is wrong with it is known already.

    A library before 1.24 reports the number of its partitions, not which nodes are together.
    """

    path: str
    asked: bool = True
    same: bool | None = None
    our_partitions: int | None = None
    library_partitions: int = 0
    nodes: tuple[NodeDiff, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    crashed: bool = False


class LibraryReference(msgspec.Struct, frozen=True, kw_only=True):
    """The library of an ABI that was asked, and its answers. With `rules` False none of ours are for its release."""

    library: str
    release: str
    sha256: str
    abi: str
    rules: bool
    different: int
    models: tuple[ClaimDiff, ...]


class PartitionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of `ort-mobile partition` for one provider; `reference` is there with --reference."""

    models: tuple[ModelAnswer, ...]
    version: int = 1
    reference: LibraryReference | msgspec.UnsetType = msgspec.UNSET

    @property
    def complete(self) -> tuple[ModelAnswer, ...]:
        """Answers that are whole: a library before 1.24 does not report how nodes are grouped."""
        if not self.reference or self.reference.rules:
            return self.models
        pairs = zip(self.models, self.reference.models, strict=True)
        return tuple(
            answer for answer, diff in pairs if answer.error or len(answer.partitions) == diff.library_partitions
        )

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """4 when a library's claims differ, 1 when it gave no answer for a model."""
        if not self.reference:
            return core_errors.ExitCode.DONE
        if self.reference.different:
            return core_errors.ExitCode.CHECK_FAILED
        return (
            core_errors.ExitCode.SOME_FAILED
            if any(model.error for model in self.reference.models)
            else core_errors.ExitCode.DONE
        )


MAX_VERSION = (((0, 0), 21), ((1, 23), 23), ((1, 24), 25), ((1, 28), 27))
"""Highest since_version that the op builders of NNAPI and CoreML take, with the release that brought each."""

LAYOUT_OPSETS = (((0, 0), 22), ((1, 23), 23), ((1, 24), 25), ((1, 25), 26), ((1, 28), 27))
"""Highest opset of the default domain that the layout transformation knows, by release; the lowest is 7."""

LOWEST_LAYOUT_OPSET = 7


def layout_window(opset: int | None, release: tuple[int, int]) -> str | None:
    """Why the layout transformation of a release does not know a model's opset; None when it does."""
    highest = ort_releases.at_release(LAYOUT_OPSETS, release)
    if opset is not None and LOWEST_LAYOUT_OPSET <= opset <= highest:
        return None
    window = f"{LOWEST_LAYOUT_OPSET} to {highest}"
    return f"opset {opset} is outside {window}, which the layout transformation of this release knows"


DYNAMIC_CODES = frozenset({"shape", "dynamic"})
"""Codes of refusals that sizes for dynamic dimensions end."""


def lost_to_dimensions(provider: str, dynamic: Sequence[str], codes: Collection[str | None]) -> str:
    """Why a provider claims nothing, and the remedy; "" where dynamic dimensions do not cost most of the nodes."""
    if not dynamic or 2 * sum(code in DYNAMIC_CODES for code in codes) < max(1, len(codes)):
        return ""
    names = ", ".join(dynamic)
    return (
        f"{provider} takes no node, because dimensions of the inputs have no size: {names}; give those that your app "
        f"uses with --dimension {dynamic[0]}=N (`dimensions` in a config)"
    )


def parse_options(pairs: Iterable[str], patterns: Mapping[str, str], title: str) -> dict[str, str]:
    """KEY=VALUE pairs of a provider; ConfigError for what it would refuse itself, or ignore."""
    options = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in patterns:
            close = difflib.get_close_matches(key, patterns, n=1)
            raise ConfigError(
                f"the {title} provider has no option '{key}'",
                remedy=f"did you mean {close[0]}?" if close else f"it has {', '.join(patterns)}",
            )
        if not re.fullmatch(patterns[key], value):
            raise ConfigError(
                f"{key} cannot be '{value}'", remedy=f"use {runner_providers.accepted_values(patterns[key])}"
            )
        options[key] = value
    return options


def webgpu_settings(options: Mapping[str, str]) -> WebGpuOptions:
    """What claims depend on of the options of a run with WebGPU."""
    capture = options.get("enableGraphCapture") == "1"
    return WebGpuOptions(
        layout=options.get("preferredLayout", "NHWC"),
        int64=capture or options.get("enableInt64") == "1",
        graph_capture=capture,
        cpu_nodes=tuple(filter(None, options.get("forceCpuNodeNames", "").split("\n"))),
    )


NO_OPTIONS: Mapping[str, Iterable[str]] = {}


def make_settings(
    provider: str,
    *,
    release: str = "",
    abi: str = "",
    android: bool = False,
    api_level: int | None = None,
    coreml_version: int | None = None,
    options: Mapping[str, Iterable[str]] = NO_OPTIONS,
    nnapi_flags: Iterable[str] = (),
    stop_ops: str | None = None,
    plugin: bool = False,
    chip: str = "",
) -> Settings:
    """Settings from words; what is left out has ONNX Runtime's own default, the release is the installed one.

    `options` are KEY=VALUE pairs by the provider of a run: "coreml", "webgpu". `stop_ops` is the session entry
    `ep.nnapi.partitioning_stop_ops`: names with commas between, none when empty (B.5).
    """
    given: dict[str, Mapping[str, str]] = {}
    for name, pairs in options.items():
        run = runner_providers.provider_named(name)
        given[name] = parse_options(pairs, run.values, run.title) if run.values else {}
    coreml, webgpu = given.get("coreml", {}), webgpu_settings(given.get("webgpu", {}))
    defaults = Settings(provider=provider, chip=chip)
    asked, expected = coreml.get("ModelFormat"), defaults.rules.options.get("ModelFormat")
    if asked is not None and expected is not None and asked != expected:
        raise ConfigError(f"ModelFormat={asked} contradicts --ep {provider}", remedy="leave ModelFormat out")
    return Settings(
        provider=provider,
        ort_release=ort_releases.line_of(release) if release else ort_releases.installed_release(),
        abi=core_abis.read_abi(abi, "--abi") if abi else defaults.abi,
        android=android,
        api_level=defaults.api_level if api_level is None else api_level,
        coreml_version=defaults.coreml_version if coreml_version is None else coreml_version,
        require_static_input_shapes=coreml.get("RequireStaticInputShapes") == "1",
        enable_on_subgraphs=coreml.get("EnableOnSubgraphs") == "1",
        nnapi_flags=tuple(nnapi_flags),
        webgpu=msgspec.structs.replace(webgpu, plugin=plugin),
        chip=chip,
        stop_ops=defaults.stop_ops if stop_ops is None else tuple(name for name in stop_ops.split(",") if name),
    )
