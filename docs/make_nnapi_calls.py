"""Write docs/reference/nnapi-calls.md from what the Android library does: `python docs/make_nnapi_calls.py`."""

from collections.abc import Iterator
from pathlib import Path

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.android_host.inspection import read_calls, summarize
from device_runner.files import scratch_folder
from device_runner.library import LibraryFacts, resolve
from device_runner.spec import NnapiFlag, RunOptions, RunSpec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "nnapi-calls.md"
MODEL = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"
RELEASE = "1.29.0"

LEVELS = range(26, 32)
FLAGS = ((), *((flag,) for flag in NnapiFlag), (NnapiFlag.CPU_DISABLED, NnapiFlag.CPU_ONLY))

HEAD = """# What each NNAPI flag does at each API level

The calls that ONNX Runtime {release} (the Android library itself) made to NNAPI for {model}, recorded by
`android-host` on a driver profile of one accelerator and the reference device. Written by
`python docs/make_nnapi_calls.py`; a test holds it against the library.

"""
COLUMNS = ("level", "flags", "asks for devices", "operations of each partition", "in fp16", "layout", "for", "outcome")


def rows(library: LibraryFacts, model: Path) -> Iterator[tuple[str, ...]]:
    """What NNAPI was asked for a model with every flag at every level, each in a fresh process."""
    with scratch_folder() as folder:
        for level in LEVELS:
            for flags in FLAGS:
                record = folder / f"{level}-{'-'.join(flags)}.jsonl"
                with AndroidHost("android-host", library, Phone(api_level=level, calls=record)) as device:
                    options = RunOptions(provider="nnapi", flags=flags, intra_op_threads=1)
                    spec = RunSpec(id="calls", model=str(model), options=options, warmup=0, min_runs=1, min_seconds=0.0)
                    failure = device.run(spec).failure
                summary = summarize(read_calls(record) if record.is_file() else [])
                targets = {None: "", 0: "what the system chooses", 1: "1 device"}
                yield (
                    str(level),
                    ", ".join(flags) or "none",
                    "yes" if summary.asked_devices else "no",
                    ", ".join(f"{len(names)}" for names in summary.partitions) or "none",
                    "allowed" if summary.relaxed else "no",
                    {None: "", True: "NCHW", False: "NHWC"}[summary.nchw],
                    targets.get(summary.compiled_for, f"{summary.compiled_for} devices"),
                    failure.code.value if failure else "runs" if summary.runs else "runs on the CPU",
                )


def make_page(library: LibraryFacts, release: str) -> str:
    """The page for a release."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(library, MODEL)]
    head = HEAD.format(release=release, model="the MNIST example")
    return head + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(make_page(resolve(RELEASE).android(), RELEASE), "utf-8")
