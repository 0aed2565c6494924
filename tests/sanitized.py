"""Builds a C++ program on the native sources under AddressSanitizer and UBSan, and runs it."""

import pathlib
import shutil
import subprocess

import jax.ffi
import pytest

SOURCES = pathlib.Path(__file__).parents[1] / 'dct_jax/native/src'
FLAGS = ('-std=c++20', '-O1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all')


def run(source: pathlib.Path, directory: pathlib.Path, *arguments: str) -> str:
  """What the program prints. Fails the test if it does; skips it where there is no such compiler."""
  compiler = shutil.which('g++') or shutil.which('clang++')
  if compiler is None:
    pytest.skip('there is no C++ compiler here')
  program = directory / source.stem
  built = subprocess.run(
      [compiler, *FLAGS, '-isystem', jax.ffi.include_dir(), '-I', SOURCES, source, '-o', program],
      capture_output=True, text=True, check=False)
  if 'cannot find' in built.stderr:
    pytest.skip('this compiler has no sanitizers')
  assert built.returncode == 0, built.stderr
  done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout
