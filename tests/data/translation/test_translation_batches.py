"""Batches of pairs: every pair once in an epoch, the same from any step, in shares, and in few shapes."""

import itertools

import numpy as np
import pytest

from dct_jax.data.translation import batching as tb
from dct_jax.data.translation import buckets, ragged
from dct_jax.data.translation import pairs as translation
from dct_jax.data.translation.subwords import BOS, EOS, PAD

ROWS = 1003


def make_pairs(rows=ROWS, seed=0):
  """Pairs that say which they are, on both sides: their first token is 10 plus their number."""
  rng = np.random.default_rng(seed)
  source = np.minimum(2 + rng.geometric(0.1, rows), 40)
  target = np.clip(source + rng.integers(-3, 4, rows), 2, 40)
  fill = lambda length, i: [10 + i, *rng.integers(4, 10, length - 2), EOS]
  return translation.Pairs(*(ragged.from_rows([fill(n, i) for i, n in enumerate(lengths)], lengths)
                             for lengths in (source, target)))


PAIRS = make_pairs()
BUCKETS = buckets.choose(PAIRS, 800, multiple=4)


def first(steps, **options):
  return list(itertools.islice(tb.batches(PAIRS, BUCKETS, **{'seed': 5, **options}), steps))


def pairs_of(some):
  """Numbers of the pairs in batches, by the source."""
  tokens = np.concatenate([b['source'][:, 0] for b in some])
  return tokens[tokens != EOS] - 10


def equal(some, others):
  for a, b in zip(some, others, strict=True):
    assert a.keys() == b.keys()
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def test_rows():
  for batch in first(BUCKETS.steps):
    shape = buckets.Shape(*batch['source'].shape, batch['target_in'].shape[1])
    assert shape in BUCKETS.shapes
    assert {k: v.dtype for k, v in batch.items()} == {
        'source': np.int32, 'target_in': np.int32, 'target_out': np.int32, 'weight': np.float32,
        'seed': np.uint32}
    for i in range(shape.rows):
      source, before, after, weight = (batch[k][i] for k in ('source', 'target_in', 'target_out', 'weight'))
      if source[0] == EOS:  # to spare
        assert before[0] == BOS and not before[1:].any() and not after.any() and not weight.any()
        assert not source[1:].any()
        continue
      number = source[0] - 10
      whole = PAIRS.source.row(number), PAIRS.target.row(number)
      np.testing.assert_array_equal(source, np.pad(whole[0], (0, shape.source - len(whole[0]))))
      np.testing.assert_array_equal(after, np.pad(whole[1], (0, shape.target - len(whole[1]))))
      np.testing.assert_array_equal(
          before, np.pad([BOS, *whole[1][:-1]], (0, shape.target - len(whole[1]))))
      np.testing.assert_array_equal(weight > 0, after != PAD)


def test_the_mean_over_rows_is_the_mean_over_tokens():
  rng = np.random.default_rng(0)
  for batch in first(BUCKETS.steps):
    loss = rng.random(batch['weight'].shape)
    wanted = loss[batch['target_out'] != PAD].mean()
    assert np.mean(np.sum(batch['weight'] * loss, axis=1)) == pytest.approx(wanted, rel=1e-5)


def test_an_epoch_has_each_pair_once_and_an_order_of_its_own():
  epochs = [pairs_of(first(BUCKETS.steps, step=e * BUCKETS.steps)) for e in range(4)]
  for epoch in epochs:
    np.testing.assert_array_equal(np.sort(epoch), np.arange(ROWS))
  assert len({tuple(e) for e in epochs}) == 4
  shapes = [tuple(b['source'].shape for b in first(BUCKETS.steps, step=e * BUCKETS.steps)) for e in range(4)]
  assert len(set(shapes)) == 4  # nor do shapes come in the same order


def test_one_batch_at_most_has_rows_to_spare():
  spare = [np.sum(b['source'][:, 0] == EOS) for b in first(BUCKETS.steps)]
  assert np.count_nonzero(spare) <= 1


def test_seeds():
  equal(first(3), first(3))
  assert not np.array_equal(pairs_of(first(BUCKETS.steps)), pairs_of(first(BUCKETS.steps, seed=6)))
  drawn = np.concatenate([b['seed'] for b in first(2 * BUCKETS.steps)])
  assert len(np.unique(drawn)) == len(drawn)
  assert not np.isin(drawn, np.concatenate([b['seed'] for b in first(BUCKETS.steps, seed=6)])).any()


@pytest.mark.parametrize('step', [1, BUCKETS.steps - 1, BUCKETS.steps, 3 * BUCKETS.steps + 5])
def test_resumes_at_any_step(step):
  equal(first(step + 4)[step:], first(4, step=step))


