"""Which folder this package was imported from, and whether another one has the native code."""

from __future__ import annotations

import importlib.machinery
import pathlib
import site
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def advice() -> str:
  """What to do where there is no native code: leave a checkout that hides the built package, or build it."""
  if built := elsewhere():
    return (f'{PACKAGE} was imported, a folder in which nothing is built; it hides the built package in {built}. '
            'Python looks in the current folder (python -m, python -c) and in PYTHONPATH first: run it from another '
            'folder, or build this one with pip install -e .')
  return 'Install a C++ compiler and reinstall.'


def elsewhere() -> pathlib.Path | None:
  """Another folder of the package, with native code that this Python can load; None if there is none."""
  places = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
  for place in dict.fromkeys(pathlib.Path(p).resolve() for p in places):
    package = place / PACKAGE.name
    if package != PACKAGE and any((package / 'native' / f'_native{end}').is_file()
                                  for end in importlib.machinery.EXTENSION_SUFFIXES):
      return package
  return None
