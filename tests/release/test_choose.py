"""The choice per target: the fastest that was measured there, the plainest of equals, the advice where nothing was."""

from device_runner.device import DeviceFacts
from device_runner.result import Mark
from device_runner.spec import RunOptions
from pipeline.campaign.record import RecordedRun
from pipeline.campaign.statistics.compare import DecisionRule, Verdict
from pipeline.campaign.statistics.groups import RunGroup
from pipeline.config import Platform, Target
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.release.choose import Contender, Rejected, choose, suits
from tests.values import present

PHONE = DeviceFacts(name="adb:1", platform="android", abis=("arm64-v8a", "armeabi-v7a"), api_level=33)
HERE = DeviceFacts(name="local", platform="linux", abis=("x86_64",))
DEVICES = {"adb:1": PHONE, "local": HERE}
PHONES = {
    name: DeviceFacts(name=name, platform="android", abis=("arm64-v8a",), api_level=33, soc=soc)
    for name, soc in (("adb:fast", "SM8650"), ("adb:slow", "SM4250"))
}
ANDROID = Target(name="android", platform=Platform.ANDROID, abis=("arm64-v8a",), min_api_level=27)


def artifact(
    level: Level, style: Style = Style.FIXED, size: int = 10, options: dict[str, str] | None = None
) -> Artifact:
    return Artifact(
        model="m", variant=Variant(level=level, style=style), file="f.ort", size_bytes=size, sha256="0" * 64,
        semantic_digest="1" * 64, operators={}, source_operators={}, session_options=options or {},
    )  # fmt: skip


def measured(
    of: Artifact, ms: float, device: str = "adb:1", provider: str = "cpu", marks: tuple[Mark, ...] = ()
) -> Contender:
    times = {n: tuple(int(ms * 1e6) + 100 * k + n for k in range(20)) for n in range(6)}
    name, options = of.variant.name, RunOptions(provider=provider)
    run = RecordedRun(id="1", device=device, model="m", variant=name, run=provider, options=options)
    return Contender(run, of, RunGroup(key=f"{name}/{provider}", latencies_ns=times, marks=marks * 6))


def test_the_fastest_on_such_a_device_wins() -> None:
    runs = [measured(artifact(Level.NONE), 9), measured(artifact(Level.ALL), 5), measured(artifact(Level.BASIC), 7)]
    choice = present(choose(ANDROID, [], runs, DEVICES, DecisionRule()))
    assert choice.artifact.variant.name == "all-fixed"
    assert choice.measured
    assert choice.reason == "the fastest of 3 measured on adb:1"


def test_of_equals_the_plainest_ships() -> None:
    runs = [
        measured(artifact(Level.ALL, size=20), 5.0),
        measured(artifact(Level.EXTENDED, size=10), 5.02),
        measured(artifact(Level.ALL, Style.RUNTIME, size=5, options={"k": "1"}), 4.99),
        measured(artifact(Level.BASIC, size=1), 4.98, provider="nnapi"),
    ]
    choice = present(choose(ANDROID, [], runs, DEVICES, DecisionRule()))
    assert choice.artifact.variant.name == "extended-fixed"
    assert "statistically tied with the fastest; simplest of the 4 tied ones of 4" in choice.reason
    assert choice.undecided == ()


def noisy(of: Artifact, ms: float, spread: float) -> Contender:
    """Rounds that scatter so much that nothing is shown about them."""
    run, _, group = measured(of, ms)
    times = {n: tuple(int(t * (1 + spread * (-1) ** n)) for t in each) for n, each in group.latencies_ns.items()}
    return Contender(run, of, RunGroup(key=group.key, latencies_ns=times))


def test_what_cannot_be_told_apart_is_no_tie_when_its_median_is_worse() -> None:
    """The plainest of six real variants shipped with a median 62 % over the fastest's, whose interval was 0.3 to 5."""
    runs = [noisy(artifact(Level.NONE, size=20), 10.3, 0.5), noisy(artifact(Level.EXTENDED, size=10), 16.7, -0.3)]
    choice = present(choose(ANDROID, [], runs, DEVICES, DecisionRule()))
    assert choice.artifact.variant.name == "none-fixed"
    assert choice.undecided == ("extended-fixed/cpu",)
    assert "not decidable: 1 more cannot be told from it, measure again with more rounds" in choice.reason


def test_other_devices_and_times_that_are_not_a_phones_do_not_count() -> None:
    artifacts = [artifact(Level.BASIC), artifact(Level.ALL), artifact(Level.ALL, Style.RUNTIME)]
    runs = [
        measured(artifacts[0], 1, device="local"),
        measured(artifacts[0], 1, marks=(Mark.NOT_A_PHONE,)),
    ]
    choice = present(choose(ANDROID, artifacts, runs, DEVICES, DecisionRule()))
    assert not choice.measured
    assert choice.artifact.variant.name == "all-fixed"
    assert choice.reason.startswith("not measured on an android arm64-v8a device")


