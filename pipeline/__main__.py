"""`python -m pipeline` is the same as the console script `ort-mobile`."""

from pipeline.cli.main import main

if __name__ == "__main__":
    main()
