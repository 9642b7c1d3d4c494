"""The Swift package and its own runtime, of a bundle."""
