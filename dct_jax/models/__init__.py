"""Models. They import flax or JAX alone; what communicates is passed in."""
