"""Results as files: what a script measured, with the command, seed, date, versions and machine that made it.

Pages of the documentation show tables and numbers of such files (`docs/render.py`), so that none is pasted by hand.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

COMMAND = 'DCT_JAX_COMMAND'  # variable with what a user typed, where another program starts the one that measures
PACKAGES = ('jax', 'jaxlib', 'numpy', 'optax', 'flax')
RIVALS = ('torch', 'ray')  # what numbers may be compared with, where it is installed
FEATURES = ('avx512f', 'avx2', 'neon')  # the widest vectors that a processor has, by what kernels care about


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
  """Makes a table as a results file has it.

  Args:
    head: names of columns.
    rows: cells as they are shown; numbers are formatted by whoever knows how many digits mean something.

  Raises:
    ValueError: if a row has another length than the head.
  """
  for row in rows:
    if len(row) != len(head):
      raise ValueError(f'a table with the columns {list(head)} has a row of {len(row)} cells: {list(row)}')
  return {'head': list(head), 'rows': [[str(cell) for cell in row] for row in rows]}


def write(path: str | os.PathLike, *, values: Mapping[str, Any] | None = None,
          tables: Mapping[str, Mapping[str, Any]] | None = None, seed: Any = None, command: str | None = None,
          **more: Any) -> dict[str, Any]:
  """Writes what was measured, with all that one needs to measure it again; returns what the file has.

  Args:
    path: of a JSON file. What it had before is replaced, when all of the new file is there.
    values: name -> number, for sentences and for comparison with a target.
    tables: name -> `table(...)`.
    seed: a number, or several; None where nothing is random.
    command: that makes these numbers; the one that runs, unless given.
    **more: whatever else is worth keeping, as raw times.
  """
  return _put(path, {**_how(command, seed), 'values': dict(values or {}), 'tables': dict(tables or {}), **more})


def add(path: str | os.PathLike, tables: Mapping[str, Mapping[str, Any]], *, values: Mapping[str, Any] | None = None,
        seed: Any = None, command: str | None = None) -> dict[str, Any]:
  """Puts tables into a file that may have others, which stay; every table then says itself how it was made.

  Args:
    path: of a JSON file, which need not be there. What it says of itself is of the last call.
    tables: name -> `table(...)`; those with the same names are replaced.
    values, seed, command: as of `write`.
  """
  path, how = pathlib.Path(path), _how(command, seed)
  old = json.loads(path.read_text()) if path.exists() else {**how, 'values': {}, 'tables': {}}
  theirs = {key: old[key] for key in how if key in old}
  return _put(path, {**old, **how, 'values': {**old['values'], **(values or {})}, 'tables': {
      **{name: {**theirs, **made} for name, made in old['tables'].items()},
      **{name: {**how, **made} for name, made in tables.items()}}})


def _how(command, seed):
  return {'command': command or running(), 'seed': seed, 'date': datetime.date.today().isoformat(),
          'versions': versions(), 'machine': machine()}


def _put(path, found):
  """Replaces a file when all of the new one is there; returns what it has."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  beside = path.with_name(f'{path.name}.new')
  beside.write_text(json.dumps(found, indent=1, ensure_ascii=False) + '\n')
  beside.replace(path)
  return json.loads(path.read_text())


def running() -> str:
  """The command that runs, as a user would type it in the project's root."""
  if COMMAND in os.environ:
    return os.environ[COMMAND]
  script = pathlib.Path(sys.argv[0])
  return shlex.join(['python', f'{script.parent.name}/{script.name}', *sys.argv[1:]])


def versions() -> dict[str, str]:
  """Names -> versions of the packages that numbers depend on most, and of rivals that are installed."""
  there = [name for name in RIVALS if importlib.util.find_spec(name)]
  return {name: importlib.metadata.version(name) for name in (*PACKAGES, *there)}


def machine() -> str:
  """This machine in a few words: cores, processor, vectors."""
  name, flags = platform.machine(), ''
  info = pathlib.Path('/proc/cpuinfo')
  for line in info.read_text().splitlines() if info.exists() else ():
    key, _, value = (part.strip() for part in line.partition(':'))
    name, flags = (value, flags) if key == 'model name' else (name, value) if key == 'flags' else (name, flags)
  vectors = next((f' ({feature.upper()})' for feature in FEATURES if feature in flags.split()), '')
  return f'{os.cpu_count()} cores, {name}{vectors}'
