"""Rules of the native sources: which folder may know which, handlers in one place, numbers that Python has, too."""

import pathlib
import re

import pytest

from dct_jax.wire import exchanges, header
from dct_jax.wire import format as wire_format

SOURCE = pathlib.Path(__file__).parents[2] / 'dct_jax/native/src'
FILES = sorted([*SOURCE.rglob('*.h'), *SOURCE.rglob('*.cc')])
# A folder may include itself and the folders listed with it.
ALLOWED = {'common': set(), 'kernels': {'common'}, 'transport': {'common', 'kernels'},
           'module.cc': {'common', 'kernels', 'transport'}}


@pytest.mark.parametrize('path', FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_includes_point_one_way(path):
  folder = path.relative_to(SOURCE).parts[0]
  for name in re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE):
    other = name.split('/')[0]
    if other == 'xla':
      continue
    assert (SOURCE / name).is_file(), f'{name} is not named from the root of the sources'
    assert other == folder or other in ALLOWED[folder], f'{folder} must not include {name}'


def test_every_handler_is_defined_once_and_listed():
  """A missing one fails when the library is loaded, a forgotten one when somebody calls it."""
  listed = re.findall(r'each\((\w+)\)', (SOURCE / 'module.cc').read_text())
  defined = [name for path in FILES if path.suffix == '.cc'
             for name in re.findall(r'^DCT_HANDLER\((\w+),', path.read_text(), re.MULTILINE)]
  assert sorted(listed) == sorted(defined)
  assert len(set(listed)) == len(listed) > 10


TEXT = re.sub(r'//.*', '', (SOURCE / 'common/wire.h').read_text())


def constant(name):
  return int(re.search(rf'\b{name} = (\w+)', TEXT)[1], 0)


def members(enum):
  """Of an enum in C++, {name without its k: number}."""
  body = re.search(rf'enum (?:class )?{enum} : \w+ {{(.*?)}}', TEXT, re.DOTALL)[1]
  return {name: int(number) for name, number in re.findall(r'k(\w+) = (\d+)', body)}


def camel(name):
  return ''.join(part.capitalize() for part in name.split('_'))


def test_numbers_of_messages_are_those_of_python():
  assert constant('kMagic') == wire_format.MAGIC
  assert constant('kHeader') == wire_format.HEADER
  assert constant('kNonfinite') == header.NONFINITE
  assert constant('kFrameMagic') == exchanges.FRAME_MAGIC
  assert (constant('kFrameHead'), constant('kFrameTail')) == (exchanges.FRAME_HEAD, exchanges.FRAME_TAIL)
  assert members('IndexCode') == {
      'None': wire_format.NO_INDICES, 'Auto': wire_format.AUTO,
      **{camel(name): code for name, code in wire_format.INDEX_CODES.items()}}
  assert members('Values') == {camel(name): code for name, code in wire_format.VALUE_CODES.items()}
  assert {bits: constant(f'kQsgd{bits}Code') for bits in wire_format.QSGD_CODES} == wire_format.QSGD_CODES
  assert constant('kThreeLcCode') == wire_format.THREE_LC_CODE


def test_numbers_of_exchanges_are_those_of_python():
  assert members('Algorithm') == {camel(a.name): a.value for a in exchanges.Algorithm}
  assert constant('kOneRoundBytes') == exchanges.ONE_ROUND_BYTES
  assert members('Op') == {camel(o.name): o.value for o in exchanges.Op}


def test_places_of_header_words_are_those_of_python():
  places = dict(re.findall(r'k(\w+) = (\d+)', re.search(r'namespace word {(.*?)}', TEXT, re.DOTALL)[1]))
  words = range(wire_format.HEADER)
  read = header.read_headers(MarkedWords(words))
  assert [int(places[name]) for name in ('Length', 'Wanted', 'Count')] == [read.length, read.wanted, read.entries]
  assert sorted(map(int, places.values())) == list(words)


class MarkedWords:
  """Stands for a header in which each word is its own place."""

  def __init__(self, words):
    self.words = words

  def __getitem__(self, at):
    return self.words[at[-1]]
