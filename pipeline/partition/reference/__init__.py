"""Claims of a real library: asked for, and compared with ours node by node."""
