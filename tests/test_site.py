"""Links of all Markdown files lead somewhere, and the site is built without a warning."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
from test_public import ROOMS

ROOT = pathlib.Path(__file__).parents[1]
FENCED = re.compile(r'^( *)(```|~~~).*?^ *\2', re.S | re.M)
LINK = re.compile(r'\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)')
HERE = re.compile(r'^(?!\.|build$|dist$|runs$)')  # folders with pages of ours


def pages():
  """All Markdown files of the project, and its notebooks, by their paths."""
  found = [p for folder in ROOT.iterdir() if folder.is_dir() and HERE.match(folder.name)
           for p in [*folder.rglob('*.md'), *folder.rglob('*.ipynb')]]
  return {str(p.relative_to(ROOT)): p for p in sorted([*ROOT.glob('*.md'), *found])}


def text_of(path):
  """Markdown without code."""
  text = path.read_text()
  if path.suffix == '.ipynb':
    text = '\n\n'.join(''.join(c['source']) for c in json.loads(text)['cells'] if c['cell_type'] == 'markdown')
  return FENCED.sub('', text)


def anchors(text):
  """Names that file hosts, and the site, give to headings."""
  found = []
  for heading in re.findall(r'^#+ +(.*?) *#*$', text, re.M):
    heading = re.sub(r'!?\[([^\]]*)\]\([^)]*\)', r'\1', heading).replace('`', '')
    slug = re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    found.append(slug if slug not in found else f'{slug}-{found.count(slug)}')
  return found


def broken(path, text):
  """Relative links of a page that lead nowhere."""
  lost = []
  for link in LINK.findall(re.sub(r'`[^`\n]*`', '', text)):
    if re.match(r'\w+:', link):
      continue
    target, _, anchor = link.partition('#')
    there = (path.parent / target).resolve() if target else path
    if not there.exists() or (anchor and there.suffix == '.md' and anchor not in anchors(text_of(there))):
      lost.append(link)
  return lost


@pytest.mark.parametrize('name', [name for name in pages() if name.endswith('.md')])
def test_lines_can_be_read(name):
  """But for tables and where they come from, which a page has as they are."""
  lines = FENCED.sub('', pages()[name].read_text()).splitlines()
  assert [x for x in lines if len(x) > 120 and not re.match(r' *(\||<small>)', x)] == []


@pytest.mark.parametrize('name', pages())
def test_links_lead_somewhere(name):
  path = pages()[name]
  assert broken(path, text_of(path)) == []


def test_broken_links_are_found(tmp_path):
  (tmp_path / 'other.md').write_text('# A `name`, and more\n\n## Twice\n\n## Twice\n')
  page = tmp_path / 'page.md'
  good = 'see [a](other.md), [b](other.md#a-name-and-more), [c](other.md#twice-1), [d](https://x.org/y), `[e](f)`'
  assert broken(page, good) == []
  assert broken(page, '[a](none.md) ![b](no.png) [c](other.md#thrice)') == ['none.md', 'no.png', 'other.md#thrice']


def test_every_room_has_a_page():
  assert {p.stem for p in (ROOT / 'docs/reference').glob('*.md')} - {'index'} == set(ROOMS)
  for room in ROOMS:
    assert f'<!-- room dct_jax.{room} -->' in (ROOT / f'docs/reference/{room}.md').read_text()


def test_the_readme_is_short():
  lines = (ROOT / 'README.md').read_text().splitlines()
  assert len(lines) <= 150 and max(map(len, lines)) <= 120
  assert 'Dynamic Communication Thresholding' in lines[2]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec('sphinx') is None, reason="Sphinx is in the extra 'docs'")
def test_the_site_is_built(tmp_path):
  """`make docs`: warnings are errors, and links inside the site are among them."""
  done = subprocess.run(
      [sys.executable, '-m', 'sphinx', '-nWq', '--keep-going', '-c', 'docs', '-d', tmp_path / 'trees', '.',
       tmp_path / 'site'], cwd=ROOT, capture_output=True, text=True, timeout=600)
  assert done.returncode == 0, done.stderr
  transforms = (tmp_path / 'site/docs/reference/transforms.html').read_text()
  assert 'dct_jax.transforms.dct_dp' in transforms and 'dct_jax.transforms.averaging' in transforms
  assert (tmp_path / 'site/colab/quickstart.html').read_text().count('<img') > 0
  assert (tmp_path / 'site/index.html').exists()
