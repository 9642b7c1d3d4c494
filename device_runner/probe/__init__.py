"""The probe: one C11 program that measures with any libonnxruntime, its build, and how to talk to it."""
