"""The loader on files made here, and on CIFAR-10 itself where it is at hand; crops."""

import gzip
import itertools
import lzma

import numpy as np
import pytest

from dct_jax.data.images import cifar


def rows_of(n, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 10, n).astype(np.uint8), rng.integers(0, 256, (n, 3, 32, 32), np.uint8)


def pack_rows(labels, images):
  return b''.join(bytes([y]) + x.tobytes() for y, x in zip(labels, images, strict=True))


@pytest.mark.parametrize(('pack', 'suffix'), [(bytes, ''), (gzip.compress, '.gz'), (lzma.compress, '.xz')])
def test_files_plain_and_packed(tmp_path, pack, suffix):
  labels, images = rows_of(7)
  (tmp_path / f'data_batch_1.bin{suffix}').write_bytes(pack(pack_rows(labels[:4], images[:4])))
  (tmp_path / f'data_batch_2.bin{suffix}').write_bytes(pack(pack_rows(labels[4:6], images[4:6])))
  (tmp_path / f'test_batch.bin{suffix}').write_bytes(pack(pack_rows(labels[6:], images[6:])))
  data = cifar.load(tmp_path)
  x = images.transpose(0, 2, 3, 1).astype(np.float64)
  want = (x - x[:6].mean((0, 1, 2))) / x[:6].std((0, 1, 2))
  np.testing.assert_allclose(data['train']['x'], want[:6], atol=1e-5)
  np.testing.assert_allclose(data['test']['x'], want[6:], atol=1e-5)
  np.testing.assert_array_equal(data['train']['y'], labels[:6])
  assert data['train']['x'].dtype == np.float32 and data['train']['y'].dtype == np.int32


def test_other_names_and_a_file_that_is_there_twice(tmp_path):
  (tmp_path / 'some.bin').write_bytes(pack_rows(*rows_of(2)))
  (tmp_path / 'some.bin.gz').write_bytes(gzip.compress(pack_rows(*rows_of(2))))
  (tmp_path / 'test_first.bin.xz').write_bytes(lzma.compress(pack_rows(*rows_of(3))))
  data = cifar.load(tmp_path)
  assert len(data['train']['y']) == 2 and len(data['test']['y']) == 3


@pytest.mark.parametrize(('name', 'data', 'message'), [
    ('a.bin', b'', 'got 0'), ('a.bin', pack_rows(*rows_of(2))[:-1], 'got 6,145: is it cut off'),
    ('a.bin', pack_rows([3, 10], rows_of(2)[1]), 'label 10 in row 1'),
    ('a.bin.xz', lzma.compress(pack_rows(*rows_of(2)))[:-50], 'cannot be unpacked'),
    ('a.bin.gz', gzip.compress(pack_rows(*rows_of(2)))[:-50], 'cannot be unpacked'),
    ('a.bin.gz', b'no gzip at all', 'got 14: is it cut off')])
def test_broken_files_are_refused(tmp_path, name, data, message):
  (tmp_path / name).write_bytes(data)
  with pytest.raises(ValueError, match=message):
    cifar.read_bin(tmp_path / name)


def test_missing_files(tmp_path):
  with pytest.raises(FileNotFoundError, match='no directory .*nowhere'):
    cifar.load(tmp_path / 'nowhere')
  with pytest.raises(FileNotFoundError, match='for the train set'):
    cifar.load(tmp_path)
  (tmp_path / 'data_batch_1.bin').write_bytes(pack_rows(*rows_of(1)))
  with pytest.raises(FileNotFoundError, match='for the test set'):
    cifar.load(tmp_path)


def test_digits():
  pytest.importorskip('sklearn')
  data = cifar.digits()
  assert data['train']['x'].shape == (1440, 8, 8, 1) and data['test']['x'].shape == (357, 8, 8, 1)
  assert abs(data['train']['x'].mean()) < 1e-5 and data['train']['x'].std() == pytest.approx(1, abs=1e-5)


def crops(image, margin):
  """All crops of an image, and all mirrored ones, slowly."""
  h, w, _ = image.shape
  padded = np.zeros((h + 2 * margin, w + 2 * margin, image.shape[2]), image.dtype)
  padded[margin:-margin, margin:-margin] = image
  shifts = range(2 * margin + 1)
  plain = [padded[i:i + h, j:j + w] for i in shifts for j in shifts]
  return plain, [x[:, ::-1] for x in plain]


@pytest.mark.parametrize(('shape', 'margin', 'flip'), [((64, 32, 32, 3), 4, True), ((64, 8, 8, 1), 1, False)])
def test_crops_are_crops(shape, margin, flip):
  images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  out = cifar.augment(images, 0, 5, 1, flip=flip)
  assert out.dtype == np.float32 and out.shape == shape
  kinds = []
  for before, after in zip(images, out, strict=True):
    plain, mirrored = ([np.array_equal(x, after) for x in some] for some in crops(before, margin))
    assert any(plain) != any(mirrored)
    kinds.append((any(mirrored), np.argmax(plain if any(plain) else mirrored)))
  share = np.mean([k[0] for k in kinds])
  assert 0.3 < share < 0.7 if flip else share == 0
  assert len({k[1] for k in kinds}) > min(8, (2 * margin + 1) ** 2 - 1)


def test_crops_depend_on_seed_step_and_worker_alone():
  images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype(np.float32)
  same = cifar.augment(images, 1, 2, 3, flip=True)
  np.testing.assert_array_equal(same, cifar.augment(images, 1, 2, 3, flip=True))
  for other in [(0, 2, 3), (1, 3, 3), (1, 2, 0)]:
    assert not np.array_equal(same, cifar.augment(images, *other, flip=True))


def test_batches_resume_are_shared_and_see_every_image_once_an_epoch():
  data = {'x': np.arange(70, dtype=np.float32).reshape(70, 1, 1, 1), 'y': np.arange(70)}
  take = lambda n, **more: list(itertools.islice(cifar.batches(data, 8, 2, 5, flip=False, **more), n))
  whole = take(10, mine=(0, 1))  # 4 steps of 16 images are an epoch
  for step, (first, second) in enumerate(zip(take(10, mine=(0,)), take(10, mine=(1,)), strict=True)):
    for k in ('x', 'y'):
      np.testing.assert_array_equal(np.concatenate([first[k], second[k]]), whole[step][k])
  for late, early in zip(take(4, start=6, mine=(0, 1)), whole[6:], strict=True):
    np.testing.assert_array_equal(late['x'], early['x'])
  epochs = [np.concatenate([b['y'] for b in whole[4 * i:4 * i + 4]]) for i in range(2)]
  assert all(len(set(e)) == 64 for e in epochs) and set(epochs[0]) != set(epochs[1])
  np.testing.assert_array_equal(whole[0]['x'].reshape(-1), whole[0]['y'])  # 1 x 1: a crop is the image
  with pytest.raises(ValueError, match='a step of workers=9 takes 72 images, got 70'):
    next(cifar.batches(data, 8, 9, 5, mine=(0,), flip=False))


def test_cifar_itself(shared_data):
  files = sorted((shared_data / 'cifar10').glob('test*.bin*'))
  if not files:
    pytest.skip('CIFAR-10 is not here: DCT_JAX_DATA may name a directory that has cifar10/ in it')
  images, labels = cifar.read_bin(files[0])
  assert images.shape[1:] == (32, 32, 3) and len(labels) == len(images) >= 5000
  np.testing.assert_array_equal(labels[:10], [3, 8, 8, 0, 6, 6, 1, 6, 3, 1])
  assert images[0, 0, 0].tolist() == [158, 112, 49]
