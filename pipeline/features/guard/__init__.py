"""The guard: classes with which an app tries accelerators safely, and keeps to the CPU where they fail."""
