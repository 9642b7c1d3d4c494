"""A model that is judged: opened, its graphs, with sizes for its dynamic dimensions, written for another process."""

import hashlib
import os
import tempfile
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner import providers as runner_providers
from device_runner import untrusted_files
from device_runner.spec import RunOptions
from pipeline.check import many as check_many
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError, Finding, ModelError, PipelineError
from pipeline.core.releases import Release
from pipeline.dataset import Dataset, usual_sizes
from pipeline.dataset import guess as data_guess
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model, signature
from pipeline.model import sources as model_sources
from pipeline.model import types as onnx_types
from pipeline.model.onnx_model import LeanModel
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import NO_SIZES, Optimize, Settings
from pipeline.partition.file_graph import view_of_file
from pipeline.partition.graph import Graph, bodies, body_types, tensor_reader, view
from pipeline.partition.shown import before_partitioning, save_basic
from pipeline.partition.types import infer, slim_copy
from pipeline.partition.undone import undone_for_provider
from pipeline.partition.units import unique_dq

if TYPE_CHECKING:
    from onnx import ModelProto

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it are made by tempfile, with names of their own
IN_MEMORY_BYTES = 16 << 20


@contextmanager
def scratch_folder(source: SourceModel) -> Iterator[Path]:
    """A folder for what judging a model writes. Small ones are in memory: a disk takes longer than judging them.

    Names that are no text, which protobuf reads only when they are asked for, become a ModelError here.
    """
    small = Path(source.path).is_file() and Path(source.path).stat().st_size <= IN_MEMORY_BYTES
    directory = IN_MEMORY if small and os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ort-mobile-", dir=directory) as folder:
        try:
            yield Path(folder)
        except UnicodeDecodeError as error:
            raise ModelError(
                "a name in the model is not UTF-8",
                where=source.name,
                why=str(error),
                remedy="export the model again with names that are text",
            ) from error


@dataclass(frozen=True, slots=True)
class View:
    """What a provider is shown, the graph of the file that ships, at level none the same, and its model.

    An ORT format file has no model here.
    """

    shown: Graph
    ships: Graph
    model: "ModelProto | None"


