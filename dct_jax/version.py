"""The version, where a build can read it without importing JAX."""

__version__ = '0.2.0'
