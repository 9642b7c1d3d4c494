"""Releases what a config chooses: what must hold, the signature, and the packages for apps that other features make."""
