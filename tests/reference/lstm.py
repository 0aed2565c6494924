"""An LSTM and GNMT's two stacks of them, for one sentence, word by word, in float64."""

import numpy as np


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def step(params, x, h, c):
  """One step of a layer: outputs and cells behind it."""
  sums = x @ params['inputs'] + params['bias'] + h @ params['recurrent']
  i, f, g, o = np.split(np.asarray(sums, np.float64), 4)
  c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
  return sigmoid(o) * np.tanh(c), c


def layer(params, inputs):
  """Outputs for a list of inputs."""
  h, c, outputs = 0.0 * params['recurrent'][:, 0], 0.0, []
  for x in inputs:
    h, c = step(params, x, h, c)
    outputs.append(h)
  return outputs


def encode(params, inputs, layers):
  forward = layer(params['enc1'], inputs)
  backward = layer(params['enc1_reverse'], inputs[::-1])
  outputs = [np.concatenate(pair) for pair in zip(forward, backward[::-1], strict=True)]
  for i in range(2, layers + 1):
    new = layer(params[f'enc{i}'], outputs)
    outputs = [y + x if i >= 3 else y for x, y in zip(outputs, new, strict=True)]
  return outputs


def dense(params, x):
  return x @ params['kernel'] + params['bias']


def look(params, x, memory):
  """What a decoder's state sees of the encoder's top."""
  query, width = dense(params['query'], x), len(x)
  both = [dense(params['key_value'], m) for m in memory]
  scores = np.array([query @ pair[:width] for pair in both]) / np.sqrt(width)
  shares = np.exp(scores - scores.max())
  shares /= shares.sum()
  return dense(params['out'], sum(s * pair[width:] for s, pair in zip(shares, both, strict=True)))


def translate(params, source, target, layers):
  """Logits behind each word of `target`; words are ids without padding."""
  params = _float64(params)
  rows = lambda name, words: [params[name]['embedding'][w] for w in words]
  memory = encode(params, rows('source_embedding', source), layers)
  outputs = layer(params['dec1'], rows('target_embedding', target))
  seen = [look(params['attention'], x, memory) for x in outputs]
  for i in range(2, layers + 1):
    new = layer(params[f'dec{i}'], [np.concatenate(pair) for pair in zip(outputs, seen, strict=True)])
    outputs = [y + x if i >= 3 else y for x, y in zip(outputs, new, strict=True)]
  return np.array([dense(params['output'], x) for x in outputs])


def _float64(tree):
  return {k: _float64(v) for k, v in tree.items()} if isinstance(tree, dict) else np.asarray(tree, np.float64)
