"""dct_jax."""
