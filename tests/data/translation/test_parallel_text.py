"""Two files of lines: packed or not, found by their names, refused when they do not belong together."""

import gzip
import lzma

import pytest

from dct_jax.data.translation import parallel_text
from dct_jax.data.translation.parallel_text import Lines


def write(directory, **files):
  """Files whose names have _ for a dot."""
  directory.mkdir(exist_ok=True)
  for name, lines in files.items():
    (directory / name.replace('__', '-').replace('_', '.')).write_text(''.join(x + '\n' for x in lines))
  return directory


def test_line_ends(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes('\ufeffeins\r\nzwei\u2028drei\x85vier\x0cfünf\n\n sechs'.encode())
  assert parallel_text.read_lines(path) == ['eins', 'zwei\u2028drei\x85vier\x0cfünf', '', ' sechs']


@pytest.mark.parametrize('pack', [gzip.compress, lzma.compress])
def test_packed(tmp_path, pack):
  path = tmp_path / 'a'
  path.write_bytes(pack(b'eins\nzwei\n' * 100))
  assert parallel_text.read_lines(path) == ['eins', 'zwei'] * 100
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(ValueError, match='a cannot be unpacked'):
    parallel_text.read_lines(path)


def test_not_text(tmp_path):
  (tmp_path / 'a').write_bytes(b'eins\nzwei\nd\xffrei\n')
  with pytest.raises(ValueError, match='a, line 3: this is not UTF-8'):
    parallel_text.read_lines(tmp_path / 'a')


def test_files_that_do_not_belong_together(tmp_path):
  write(tmp_path, a_de=['x'] * 3, a_en=['y'] * 2, b_de=[], b_en=[])
  with pytest.raises(ValueError, match=r'a\.de has 3 lines and .*a\.en has 2'):
    parallel_text.read(tmp_path / 'a.de', tmp_path / 'a.en')
  with pytest.raises(ValueError, match=r'b\.de has 0 lines and .*b\.en has 0'):
    parallel_text.read(tmp_path / 'b.de', tmp_path / 'b.en')
  with pytest.raises(FileNotFoundError, match=r'c\.en'):
    parallel_text.read(tmp_path / 'a.de', tmp_path / 'c.en')


def test_a_directory(tmp_path):
  write(tmp_path, train_de=['a'], train_en=['b'], val_de=['c'], val_en=['d'], test2016_de=['e'],
        test2016_en=['f'], train_fr=['g'])
  (tmp_path / 'val.en.xz').write_bytes(lzma.compress(b'd\n'))
  (tmp_path / 'val.en').unlink()
  sets = parallel_text.load(tmp_path)
  assert sets == (Lines(['a'], ['b']), Lines(['c'], ['d']), Lines(['e'], ['f']), tmp_path.name)
  assert parallel_text.load(tmp_path, 'en', 'de').train == Lines(['b'], ['a'])
  write(tmp_path, test2017_de=['h'], test2017_en=['i'])
  with pytest.raises(ValueError, match=r'several test sets, test2016, test2017: name one'):
    parallel_text.load(tmp_path)
  assert parallel_text.load(tmp_path, test='test2017').test == Lines(['h'], ['i'])


def test_what_is_missing(tmp_path):
  with pytest.raises(FileNotFoundError, match='no directory .*nowhere'):
    parallel_text.load(tmp_path / 'nowhere')
  with pytest.raises(FileNotFoundError, match='no test and train and valid set'):
    parallel_text.load(tmp_path)
  write(tmp_path, train_de=['a'], train_en=['b'], test_de=['e'], test_en=['f'])
  with pytest.raises(FileNotFoundError, match=r'no valid set: no file like valid\.de'):
    parallel_text.load(tmp_path)
  write(tmp_path, valid_de__en_de=['a'])
  with pytest.raises(FileNotFoundError, match=r'no valid\.de-en\.en'):
    parallel_text.load(tmp_path)


def test_a_single_set_is_split(tmp_path, caplog):
  source = [f'satz {i % 700}' for i in range(1000)]
  write(tmp_path, valid_de__en_de=source, valid_de__en_en=[f'line {i}' for i in range(1000)])
  sets = parallel_text.load(tmp_path)
  assert 'has only valid.de-en' in caplog.text
  assert sets.name == f'{tmp_path.name}: valid.de-en, split'
  check_split(sets, 1000)
  for part in sets[:3]:
    numbers = [int(line.split()[1]) for line in part.target]
    assert numbers == sorted(numbers)
    assert part.source == [source[i] for i in numbers]
  assert parallel_text.load(tmp_path) == sets
  with pytest.raises(ValueError, match='2 lines are too few to split'):
    parallel_text.split(Lines(['a', 'b'], ['c', 'd']), 'tiny')


def check_split(sets, rows):
  train, valid, test = (set(part.source) for part in sets[:3])
  assert not train & valid and not train & test and not valid & test
  counts = [len(part.source) for part in sets[:3]]
  assert sum(counts) == rows
  assert counts[0] > 0.75 * rows and min(counts) > 0.07 * rows


def test_iwslt_itself(shared_data):
  if not (shared_data / 'iwslt14').is_dir():
    pytest.skip("IWSLT'14 is not here: DCT_JAX_DATA may name a directory that has iwslt14/ in it")
  check_split(parallel_text.load(shared_data / 'iwslt14'), 6969)
