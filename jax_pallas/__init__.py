"""The recurrences as Pallas kernels for JAX."""
