"""Android's own libonnxruntime in a Linux process: shims for its imports, and a fake NNAPI driver."""
