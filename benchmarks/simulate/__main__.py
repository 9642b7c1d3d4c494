"""`nox -s simulations [-- --check] [-- NAME…]`: writes what simulations give into docs/numbers.md, between markers.

Seeds are fixed, so that the same code gives the same tables; `--check` says which are not current.
"""

import importlib
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numbers.md"

TABLES = {
    "searches": "searches for the best configuration: how near, in how much device time",
    "verdicts": "verdicts, intervals and percentiles: how often they say what is so, for each kind of noise",
    "histories": "histories of commits: false alarms, and slowdowns of 5 % found",
}
"""Module here whose `table()` gives Markdown, which is also the name of its markers."""


def between(name: str) -> re.Pattern[str]:
    """What stands between the markers of a table."""
    return re.compile(f"(<!-- simulated: {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)


def main() -> int:
    """Make the tables that the arguments name, or all; 1 where --check finds one that is not current."""
    names = [word for word in sys.argv[1:] if word != "--check"] or list(TABLES)
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        listed = "\n".join(f"  {name:12} {text}" for name, text in TABLES.items())
        print(f"no simulation is called {', '.join(unknown)}; there are:\n{listed}", file=sys.stderr)
        return 2
    stale = []
    for name in names:
        table = importlib.import_module(f"benchmarks.simulate.{name}").table()
        print(f"\n## {name}: {TABLES[name]}\n\n{table}", flush=True)
        page = PAGE.read_text(encoding="utf-8")
        made, count = between(name).subn(lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", page)  # type: ignore[misc] # mypy: lambdas with defaults
        if not count:
            raise SystemExit(f"{PAGE.name} has no markers for {name}")
        if made != page:
            stale.append(name)
            if "--check" not in sys.argv:
                PAGE.write_text(made, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"{PAGE.name} is not current for {', '.join(stale)}: run `nox -s simulations`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
