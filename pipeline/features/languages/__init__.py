"""Code that opens a bundle's model in an app, for languages other than those that have packages."""
