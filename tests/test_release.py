"""What a release has: one version, a heading for it, and how to cite."""

import pathlib
import re

import pytest

from dct_jax.version import __version__

ROOT = pathlib.Path(__file__).parents[1]


def test_the_version_is_in_one_place():
  assert re.fullmatch(r'\d+\.\d+\.\d+', __version__)
  for name in ('setup.cfg', 'setup.py', 'pyproject.toml', 'CITATION.cff', 'MANIFEST.in', 'dct_jax/__init__.py'):
    assert __version__ not in (ROOT / name).read_text(), name


def test_the_changelog_begins_with_the_version():
  heading = re.search('^## (.*)$', (ROOT / 'CHANGELOG.md').read_text(), re.M)[1]
  assert heading.split(',')[0] == __version__


def test_the_citation_can_be_read():
  cited = pytest.importorskip('yaml').safe_load((ROOT / 'CITATION.cff').read_text())
  assert {'cff-version', 'message', 'title', 'authors', 'license'} <= set(cited)
  assert len(cited['references']) == 5
  for paper in cited['references']:
    assert paper['type'] == 'conference-paper' and paper['title'] and all('family-names' in a for a in paper['authors'])


def test_a_distribution_has_what_a_build_needs():
  """Each native source and header matches a line of MANIFEST.in; .ci/wheel builds a wheel of such a distribution."""
  lines = (ROOT / 'MANIFEST.in').read_text().splitlines()
  folder, *patterns = next(line for line in lines if line.startswith('recursive-include')).split()[1:]
  named = {path for pattern in patterns for path in (ROOT / folder).rglob(pattern)}
  assert named == {path for path in (ROOT / 'dct_jax/native/src').rglob('*') if path.is_file()}
  included = ' '.join(line for line in lines if line.startswith('include')).split()
  assert all((ROOT / name).exists() for name in included if name != 'include') and 'CITATION.cff' in included
