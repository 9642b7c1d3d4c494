"""`nox -s bench [-- NAME… [OPTION…]]`: runs the benchmarks named, or all, and prints their tables as Markdown.

Ratios and medians are what counts: absolute times belong to the machine that they were taken on.
"""

import importlib
import sys

BENCHMARKS = {
    "app_data": "an app's data in graphs beside the code that models were trained with",
    "startup": "what `ort-mobile --help` costs over bare Python",
    "conversion": "conversion against the stock converter: time, memory, the check's cost",
    "probe": "what the probe adds to an inference, and time to the first one against Python",
    "page": "opening the report page of 10,000 runs and a graph of 2,000 nodes in Chromium (needs playwright)",
    "push": "pushes beside `adb push` and adbutils, and what a campaign of eight variants pushes",
    "op_config": "operator configs of one large and 1,000 small artifacts against the stock tool",
    "aware": "NNAPI-aware files: saved with our claims, beside those of the genuine Android library",
    "partition": "claims: agreement and time against the stock usability checker, growth with nodes",
}


def main() -> int:
    """Run what the arguments name."""
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
