"""The difference of two bundles as a small file, and its application."""
