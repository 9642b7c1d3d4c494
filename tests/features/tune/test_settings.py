"""What a search chooses from: every sensible combination, and a reason for each that is left out."""

import msgspec

from device_runner.device import DeviceFacts, DriverType, NnapiDevice
from device_runner.options import MAPPED, SPINNING_KEYS
from device_runner.spec import ExecutionMode, NnapiFlag, RunOptions
from pipeline.campaign.record import Prediction
from pipeline.campaign.run_options import options_name
from pipeline.config import Config, Goal, ModelConfig, RunConfig, TuneConfig
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.features.tune import space as tune_space
from pipeline.features.tune.space import ALL_CLAIMED, Lattice, distinct_candidates, searched_runs, without

PHONE = DeviceFacts(
    name="adb:1", platform="android", abis=("arm64-v8a",), api_level=30, nnapi=True, core_max_mhz=(2000,) * 4,
    nnapi_devices=(
        NnapiDevice(name="npu", type=DriverType.ACCELERATOR, feature_level=30),
        NnapiDevice(name="nnapi-reference", type=DriverType.CPU, feature_level=30),
    ),
)  # fmt: skip


def artifact(level: Level = Level.BASIC, size: int = 1000) -> Artifact:
    return Artifact(
        model="m", variant=Variant(level=level), file=f"m.{level}.ort", size_bytes=size, sha256=level.value,
        semantic_digest="b", operators={}, source_operators={},
    )  # fmt: skip


def config(*runs: RunConfig, **tune: object) -> Config:
    return Config(name="c", models=(ModelConfig(path="m"),), runs=runs, tune=msgspec.convert(tune, TuneConfig))


def lattice(wanted: Config, artifacts: list[Artifact], facts: DeviceFacts) -> Lattice:
    """What is left where no rules of providers say anything."""
    return distinct_candidates(tune_space.lattice(wanted, artifacts, facts), facts, {})


def names(found: Lattice) -> list[str]:
    return [options_name(one.options) for one in found[0]]


def reasons(found: Lattice) -> dict[str, str]:
    return {one.run: one.text for one in found[1]}


def test_a_gpu_in_software_is_no_candidate() -> None:
    wanted, here = config(RunConfig(), RunConfig(provider="webgpu")), DeviceFacts(name="local", platform="linux")
    left, gone = tune_space.lattice(wanted, [artifact()], here, software_gpu=True)
    assert {one.options.provider for one in left} == {"cpu"}
    software = [one for one in gone if one.what == tune_space.SOFTWARE_GPU]
    assert software
    assert all((one.run or "").startswith("webgpu") for one in software)
    left, gone = tune_space.lattice(wanted, [artifact()], here)
    assert {one.options.provider for one in left} == {"cpu", "webgpu"}


def test_the_default_space_has_every_number_of_cores_the_arena_and_spinning() -> None:
    found = lattice(config(RunConfig()), [artifact()], PHONE)
    options = [one.options for one in found[0]]
    assert options[0] == RunOptions(), "what an app gets that sets nothing comes first"
    assert {one.intra_op_threads for one in options} == {0, 1, 2, 3, 4}
    assert {one.cpu_arena for one in options} == {True, False}
    assert {one.session_config.get(SPINNING_KEYS[0]) for one in options} == {None, "0"}
    assert len(options) == 2 * (1 + 4 * 2), "with one thread spinning has no effect"


def test_what_runs_say_stays_and_lists_of_tune_replace_the_rest() -> None:
    found = searched_runs(
        (RunConfig(threads=3), RunConfig(provider=("cpu", "nnapi"))), TuneConfig(threads=(1, 2)), PHONE
    )
    assert {one.threads for one in found if one.provider == "cpu"} == {3, 0, (1, 2)}
    assert {one.provider for one in found} == {"cpu", "nnapi"}
    assert all(not one.flags for one in found if one.provider == "cpu")


def test_memory_as_a_goal_or_limit_adds_what_saves_memory() -> None:
    plain = lattice(config(RunConfig()), [artifact()], PHONE)
    for tune in ({"goals": "memory"}, {"max_memory_mb": 10}, {"goals": "private-memory"}, {"max_private_mb": 10}):
        found = lattice(config(RunConfig(), **tune), [artifact()], PHONE)
        assert len(found[0]) == 4 * len(plain[0])


def test_memory_as_a_goal_adds_mapped_weights_where_files_are_not_mapped_anyway() -> None:
    here = DeviceFacts(name="local", platform="linux", core_max_mhz=(2000,))
    for facts, is_mapped in ((PHONE, {False}), (here, {True, False})):
        found = lattice(config(RunConfig(), goals="private-memory"), [artifact()], facts)
        assert {MAPPED.items() <= one.options.session_config.items() for one in found[0]} == is_mapped
    plain = lattice(config(RunConfig()), [artifact()], here)
    assert not any(MAPPED.items() <= one.options.session_config.items() for one in plain[0])


