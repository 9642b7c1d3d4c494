"""The command line: one module a command, each a thin function over the pipeline's own functions."""
