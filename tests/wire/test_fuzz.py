"""Some thousands of broken messages in every run; a million were done once (see fuzz.py)."""

import pathlib
import shutil
import subprocess

import jax.ffi
import pytest

from wire.fuzz import fuzz

HERE = pathlib.Path(__file__).parent


def test_broken_messages_are_refused_or_right(native):
  done, accepted = fuzz(4000 if native else 1000, seed=7)
  assert 0 < accepted < done / 2


def test_native_decoder_under_address_sanitizer(tmp_path):
  """Not a word is read out of bounds, whatever the message says."""
  compiler = shutil.which('g++') or shutil.which('clang++')
  if compiler is None:
    pytest.skip('there is no C++ compiler here')
  program = tmp_path / 'fuzz'
  built = subprocess.run(
      [compiler, '-std=c++20', '-O1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all',
       '-isystem', jax.ffi.include_dir(), '-I', HERE.parents[1] / 'dct_jax/native/src',
       HERE / 'fuzz_sanitized.cc', '-o', program], capture_output=True, text=True, check=False)
  if 'cannot find' in built.stderr:
    pytest.skip('this compiler has no sanitizers')
  assert built.returncode == 0, built.stderr
  done = subprocess.run([program, '200000'], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