@pytest.mark.parametrize('processes', [2, 4])
def test_shares_make_up_the_batch(processes):
  shares = [first(2 * BUCKETS.steps, process=p, processes=processes) for p in range(processes)]
  joined = [{k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
            for parts in zip(*shares, strict=True)]
  equal(joined, first(2 * BUCKETS.steps))


@pytest.mark.parametrize('count', [1, 3])
def test_evaluation_has_each_pair_once(count):
  chosen = buckets.choose(PAIRS, 800, multiple=4, count=count)
  found = list(tb.in_order(PAIRS, chosen))
  assert len(found) == chosen.steps
  positions = np.concatenate([p for p, _ in found])
  np.testing.assert_array_equal(np.sort(positions[positions >= 0]), np.arange(ROWS))
  np.testing.assert_array_equal(positions[positions >= 0], pairs_of([b for _, b in found]))
  if count == 1:
    assert np.all(np.diff(positions[positions >= 0]) == 1)
  shares = zip(*(tb.in_order(PAIRS, chosen, process=p, processes=2) for p in range(2)), strict=True)
  equal([{'at': np.concatenate([a[0], b[0]]), 'source': np.concatenate([a[1]['source'], b[1]['source']])}
         for a, b in shares], [{'at': p, 'source': b['source']} for p, b in found])
  shapes = {b['source'].shape for _, b in found}
  assert len(shapes) <= count


@pytest.mark.parametrize('change', [
    {'step': -1}, {'processes': 3}, {'process': 2, 'processes': 2}, {'process': -1}, {'processes': 0},
    {'pairs': make_pairs(10)}])
def test_bad_arguments_at_once(change):
  with pytest.raises(ValueError, match='must'):
    tb.batches(**{'pairs': PAIRS, 'buckets': BUCKETS, 'seed': 0, **change})


@pytest.mark.parametrize(('tokens', 'multiple', 'count'), [(800, 4, 5), (41, 1, 3), (5000, 64, 6), (160, 4, 2),
                                                           (10**6, 4, 4)])
def test_shapes(tokens, multiple, count):
  chosen = buckets.choose(PAIRS, tokens, multiple=multiple, count=count)
  assert 1 <= len(chosen.shapes) <= count
  for shape in chosen.shapes:
    assert shape.rows >= multiple and shape.rows % multiple == 0
    assert shape.rows * max(shape.source, shape.target) <= tokens
  for side, name in zip(PAIRS, ('source', 'target'), strict=True):
    widths = np.array([getattr(shape, name) for shape in chosen.shapes])
    assert np.all(np.diff(widths) >= 0)
    assert np.all(side.lengths <= widths[chosen.bucket])
    assert widths[-1] == side.lengths.max()
  size = sum(b['source'].size + b['target_out'].size for _, b in tb.in_order(PAIRS, chosen))
  real = sum(len(side.tokens) for side in PAIRS)
  assert chosen.waste == pytest.approx(1 - real / size)


def test_edges_are_the_best_ones():
  """Against all edges there are, for small buckets; batches of a row, so that none moves on."""
  few = make_pairs(60, seed=3)
  chosen = buckets.choose(few, 40, count=3)
  lengths = np.stack([side.lengths for side in few])
  key = lengths.max(axis=0)

  def cost(edges):
    bucket = np.searchsorted(edges, key)
    return sum(np.sum(bucket == k) * sum(lengths[:, key <= e].max(axis=1)) for k, e in enumerate(edges))

  inner = range(key.min(), key.max())
  best = min(cost((*some, key.max())) for n in range(3) for some in itertools.combinations(inner, n))
  widths = np.array([s.source + s.target for s in chosen.shapes])
  assert widths[chosen.bucket].sum() == best


def test_more_shapes_waste_less():
  waste = [buckets.choose(PAIRS, 200, count=n).waste for n in (1, 2, 4, 8)]
  assert waste == sorted(waste, reverse=True)
  assert str(BUCKETS).endswith(f'{BUCKETS.waste:.1%} of the tokens are filling')


def test_equal_lengths_are_one_shape():
  same = ragged.from_rows([[10, 11, EOS]] * 9, [3] * 9)
  chosen = buckets.choose(translation.Pairs(same, same), 12, multiple=2)
  assert chosen.shapes == ((4, 3, 3),) and chosen.batches == (3,)
  assert chosen.waste == pytest.approx(1 - 9 / 12)


def test_fewer_lengths_than_shapes():
  side = ragged.from_rows([[10, EOS], [11, 12, EOS]] * 6, [2, 3] * 6)
  chosen = buckets.choose(translation.Pairs(side, side), 6, multiple=2, count=5)
  assert chosen.shapes == ((2, 2, 2), (2, 3, 3)) and chosen.batches == (3, 3)
  assert chosen.waste == 0


@pytest.mark.parametrize(('change', 'message'), [
    ({'tokens': 39}, 'longest pair, 40 tokens'), ({'tokens': 100, 'multiple': 4}, 'longest pair'),
    ({'count': 0}, 'there must be'), ({'multiple': 0}, 'there must be')])
def test_bad_shapes(change, message):
  with pytest.raises(ValueError, match=message):
    buckets.choose(PAIRS, **{'tokens': 800, **change})


def test_multi30k_itself(shared_data, tmp_path):
  pytest.importorskip('sentencepiece')
  if not (shared_data / 'multi30k').is_dir():
    pytest.skip('Multi30k is not here: DCT_JAX_DATA may name a directory that has multi30k/ in it')
  sets = translation.load(shared_data / 'multi30k', tmp_path)
  assert [r.kept for r in sets.reports] == [29_000, 1014, 1000]
  chosen = buckets.choose(sets.train, 4096, multiple=8)
  assert len(chosen.shapes) <= 5 and chosen.waste < 0.2
  count = sum(np.sum(b['source'][:, 1] != PAD)
              for b in itertools.islice(tb.batches(sets.train, chosen, 0), chosen.steps))
  assert count == 29_000
