"""Requests for tests: shorthands over the real constructor, and the settings that hypothesis draws from."""

from hypothesis import strategies as st

from pipeline.config import Platform, Target
from pipeline.config.tables import BuildConfig, BuildKind, Configuration, Dependencies
from pipeline.core.providers import BUILD_PROVIDERS
from pipeline.core.variant import Style
from pipeline.ort_build.request import ABIS, Request, make_request
from pipeline.required_ops import RequiredOps, parse

OPERATORS = parse(
    'ai.onnx;13;Relu,Add{"inputs": {"0": ["float"]}}\ncom.microsoft;1;FusedConv\n', "required_operators.config"
)


def request(
    platform: Platform = Platform.ANDROID,
    version: str = "1.23.2",
    *,
    abis: tuple[str, ...] = (),
    operators: RequiredOps | None = OPERATORS,
    styles: tuple[Style, ...] = (),
    run_providers: tuple[str, ...] = (),
    api_level: int | None = None,
    os_version: str | None = None,
    **settings: object,
) -> Request:
    target = Target(name="t", platform=platform, abis=abis, min_api_level=api_level, min_os_version=os_version)
    return make_request(
        target,
        version,
        BuildConfig(**settings),  # type: ignore[arg-type]  # keywords are as varied as the table's keys
        operators=operators,
        run_providers=run_providers,
        styles=styles,
    )


def _abis(platform: Platform) -> st.SearchStrategy[tuple[str, ...]]:
    most = 1 if platform is Platform.LINUX else len(ABIS[platform])
    return st.lists(st.sampled_from(ABIS[platform]), max_size=most, unique=True).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    platform = draw(st.sampled_from(Platform))
    return request(
        platform,
        draw(st.sampled_from(["1.17.3", "1.20.1", "1.21.0", "1.23.2", "1.28.0", "1.31.1"])),
        abis=draw(_abis(platform)),
        operators=draw(st.sampled_from([OPERATORS, None])),
        styles=tuple(draw(st.sets(st.sampled_from(Style)))),
        kind=draw(st.sampled_from(BuildKind)),
        configuration=draw(st.sampled_from(Configuration)),
        providers=tuple(draw(st.lists(st.sampled_from(sorted(BUILD_PROVIDERS)), unique=True))),
        reduce_types=draw(st.booleans()),
        ml_ops=draw(st.sampled_from([None, True, False])),
        contrib_ops=draw(st.booleans()),
        lto=draw(st.booleans()),
        exceptions=draw(st.booleans()),
        wheel=draw(st.booleans()),
        dependencies=draw(st.sampled_from(Dependencies)),
        jobs=draw(st.sampled_from([None, 3])),
    )
