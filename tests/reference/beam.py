"""Searches for the best continuation, hypothesis by hypothesis, and all of them at once."""

import itertools
import math


def exhaustive(log_probs, words, end, limit, penalty, number):
  """The best of all sequences that end with `end` after at most `limit` words: [(score, sequence), ...].

  Args:
    log_probs: sequence of words (a tuple) -> log probability of each word to follow it.
    words: ids that may be written before the end.
    end: id of the end.
    limit: words before it.
    penalty: score = sum of log probabilities / length ** penalty; the end counts.
    number: sequences to return.
  """
  found = []
  for length in range(limit + 1):
    for body in itertools.product(words, repeat=length):
      sequence = (*body, end)
      total = sum(float(log_probs(sequence[:i])[word]) for i, word in enumerate(sequence))
      found.append((total / len(sequence) ** penalty, sequence))
  return sorted(found, key=lambda pair: -pair[0])[:number]


def beam_search(log_probs, words, end, limit, penalty, beam):
  """The same for a beam, which sees only what continues the best hypotheses of each length."""
  live, finished = [(0.0, ())], []
  for step in range(limit + 1):
    follow = [end] if step == limit else [*words, end]
    options = [(total + float(log_probs(body)[word]), (*body, word)) for total, body in live for word in follow]
    options = sorted(options, key=lambda pair: -pair[0])[:2 * beam]
    finished += [(total / (step + 1) ** penalty, s) for total, s in options[:beam] if s[-1] == end]
    finished = sorted(finished, key=lambda pair: -pair[0])[:beam]
    live = [(total, s) for total, s in options if s[-1] != end][:beam]
    best_possible = live[0][0] / (limit + 1) ** penalty if live else -math.inf
    if len(finished) == beam or (finished and finished[0][0] >= best_possible):
      break
  return finished