def test_more_threads_than_cores_are_left_out_with_the_reason() -> None:
    found = lattice(config(RunConfig(), threads=[2, 8], spinning=True, memory_arena=True), [artifact()], PHONE)
    assert names(found) == ["cpu", "cpu+threads=2+spinning=on"]
    assert reasons(found)["cpu+threads=8+spinning=on"] == "8 threads on 4 cores wait for each other"


def test_options_without_effect_count_as_the_plainest_of_their_kind() -> None:
    found = lattice(
        config(RunConfig(), threads=1, spinning=[True, False], inter_op_threads=[0, 2], memory_arena=True,
               execution_mode=["sequential", "parallel"], memory_pattern=[True, False]),
        [artifact()], PHONE,
    )  # fmt: skip
    sequential = [one.options for one in found[0] if one.options.execution_mode is ExecutionMode.SEQUENTIAL]
    assert not [one for one in sequential if one.inter_op_threads]
    parallel = [one.options for one in found[0] if one.options.execution_mode is ExecutionMode.PARALLEL]
    assert parallel
    assert all(one.memory_pattern for one in parallel)
    assert reasons(found)["cpu+threads=1+spinning=off"] == (
        "one thread waits for no other: spinning has no effect; counts as basic-fixed/cpu+threads=1+spinning=on"
    )


def test_flags_without_effect_here_are_left_out() -> None:
    run = RunConfig(provider="nnapi")
    tune = {"threads": 0, "memory_arena": True, "spinning": True}
    new = lattice(config(run, **tune), [artifact()], PHONE)
    assert len({one.options.flags for one in new[0]}) == 8
    old = msgspec.structs.replace(PHONE, api_level=27, nnapi_devices=())
    flags = {flag for one in lattice(config(run, **tune), [artifact()], old)[0] for flag in one.options.flags}
    assert flags == set(), "float16 comes with API level 28, the other two with 29"
    npu = msgspec.structs.replace(PHONE, nnapi_devices=PHONE.nnapi_devices[:1])
    found = lattice(config(run, **tune), [artifact()], npu)
    assert NnapiFlag.CPU_DISABLED not in {flag for one in found[0] for flag in one.options.flags}
    assert "names no CPU device" in reasons(found)["nnapi+CPU_DISABLED+spinning=on"]


def test_a_file_over_the_limit_is_left_out() -> None:
    found = lattice(
        config(RunConfig(), max_size_mb=0.002), [artifact(size=1000), artifact(Level.ALL, size=3000)], PHONE
    )
    assert {one.variant for one in found[0]} == {"basic-fixed"}
    assert {one.text for one in found[1] if one.variant == "all-fixed"} >= {
        "its file has 0.003 MB, max_size_mb allows 0.002"
    }


def test_what_the_rules_know_of_a_provider_prunes_and_says_so() -> None:
    found = lattice(config(RunConfig(provider="nnapi"), memory_arena=True, flags=[[]]), [artifact()], PHONE)

    def predicted(**fields: object) -> Lattice:
        prediction = Prediction(nodes=10, **fields)  # type: ignore[arg-type]
        return distinct_candidates(found, PHONE, {one.id: prediction for one in found[0]})

    nothing = predicted(claimed=0)
    assert not nothing[0]
    assert set(reasons(nothing).values()) >= {"the provider claims no node of it: it would run on the CPU alone"}
    assert not predicted(claimed=3, error="unsupported type")[0]
    assert len(predicted(claimed=9)[0]) == len(found[0])
    whole = predicted(claimed=10)
    assert names(whole) == ["nnapi"]
    assert any(reason.startswith(ALL_CLAIMED) for reason in reasons(whole).values())
    assert len(distinct_candidates(found, PHONE, {})[0]) == len(found[0]), "no rules, no opinion"


def test_nothing_is_lost_between_candidates_and_reasons() -> None:
    tune = TuneConfig(goals=(Goal.LATENCY, Goal.MEMORY))
    found = lattice(config(RunConfig(), **msgspec.to_builtins(tune)), [artifact(), artifact(Level.ALL)], PHONE)
    less = without(found, lambda one: "no" if one.variant == "all-fixed" else "")
    assert len(less[0]) + len(less[1]) == len(found[0]) + len(found[1])
    assert all(one.text for one in less[1])
    assert without(Lattice([], []), lambda _: "no") == ([], [])
