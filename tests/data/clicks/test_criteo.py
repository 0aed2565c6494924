"""Criteo's format: ids and numbers computed by hand, lines that are not of it, interruptions, and real rows."""

import collections
import concurrent.futures
import gzip
import lzma
import math
import os
import time

import numpy as np
import pytest
from marks import slow

from dct_jax.data import clicks, text
from dct_jax.data.clicks import criteo


def line(label=0, integers=(), categories=()):
  fields = [label, *integers, *[''] * (13 - len(integers)), *categories, *[''] * (26 - len(categories))]
  return '\t'.join(str(x) for x in fields).encode() + b'\n'


A, B, C = '0000000a', 'ffffffff', '05db9164'
ROWS = [line(1, [3, -2, ''], [B, C, '0']), line(0, [0, 5], [A, '', A]), line(0, ['', 7], [B, '', B]),
        line(1, [99], [A, A]), line(0, [1], [C]), line(0, [2], [B]), line(1, [4, 1], [C, B]),
        line(0, [9], ['d', A])]


def prepare(path, **options):
  return criteo.prepare(path, path.parent / 'cache', **{'progress': False, 'min_count': 1, **options})


def equal(one, other):
  assert one.vocabularies == other.vocabularies
  for a, b in zip([*one.train, *one.test], [*other.train, *other.test], strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.fixture
def log(tmp_path):
  path = tmp_path / 'log.tsv'
  path.write_bytes(b''.join(ROWS))
  return path


@pytest.fixture
def parsed(monkeypatch):
  """Blocks that were parsed since the test began."""
  blocks, original = [], criteo._parse
  monkeypatch.setattr(criteo, '_parse', lambda block: blocks.append(block) or original(block))
  return blocks


def test_by_frequency(log):
  sets = prepare(log, test_share=0.25, min_count=2)
  assert sets.train.label.tolist() == [1, 0, 0, 1, 0, 0] and sets.test.label.tolist() == [1, 0]
  # C1 of the six training rows: B three times, A twice, C once, which is too rare; C2: all are.
  assert sets.train.categories[:, 0].tolist() == [1, 2, 1, 2, 0, 1]
  assert sets.test.categories[:, 0].tolist() == [0, 0]
  assert not sets.train.categories[:, 1:].any()
  assert sets.vocabularies == (3, *[1] * 25)
  sets = prepare(log, test_share=0.25)
  # C2: A and C once each, the smaller value first; B is in the test set only. C3: 0 is as if it were missing.
  assert sets.train.categories[:, 1].tolist() == [2, 0, 0, 1, 0, 0]
  assert sets.test.categories[:, 1].tolist() == [0, 1]
  assert sets.train.categories[:3, 2].tolist() == [0, 1, 2]
  assert sets.vocabularies == (4, 3, 3, *[1] * 23)
  assert (sets.name, sets.best_loss) == ('criteo', None)


def test_integers(log):
  dense = prepare(log).train.dense
  assert dense.shape == (7, 13) and dense.dtype == np.float32
  np.testing.assert_array_equal(dense[:4, 0], np.array([math.log(4), 0, 0, math.log(100)], np.float32))
  np.testing.assert_array_equal(dense[:4, 1], np.array([0, math.log(6), math.log(8), 0], np.float32))
  assert not dense[:, 2:].any()


def test_by_hash(log):
  sets = prepare(log, vocabulary='hash', buckets=7)
  wanted = [int(x, 16) % 7 for x in (B, A, B, A, C, B, C)]
  assert sets.train.categories[:, 0].tolist() == wanted
  assert sets.train.categories[:3, 2].tolist() == [0, 10 % 7, (2**32 - 1) % 7]
  assert sets.test.categories[0, :3].tolist() == [13 % 7, 10 % 7, 0]
  assert sets.vocabularies == (7, 7, 7, *[1] * 23)
  assert sets.train.categories.dtype == np.int32


@pytest.mark.parametrize('vocabulary', ['frequency', 'hash'])
def test_another_file_to_test_on(log, tmp_path, vocabulary):
  (tmp_path / 'mine.tsv').write_bytes(b''.join([line(1, [3], ['', '', '', A]), *ROWS[6:]]))
  options = {'vocabulary': vocabulary, 'test': tmp_path / 'mine.tsv'}
  mine, own = prepare(log, test_share=0.25, **options), prepare(log, test_share=0.25, vocabulary=vocabulary)
  # What is trained with is the same, and so are the ids of values; the fourth category is in the other file alone.
  for a, b in zip(mine.train, own.train, strict=True):
    np.testing.assert_array_equal(a, b)
  for a, b in zip(mine.test, own.test, strict=True):
    np.testing.assert_array_equal(a[1:], b)
  assert mine.test.label.tolist() == [1, 1, 0]
  assert (mine.test.categories.max(axis=0) < mine.vocabularies).all()
  whole = prepare(log, test_share=0.0, **options)
  assert len(whole.train.label) == 8 and len(whole.test.label) == 3
  equal(prepare(log, test_share=0.0, **options), whole)  # from the cache
  assert not list((tmp_path / 'cache').glob('*parts*'))


def test_a_bad_file_to_test_on(log, tmp_path):
  (tmp_path / 'bad.tsv').write_bytes(ROWS[0] + b'nothing\n')
  with pytest.raises(ValueError, match=r'bad.tsv, line 2: expected'):
    prepare(log, test=tmp_path / 'bad.tsv')
  assert len(prepare(log, test=tmp_path / 'bad.tsv', max_malformed=1).test.label) == 1
  with pytest.raises(ValueError, match=r'bad.tsv has 1 malformed lines'):
    prepare(log, test=tmp_path / 'bad.tsv')  # although what is kept exists by now
  (tmp_path / 'empty.tsv').write_bytes(b'')
  with pytest.raises(ValueError, match='no rows to test on'):
    prepare(log, test=tmp_path / 'empty.tsv')
  with pytest.raises(FileNotFoundError, match=r"no file 'nowhere.tsv' to test on"):
    clicks.load(str(log), tmp_path / 'cache', test='nowhere.tsv')
  with pytest.raises(ValueError, match='needs data of its kind'):
    clicks.load('', tmp_path / 'cache', test=str(log))


@pytest.mark.parametrize('change', [
    gzip.compress, lzma.compress, lambda data: data.replace(b'\n', b'\r\n'), lambda data: data[:-1],
    lambda data: b'\n' + data + b'  \n\n', lambda data: data.upper()],
    ids=['gz', 'xz', 'crlf', 'no_newline', 'blank_lines', 'upper'])
def test_the_same_rows_in_another_file(log, tmp_path, change):
  (tmp_path / 'other').write_bytes(change(log.read_bytes()))
  equal(prepare(tmp_path / 'other'), prepare(log))


@pytest.mark.parametrize('wrong', [
    ROWS[0].replace(b'\t', b'', 1), b'\t' + ROWS[0], b'nothing\n', b'\t' * 39 + b'\n', line(2), line('1.0'),
    line('-1'), line(0, ['x']), line(0, ['1.5']), line(0, ['+3']), line(0, [' 3']), line(0, [10**19]),
    line(0, [], ['xyz']), line(0, [], ['123456789']), line(0, [], ['-1']), line(0, [], ['+1']),
    line(0, [], ['0x1']), line(0, [], ['"a"']), line(0, [], ['é'])])
def test_malformed_lines(tmp_path, wrong, caplog):
  path = tmp_path / 'log.tsv'
  path.write_bytes(b''.join([*ROWS[:2], wrong, *ROWS[2:5], wrong, *ROWS[5:]]))
  with pytest.raises(ValueError, match=r'line 3: expected .*limit: 0'):
    prepare(path)
  with pytest.raises(ValueError, match=r'line 7: expected .*limit: 1'):
    prepare(path, max_malformed=1)
  sets = prepare(path, max_malformed=2)
  np.testing.assert_array_equal(np.concatenate([sets.train.label, sets.test.label]), [1, 0, 0, 1, 0, 0, 1, 0])
  assert 'skipped 2 malformed lines, the first of them is 3' in caplog.text
  with pytest.raises(ValueError, match=r'2 malformed lines, the first of them is 3, got max_malformed=1'):
    prepare(path, max_malformed=1)  # although what is kept exists by now


@pytest.mark.parametrize('content', [b'', b'\n \n'])
def test_nothing_to_read(tmp_path, content):
  (tmp_path / 'log').write_bytes(content)
  with pytest.raises(ValueError, match='has 0 rows'):
    prepare(tmp_path / 'log')


def test_bytes_that_are_no_text(tmp_path):
  (tmp_path / 'log').write_bytes(b''.join(ROWS) + ROWS[0].replace(b'\t', b'\xff\t', 1))
  with pytest.raises(ValueError, match='line 9'):
    prepare(tmp_path / 'log')


@pytest.mark.parametrize('block', [1, 60, 100, 200])
def test_in_blocks(log, monkeypatch, parsed, block):
  whole = prepare(log)
  monkeypatch.setattr(criteo, 'BLOCK', block)
  parsed.clear()
  equal(prepare(log), whole)
  longest = max(len(row) for row in ROWS)
  assert max(len(b) for b in parsed) < block + longest  # what memory holds does not grow with the file
  assert b''.join(parsed) == log.read_bytes()


@pytest.mark.parametrize('counted', [1, 2, 5])
def test_counting_in_ranges(log, monkeypatch, counted):
  whole = prepare(log)
  monkeypatch.setattr(criteo, 'COUNTED', counted)
  monkeypatch.setattr(criteo, 'VERSION', counted + 100)  # another key: not the same cache
  equal(prepare(log), whole)


def test_goes_on_after_an_interruption(log, monkeypatch, parsed, tmp_path):
  expected = prepare(log)
  monkeypatch.setattr(criteo, 'BLOCK', 100)
  complete, budget = criteo._parse, iter(range(2))

  def interrupted(block):
    if next(budget, None) is None:
      raise KeyboardInterrupt
    return complete(block)

  monkeypatch.setattr(criteo, '_parse', interrupted)
  with pytest.raises(KeyboardInterrupt):
    prepare(log)
  monkeypatch.setattr(criteo, '_parse', complete)
  parsed.clear()
  equal(prepare(log), expected)
  blocks = list(text.blocks(log, 100))
  assert len(blocks) > 3
  assert parsed == blocks[2:]
  kept = [p.name for p in (tmp_path / 'cache').iterdir()]
  assert not any(name.endswith(('.parts', '.partial')) for name in kept)


@pytest.mark.parametrize('at', ['save', 'replace', 'lookup'])
def test_whole_or_not_at_all(log, monkeypatch, parsed, at):
  """Stopped while a part is written, before it gets its name, or while the last arrays are filled."""
  def stop(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    if at == 'save':
      patch.setattr(np, 'save', stop)
    elif at == 'replace':
      patch.setattr(criteo.pathlib.Path, 'replace', stop)
    else:
      patch.setattr(criteo, 'lookup', stop)
    with pytest.raises(KeyboardInterrupt):
      prepare(log)
  parsed.clear()
  sets = prepare(log)
  assert len(parsed) == (0 if at == 'lookup' else 1)
  assert len(sets.train.label) == 7


def test_stopped_while_it_cleans_up(log, monkeypatch, parsed):
  def stop(directory):
    (directory / '000000/label.npy').unlink()
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(criteo.shutil, 'rmtree', lambda path, ignore_errors=False: ignore_errors or stop(path))
    with pytest.raises(KeyboardInterrupt):
      prepare(log)
  prepare(log)
  assert len(parsed) == 1
  assert len(prepare(log, min_count=2).train.label) == 7


def test_kept_for_the_same_file_and_options_only(log, parsed):
  first = prepare(log)
  equal(prepare(log, buckets=5), first)  # not an option of this vocabulary
  assert len(parsed) == 1
  assert prepare(log, min_count=2).vocabularies != first.vocabularies
  assert prepare(log, vocabulary='hash', buckets=5).vocabularies[0] == 5
  assert len(prepare(log, test_share=0.5).test.label) == 4
  assert len(parsed) == 4
  log.write_bytes(b''.join(ROWS[::-1]))
  os.utime(log, ns=(0, 12345))  # a clock may be too coarse to tell
  assert prepare(log).train.label.tolist() == [0, 1, 0, 0, 1, 0, 0]
  equal(prepare(log), prepare(log))
  assert isinstance(first.train.dense, np.memmap)


def test_processes_wait_for_the_first(log, parsed):
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    sets = list(pool.map(lambda _: prepare(log), range(3)))
  assert len(parsed) == 1
  equal(sets[0], sets[2])


def test_days(log):
  sets = prepare(log, days=[3, 2, 3])
  assert (len(sets.train.label), len(sets.test.label)) == (5, 3)
  with pytest.raises(ValueError, match='has 8 rows, the days have 7'):
    prepare(log, days=[3, 4])


@pytest.mark.parametrize('options', [
    {'vocabulary': 'magic'}, {'min_count': 0}, {'buckets': 0}, {'test_share': 1.0}, {'test_share': -0.1},
    {'days': [8]}, {'days': [8, 0]}])
def test_bad_options(log, options):
  with pytest.raises(ValueError, match='must'):
    prepare(log, **options)


def test_real_rows(shared_data, tmp_path):
  path = shared_data / 'criteo/kaggle_15897.tsv.xz'
  sets = clicks.load(str(path), tmp_path, min_count=5, progress=False)
  with lzma.open(path, 'rt') as file:
    rows = [row.rstrip('\n').split('\t') for row in file]
  assert len(rows) == 15_897 and len(sets.test.label) == 2_271
  assert abs(sets.train.label.mean() - 0.237) < 0.01
  train = len(sets.train.label)
  for field in range(26):
    column = [row[14 + field] for row in rows]
    counts = collections.Counter(value for value in column[:train] if value)
    frequent = sorted((value for value in counts if counts[value] >= 5), key=lambda v: (-counts[v], v))
    ids = {value: i for i, value in enumerate(frequent, 1)}
    assert sets.vocabularies[field] == len(ids) + 1
    assert sets.train.categories[:, field].tolist() == [ids.get(v, 0) for v in column[:train]]
    assert sets.test.categories[:, field].tolist() == [ids.get(v, 0) for v in column[train:]]
  wanted = [[math.log1p(max(int(x or 0), 0)) for x in row[1:14]] for row in rows[train:]]
  np.testing.assert_allclose(sets.test.dense, wanted, rtol=1e-6)


@pytest.mark.parametrize('kind', ['frequency', 'hash'])
def test_empty_columns(shared_data, tmp_path, kind):
  path = shared_data / 'criteo/kaggle_45k_reduced.tsv.xz'
  sets = criteo.prepare(path, tmp_path, vocabulary=kind, buckets=1000, progress=False)
  assert len(sets.train.label) + len(sets.test.label) == 45_840
  filled = [i for i, size in enumerate(sets.vocabularies, 1) if size > 1]
  assert filled == [6, 9, 14, 17, 20, 22, 23]


@pytest.mark.parametrize('pack', [gzip.compress, *slow(lzma.compress)])
def test_a_file_that_is_cut_off_is_named_and_leaves_nothing(tmp_path, monkeypatch, pack):
  monkeypatch.setattr(criteo, 'BLOCK', 1000)
  path, packed = tmp_path / 'log.tsv.packed', pack(b''.join(np.random.default_rng(0).permutation(ROWS * 400)))
  path.write_bytes(packed[:len(packed) // 2])
  with pytest.raises(text.DamagedError, match='log.tsv.packed cannot be unpacked'):
    prepare(path)
  assert not list((tmp_path / 'cache').iterdir())
  path.write_bytes(packed)
  assert len(prepare(path).train.label) > 0
  assert not list((tmp_path / 'cache').glob('*.lock'))


def test_locks_are_one_at_a_time_although_their_file_goes(tmp_path):
  """Whoever waits for a file that is removed meanwhile takes the new one."""
  inside, most = [], []

  def enter(number):
    with criteo._locked(tmp_path / 'lock'):
      inside.append(number)
      most.append(len(inside))
      time.sleep(0.002)
      inside.remove(number)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(enter, range(40)))
  assert len(most) == 40 and max(most) == 1
  assert not list(tmp_path.iterdir())
