"""The recurrences as Triton kernels for PyTorch."""