def test_across_phones_what_loses_least_on_its_worst_phone_ships_and_says_where_it_is_slower() -> None:
    level_all, basic = artifact(Level.ALL), artifact(Level.BASIC)
    runs = [
        measured(level_all, 10.0, "adb:fast"), measured(basic, 10.9, "adb:fast"),
        measured(level_all, 60.0, "adb:slow"), measured(basic, 20.0, "adb:slow"),
    ]  # fmt: skip
    choice = present(choose(ANDROID, [], runs, PHONES, DecisionRule()))
    assert choice.artifact is basic
    assert choice.device == "adb:fast"
    assert choice.reason == (
        "of 2 measured on adb:fast and adb:slow it loses least on its worst device, adb:fast; slower than another: "
        "on adb:fast 1.09 times all-fixed/cpu (1.09 to 1.09)"
    )
    assert {device: (one.baseline, one.verdict) for device, one in choice.slower.items()} == {
        "adb:fast": ("all-fixed/cpu", Verdict.SLOWER)
    }


def test_what_is_fastest_on_every_phone_names_the_one_where_it_takes_longest() -> None:
    level_all, basic = artifact(Level.ALL), artifact(Level.BASIC)
    runs = [measured(of, ms * x, name) for name, x in (("adb:fast", 1), ("adb:slow", 3)) for of, ms in
            ((level_all, 10.0), (basic, 20.0))]  # fmt: skip
    choice = present(choose(ANDROID, [], runs, PHONES, DecisionRule()))
    assert (choice.artifact, choice.device, choice.slower) == (level_all, "adb:slow", {})
    assert choice.reason == "the fastest of 2 on each of adb:fast and adb:slow"


def test_what_failed_on_a_phone_is_no_choice_where_another_ran_on_all() -> None:
    level_all, basic = artifact(Level.ALL), artifact(Level.BASIC)
    runs = [measured(level_all, 1.0, "adb:fast"), measured(basic, 9.0, "adb:fast"), measured(basic, 9.0, "adb:slow")]
    choice = present(choose(ANDROID, [], runs, PHONES, DecisionRule()))
    assert choice.artifact is basic
    alone = present(choose(ANDROID, [], [*runs[:1], measured(basic, 9.0, "adb:slow")], PHONES, DecisionRule()))
    assert "without a sound run on adb:slow" in alone.reason


def test_equals_on_every_phone_are_tied_and_the_smaller_file_ships() -> None:
    runs = [
        measured(artifact(level, size=size), ms * (1 + 0.001 * size), name)
        for name, ms in (("adb:fast", 10.0), ("adb:slow", 60.0))
        for level, size in ((Level.ALL, 2), (Level.BASIC, 1), (Level.EXTENDED, 0))
    ]
    runs[-1] = measured(runs[-1][1], 90.0, "adb:slow")
    choice = present(choose(ANDROID, [], runs, PHONES, DecisionRule()))
    assert choice.artifact.variant.name == "basic-fixed"
    assert "statistically tied with the best; simplest of the 2 tied ones" in choice.reason


def rejected(*levels: Level) -> list[Rejected]:
    why = "failed the numeric check"
    return [Rejected(variant=f"{one.value}-fixed", level=one, why=why, error=0.1 * n) for n, one in enumerate(levels)]


def test_what_is_not_measured_says_why_nothing_better_ships() -> None:
    others = rejected(Level.BASIC, Level.EXTENDED, Level.ALL)
    choice = present(choose(ANDROID, [artifact(Level.NONE)], [], DEVICES, DecisionRule(), others))
    assert choice.reason == (
        "not measured on an android arm64-v8a device; the most optimized that may ship: "
        "basic-fixed, extended-fixed, all-fixed failed the numeric check (largest relative error 0.2)"
    )


def test_nobodys_documentation_is_quoted_for_what_it_does_not_say() -> None:
    """Only level all is anybody's default; what is left when the others are not wanted is the config's wish."""
    for levels, reason in (
        ([Level.ALL, Level.BASIC], "level all is the default of ONNX Runtime's own converter"),
        ([Level.BASIC, Level.NONE], "the most optimized that the config asks for"),
        ([Level.BASIC], "the only one that the config asks for and that may ship"),
    ):
        choice = choose(
            ANDROID, [artifact(level) for level in levels], [], DEVICES, DecisionRule(), rejected(Level.NONE)
        )
        assert choice is not None
        assert choice.reason.endswith(reason)
        assert "documentation" not in choice.reason


def test_of_levels_that_fuse_alike_a_much_larger_file_is_not_advised() -> None:
    """Level all may widen half weights; a few bytes more, and a level that fuses less, decide nothing."""
    sizes = {Level.ALL: 1100, Level.EXTENDED: 552, Level.BASIC: 300}
    choice = choose(ANDROID, [artifact(level, size=size) for level, size in sizes.items()], [], DEVICES, DecisionRule())
    assert choice is not None
    assert choice.artifact.variant.level is Level.EXTENDED
    assert choice.reason.endswith("with the same fusions level all makes it 2.0 times as large")
    sizes[Level.ALL] = 560
    choice = choose(ANDROID, [artifact(level, size=size) for level, size in sizes.items()], [], DEVICES, DecisionRule())
    assert present(choice).artifact.variant.level is Level.ALL


def test_a_device_suits_by_platform_abi_and_api_level() -> None:
    assert suits(ANDROID, PHONE)
    assert not suits(ANDROID, HERE)
    assert not suits(Target(name="t", platform=Platform.ANDROID, abis=("x86",)), PHONE)
    assert not suits(Target(name="t", platform=Platform.ANDROID, min_api_level=34), PHONE)
    assert suits(Target(name="t", platform=Platform.LINUX, abis=("amd64",)), HERE)