class Views:
    """The graphs of one model that providers judge: graphs are made once, however many providers are asked.

    `subject` is the path of an ORT format file, or a loaded ONNX model; `notes` are warnings about it.
    """

    def __init__(
        self,
        source: SourceModel,
        subject: Path | onnx_model.LoadedModel,
        optimize: Optimize,
        folder: Path,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.source, self.subject, self.optimize, self.folder, self.notes = source, subject, optimize, folder, notes
        self.warnings = list(notes)
        self._saved: onnx_model.LoadedModel | None = None
        self._file: Graph | None = None
        self._graphs: dict[int, tuple[ModelProto, Graph]] = {}
        self._shown: dict[int, tuple[ModelProto, ModelProto | None]] = {}

    @property
    def loaded(self) -> onnx_model.LoadedModel | None:
        """The model, of an ONNX file."""
        return None if isinstance(self.subject, Path) else self.subject

    @cached_property
    def nodes(self) -> int:
        """How many nodes the model has, those of bodies among them."""
        if self.loaded:
            return node_count(self.loaded.proto)
        graph = self._of_file()
        return len(graph.nodes) + sum(len(body.nodes) for _, body in bodies(graph))

    def dynamic(self, hidden: Container[str] = ()) -> tuple[str, ...]:
        """The shortest names of the inputs' dimensions that have no size, but of `hidden` inputs; none of an ORT
        format file's.
        """
        return dynamic_names(self.loaded.proto, hidden) if self.loaded else ()

    @cached_property
    def computed(self) -> list[str]:
        """The values that loading the model computes of constants."""
        return guards.computed_constants(self.loaded.proto.graph) if self.loaded else []

    @property
    def shipped_model(self) -> onnx_model.LoadedModel | None:
        """The model that ships: behind level basic where that is judged."""
        return self._saved if self.optimize is Optimize.BASIC else self.loaded

    def of(self, settings: Settings) -> "View":
        """What a provider sees. An ORT format file is shown as it is: nothing in it is inlined any more."""
        subject = self.subject
        if isinstance(subject, Path):
            graph = self._of_file()
            return View(graph, graph, None)
        before = self.before(settings)
        if self.optimize is Optimize.NONE:
            graph = self._graph(before, subject)
            return View(graph, graph, before)
        saved = self.basic()
        ships = self._graph(saved.proto, saved)
        if id(before) not in self._shown:  # every provider without functions of its own has the same model before
            self._shown[id(before)] = before, undone_for_provider(saved.proto, before)
        shown = self._shown[id(before)][1]
        return View(ships if shown is None else self._graph(shown, saved), ships, saved.proto)

    def _of_file(self) -> Graph:
        if self._file is None:
            assert isinstance(self.subject, Path), "asked of an ORT format file alone"  # noqa: S101 - an invariant
            self._file = unique_dq(view_of_file(self.subject))
        return self._file

    def before(self, settings: Settings) -> "ModelProto":
        """The ONNX model as it is when the provider is asked about it at level none."""
        loaded = self.loaded
        assert loaded, "nothing of an ORT format file is inlined"  # noqa: S101 - an invariant
        return before_partitioning(loaded.proto, lambda model: self._view(model, loaded), settings)

    def resized(self, sizes: Mapping[str, int], folder: Path, optimize: Optimize) -> "Views":
        """The same of the model with sizes, in another folder; of an ONNX model alone."""
        assert self.loaded, "only a loaded model has sizes to try"  # noqa: S101 - an invariant
        subject = resized(self.loaded, sizes, folder)
        return Views(self.source, subject, optimize, folder, self.notes)

    def basic(self) -> onnx_model.LoadedModel:
        """The model at level basic, made once; ModelError when onnxruntime makes no session of it on the CPU."""
        if self._saved is None:
            assert self.loaded, "an ORT format file is never optimized"  # noqa: S101 - an invariant
            self._saved = save_basic(self.loaded, self.folder)
        return self._saved

    def lacking(self, settings: Settings, provider: str) -> tuple[Finding, ...]:
        """What the release lacks of the model that ships, asked of the CPU or of a provider first."""
        from pipeline.compat import defects as compat_defects
        from pipeline.compat import rules as compat_rules
        from pipeline.compat import written as compat_written

        release, name = settings.ort_release, self.source.name
        if isinstance(self.subject, Path):
            runtime = compat_defects.Runtime(release=Release(*release))
            use = RunOptions(
                provider=runner_providers.CPU if runner_providers.provider_named(provider).gpu else provider
            )  # a GPU's is said elsewhere
            return compat_rules.findings_for(compat_rules.read_artifacts({name: self.subject}), name, runtime, use)
        model = self.shipped_model
        assert model, "a loaded model ships"  # noqa: S101 - an invariant
        return compat_written.refusals(model.proto, release, name, self._graph(model.proto, model).values, provider)

    def later(self, model: "ModelProto") -> Graph:
        """The graph of the model that ships, after functions in it were inlined."""
        assert self.shipped_model, "an ORT format file is never inlined"  # noqa: S101 - an invariant
        return self._view(model, self.shipped_model)

    def _view(self, model: "ModelProto", weights: onnx_model.LoadedModel) -> Graph:
        outside = self.loaded.outside if self.loaded else None
        read = tensor_reader(weights)
        saved = partial(body_types, model, self.folder, self.warnings.append)
        return view(model, read=read, saved=saved, outside=outside)

    def _graph(self, model: "ModelProto", weights: onnx_model.LoadedModel) -> Graph:
        """The graph of a model of which several providers are asked."""
        if id(model) not in self._graphs:
            self._graphs[id(model)] = model, unique_dq(self._view(model, weights))
        return self._graphs[id(model)][1]


def open_views(source: SourceModel, optimize: Optimize, folder: Path, sizes: Mapping[str, int]) -> Views:
    """Load a model for judging, with sizes for its dynamic dimensions; errors as `open_subject`.

    At level basic it is the graph that `convert` makes: initializers among the graph's inputs are constants.
    """
    subject = open_subject(source, folder, sizes)
    optional = () if isinstance(subject, Path) else onnx_model.optional_inputs(subject.proto)
    if not optional or isinstance(subject, Path):
        return Views(source, subject, optimize, folder)
    if optimize is Optimize.NONE:
        return Views(source, subject, optimize, folder, (AS_IT_STANDS.format(onnx_model.named_few(optional)),))
    converted = rewritten(subject, onnx_model.prepare_model(subject, {}).proto, folder, "converted.onnx")
    return Views(source, converted, optimize, folder, (AS_CONVERTED.format(onnx_model.named_few(optional)),))


AS_IT_STANDS = (
    "optional inputs {}: providers take them for no constants; `convert` makes constants of them, and --optimize basic "
    "judges that file"
)
AS_CONVERTED = "optional inputs {}: judged as constants, which `convert` makes of them"


def write_model(model: LeanModel, target: Path, *, named: bool = False, external: bool = True) -> None:
    """Write a model for another process, its weights in files next to it (`TARGET.0`…): links, where these can be.

    `named` names nodes after their outputs. With `external` False weights come into the message, but for those that the
    model itself keeps outside. ModelError for a message that is too large.
    """
    from google.protobuf.message import EncodeError

    proto = onnx_edit.copied(model.proto)
    if named:
        name_nodes(proto)
    files: dict[Path, str] = {}
    for tensor in proto.graph.initializer:
        span = model.weights.get(tensor.name)
        if span and (external or tensor.name in model.outside):
            name = files.setdefault(span.file, f"{target.name}.{len(files)}")
            del tensor.external_data[:]
            for key, value in {"location": name, "offset": span.offset, "length": span.length}.items():
                tensor.external_data.add(key=key, value=str(value))
        elif span:
            onnx_model.read_in(tensor, span)
    try:
        content: bytes = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(
            "the model is too large to be written",
            where=str(target),
            why=f"it is no single message: {error}",
            remedy="keep its large weights in an external data file",
        ) from error
    with storage.storage_errors(target):
        target.write_bytes(content)
        for file, name in files.items():
            storage.share_file(file, target.with_name(name))


def remove_model(target: Path) -> None:
    """Remove what `write_model` wrote."""
    for path in _written(target):
        path.unlink()


def written_bytes(target: Path) -> int:
    """The size of what `write_model` wrote; 0 where it wrote nothing."""
    return sum(path.stat().st_size for path in _written(target) if path.is_file())


def _written(target: Path) -> list[Path]:
    return [target, *target.parent.glob(f"{target.name}.*")]


def name_nodes(proto: "ModelProto") -> None:
    """Name every node of the main graph after its first output that has a name: libraries report names only.

    The name that it had becomes its documentation: forceCpuNodeNames is about that.
    """
    for node in proto.graph.node:
        node.doc_string = node.name
        node.name = next((output for output in node.output if output), node.name)


ORT_IDENTIFIER = b"ORTM"


def open_subject(
    source: SourceModel, work_folder: Path, sizes: Mapping[str, int] = NO_SIZES
) -> Path | onnx_model.LoadedModel:
    """The path of an ORT format file, or an ONNX model without its weights, with `sizes` for its dynamic dimensions.

    ModelError when it is no model, ConfigError for sizes of dimensions that it does not have.
    """
    if source.member:
        head = model_sources.Spool(source, work_folder).head(8)
    else:
        try:
            with untrusted_files.open_regular(Path(source.path)) as opened:
                head = opened.read(8)
        except OSError as error:
            raise ModelError(
                "the model cannot be read", where=source.name, why=str(error), remedy="check the path"
            ) from error
    if head[4:8] == ORT_IDENTIFIER:
        if sizes:
            raise ConfigError(
                "dimensions of an ORT format file cannot be fixed",
                where=source.name,
                remedy="name the ONNX model that it was made from",
            )
        return model_sources.Spool(source, work_folder).fetch_model() if source.member else Path(source.path)
    loaded = onnx_model.load_model(source, work_folder)
    guards.check_structure(loaded.proto, source.name, guards.MAX_ONNX_BODY_DEPTH)
    return resized(loaded, sizes, work_folder) if sizes else loaded


def resized(loaded: onnx_model.LoadedModel, sizes: Mapping[str, int], work_folder: Path) -> onnx_model.LoadedModel:
    """The model with sizes for its dynamic dimensions, as a file in `work_folder`: sessions read files."""
    proto = onnx_edit.copied(loaded.proto)
    onnx_model.fix_dimensions(proto, sizes, loaded.source.name)
    return rewritten(loaded, proto, work_folder, "resized.onnx")


def rewritten(
    loaded: onnx_model.LoadedModel, proto: "ModelProto", work_folder: Path, name: str
) -> onnx_model.LoadedModel:
    """A model with another message, as a file in `work_folder`: sessions read files."""
    target = work_folder / name
    write_model(replace(loaded, proto=proto), target)
    again = onnx_model.load_model(SourceModel(path=str(target)), work_folder)
    return replace(again, source=loaded.source, outside=loaded.outside)


def check_computed(computed: Collection[str], shown: Graph, where: str) -> None:
    """ModelError for constants that no phone could compute when it loads the model; `shown` has their shapes."""

    def size_of(name: str) -> int:
        value = shown.value(name)
        return guards.shaped_bytes(
            onnx_types.CODES.get(value.dtype or "", 0), [dim or 0 for dim in value.shape or (0,)]
        )

    guards.check_constants(computed, size_of, where)


MOST_NODES = 20_000
"""Of a model of which sessions are made only to judge it. ONNX Runtime makes one of 100,000 nodes in 5 to 60 s of
processor time: MatMulAddFusion and ReshapeFusion, kernels and the planned memory grow faster than the nodes.
"""


def node_count(model: "ModelProto") -> int:
    """How many nodes the graph and its bodies have."""
    return sum(len(body.node) for body in onnx_edit.subgraphs(model.graph))


MOST_TRIALS = 12
"""Loading a model needs a tenth of a second, and the first sizes are nearly always accepted."""


def dynamic_names(model: "ModelProto", hidden: Container[str] = ()) -> tuple[str, ...]:
    """The shortest names of the inputs' dimensions that have no size, but of `hidden` inputs."""
    given = [info for info in signature.own_inputs(model) if info.name not in hidden]
    return tuple(signature.names_of(signature.open_axes(given)))


def unnamed(model: "ModelProto", sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The dynamic dimensions for which no size is given."""
    takes = signature.own_inputs(model)
    sizes = signature.resolve_dimensions(takes, sizes, "the model")
    return tuple(
        name
        for name, axes in signature.names_of(signature.open_axes(takes)).items()
        if any(a.key not in sizes for a in axes)
    )


def likely_sizes(loaded: onnx_model.LoadedModel, given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes for all dynamic dimensions that ONNX Runtime's shape inference accepts, the likeliest first.

    They are those with which the model runs here, as every command guesses them. Of a model that is too large to be
    tried (its bytes, its nodes), or does not run on this computer's CPU, inference alone decides: claims hardly depend
    on which size it is.
    ConfigError when a size is given for a dimension that the model does not have.
    """
    takes = signature.own_inputs(loaded.proto)
    names = signature.names_of(signature.open_axes(takes))
    by_axis = signature.resolve_dimensions(takes, given, loaded.source.name)
    asked = {name: by_axis[axes[0].key] for name, axes in names.items() if axes[0].key in by_axis}
    left = tuple(axis for axis in signature.open_axes(takes) if axis.key not in by_axis)
    running = _sizes_that_run(loaded, given) if left else {}
    candidates = (
        [{name: running[axes[0].key] for name, axes in signature.names_of(left).items()}]
        if running
        else (
            {name: size for name, (size, _) in assignment.items()}
            for assignment in islice(usual_sizes.assignments(usual_sizes.units(loaded.proto, takes, left)), MOST_TRIALS)
        )
    )
    for candidate in candidates:
        sizes = usual_sizes.with_sums(asked | candidate, list(names))
        model = slim_copy(loaded.proto)
        onnx_model.fix_dimensions(model, sizes, loaded.source.name)
        try:
            infer(model)
        except ModelError:
            continue
        yield {name: sizes[name] for name in names}


_ran: dict[bytes, dict[str, int]] = {}
"""What `_sizes_that_run` said last: each provider asks about the same model, and trials of sizes take a second."""


def _sizes_that_run(loaded: onnx_model.LoadedModel, given: Mapping[str, int]) -> dict[str, int]:
    """Sizes by `input[axis]` with which the model runs here; none where it is not tried, or does not run."""
    if (
        model_sources.source_bytes(loaded.source) > check_many.LARGEST_RUN_BYTES
        or node_count(loaded.proto) > MOST_NODES
    ):
        return {}
    asked = repr((loaded.source, sorted(given.items()))).encode()
    key = hashlib.sha256(asked + loaded.proto.SerializeToString(deterministic=True)).digest()
    if key not in _ran:
        sizes: dict[str, int] = {}
        with suppress(PipelineError):
            sizes = data_guess.complete_data(loaded, dict(given), Dataset()).sizes
        _ran.clear()
        _ran[key] = sizes
    return _ran[key]
