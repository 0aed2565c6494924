"""What is said where the native code is missing."""

import importlib.machinery
import pathlib
import subprocess
import sys

from dct_jax.native import whereabouts

ROOT = pathlib.Path(__file__).parents[2]


def built_package(directory):
  native = directory / 'dct_jax/native'
  native.mkdir(parents=True)
  (native / f'_native{importlib.machinery.EXTENSION_SUFFIXES[0]}').touch()
  return directory / 'dct_jax'


def test_an_unbuilt_checkout_names_itself_and_the_built_package(tmp_path):
  """As `python -m dct_jax...` inside of it, with the package installed elsewhere."""
  built, checkout = built_package(tmp_path / 'installed'), tmp_path / 'checkout'
  (checkout / 'dct_jax').mkdir(parents=True)
  for name in (p.name for p in (ROOT / 'dct_jax').iterdir() if p.name != 'native'):
    (checkout / 'dct_jax' / name).symlink_to(ROOT / 'dct_jax' / name)
  (checkout / 'dct_jax/native').mkdir()
  for path in (ROOT / 'dct_jax/native').glob('*.py'):
    (checkout / 'dct_jax/native' / path.name).write_text(path.read_text())
  run = subprocess.run([sys.executable, '-c', 'import dct_jax.native'], cwd=checkout, capture_output=True, text=True,
                       env={'PYTHONPATH': str(built.parent)})
  assert f'{checkout}/dct_jax was imported' in run.stderr, run.stderr
  assert f'the built package in {built}' in run.stderr
  assert 'compiler' not in run.stderr


def test_without_another_package_a_compiler_is_the_advice(monkeypatch):
  monkeypatch.setattr(sys, 'path', [])
  monkeypatch.setattr(whereabouts.site, 'getsitepackages', list)
  monkeypatch.setattr(whereabouts.site, 'getusersitepackages', lambda: '/nowhere')
  assert whereabouts.advice() == 'Install a C++ compiler and reinstall.'
