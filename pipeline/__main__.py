"""`python -m pipeline` is the same as the console script `ort-mobile`."""

from pipeline.cli import main as cli_main

if __name__ == "__main__":
    cli_main.main()
