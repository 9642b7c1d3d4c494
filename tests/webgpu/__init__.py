"""The genuine WebGPU plugin: what it claims of the ground truth, and which kernels it registers."""
