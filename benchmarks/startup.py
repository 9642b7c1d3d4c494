"""What `ort-mobile --help` costs over bare Python, in alternating rounds of fresh processes."""

import statistics
import subprocess
import sys
import time

ROUNDS = 15
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "ort-mobile --help": ["-m", "pipeline", "--help"],
    "import onnxruntime": ["-c", "import onnxruntime"],
}


def seconds(arguments: list[str]) -> float:
    """Wall time of one fresh process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Print medians and the noise."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    print("| process | median ms | min | max |\n| --- | --- | --- | --- |")
    for name, taken in times.items():
        print(f"| {name} | {statistics.median(taken) * 1e3:.0f} | {min(taken) * 1e3:.0f} | {max(taken) * 1e3:.0f} |")


if __name__ == "__main__":
    main()
