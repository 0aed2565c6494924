"""What all command lines have in common: what is wrong with arguments is one line, and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

WRONG, INTERRUPTED, TERMINATED = 2, 130, 143  # exit codes, as shells have them
TRACEBACK = 'DCT_JAX_TRACEBACK'  # environment variable


class Parser(argparse.ArgumentParser):
  """argparse's, without its usage before an error."""

  def error(self, message: str) -> NoReturn:
    self.exit(WRONG, f'{self.prog}: error: {message}\n')


def attempt(name: str, action: Callable[[], Any], wrong: tuple[type[Exception], ...] = (ValueError, OSError)) -> Any:
  """What `action` returns, or the exit code of what went wrong, said in one line.

  Args:
    name: of the command.
    action: with the arguments that a user gave.
    wrong: what is taken for a mistake in them. DCT_JAX_TRACEBACK=1 in the environment shows where it was found.
  """
  try:
    return action()
  except wrong as error:
    if os.environ.get(TRACEBACK):
      traceback.print_exc()
    say(name, '; '.join([str(error), *getattr(error, '__notes__', ())]))
    return WRONG
  except KeyboardInterrupt as interrupt:
    if not interrupt.args:  # else it has said itself what it came to
      print(f'{name}: interrupted', file=sys.stderr)
    return INTERRUPTED


def say(name: str, error: object) -> None:
  """One line of what is wrong."""
  print(f'{name}: error: {" ".join(str(error).split())}', file=sys.stderr, flush=True)
