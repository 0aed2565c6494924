"""Loaders of real data sets, and generators that say that they are synthetic. No JAX in here."""

__all__ = ['clicks', 'images', 'linear', 'translation', 'words']  # modules
