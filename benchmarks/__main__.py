"""`nox -s bench [-- NAME… [OPTION…]]`: runs the benchmarks named, or all, and prints their tables as Markdown.

Ratios and medians are what counts: absolute times belong to the machine that they were taken on.
"""

import importlib
import os
import sys

BENCHMARKS = {
    "startup": "what `ort-mobile --help` costs over bare Python",
    "conversion": "conversion against the stock converter: time, memory, the check's cost",
    "probe": "what the probe adds to an inference, and time to the first one against Python",
    "campaign": "what a campaign adds to a run, and 1 to 200 devices at once",
    "farm": "campaigns on 1 and 16 real adbd devices: what a run costs beside its probe",
    "page": "opening the report page of 10,000 runs and a graph of 2,000 nodes in Chromium (needs playwright)",
    "push": "pushes beside `adb push` and adbutils, and what a campaign of eight variants pushes",
    "op_config": "operator configs of one large and 1,000 small artifacts against the stock tool",
    "aware": "NNAPI-aware files: spliced beside those of the genuine Android library",
    "quantization": "static quantization against onnxruntime.quantization by hand: time and memory",
    "pairs": "equal runs and 3 % more work through the engine: wrong verdicts, what is found, seconds (--minutes N)",
    "store": "a store of millions of runs: wall time of `report` and `gate --history` (--runs N)",
    "facade": "the released Java class beside ONNX Runtime's calls by hand: opening a model and the first inference",
    "delta": "deltas between real models: bytes of each form (needs PyPI)",
    "partition": "claims: agreement and time against the stock usability checker, growth with nodes",
}


def main() -> int:
    """Run what the arguments name."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands of users keep their bytecode
    words = sys.argv[1:]
    count = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    names, sys.argv[1:] = words[:count] or list(BENCHMARKS), words[count:]
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        listed = "\n".join(f"  {name:13} {text}" for name, text in BENCHMARKS.items())
        print(f"no benchmark is called {', '.join(unknown)}; there are:\n{listed}", file=sys.stderr)
        return 2
    for name in names:
        print(f"\n## {name}: {BENCHMARKS[name]}\n", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
