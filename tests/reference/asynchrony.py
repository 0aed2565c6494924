"""Two linear layers trained by many groups at once, event by event, in float64: imports nothing of ours."""

import numpy as np


def gradients(a, b, x, y):
  """Of mean((x a b - y)^2), by hand."""
  hidden = x @ a
  error = 2 * (hidden @ b - y) / y.size
  return {'a': x.T @ (error @ b.T), 'b': hidden.T @ error}


def replay(events, home, written, first, batches, *, groups, rate, alpha):
  """What events do to parameters.

  Args:
    events: (kind, group, node, batch or dense server, task), in order.
    home: name of a parameter -> node that has it.
    written: task -> names of parameters that it updates.
    first: name -> value that all groups begin with.
    batches: number -> (x, y).
    groups: how many.
    rate: of plain gradient descent.
    alpha: of elastic averaging.

  Returns:
    Parameters of each group, and of the center.
  """
  stores = [{k: np.array(v, np.float64) for k, v in first.items()} for _ in range(groups)]
  center = {k: np.array(v, np.float64) for k, v in first.items()}
  seen, found, pulls = {}, {}, {}
  on = lambda node: [k for k in first if home[k] == node]
  for kind, group, node, number, task in events:
    if kind == 'read':
      seen.setdefault(number, {}).update({k: stores[group][k].copy() for k in on(node)})
    elif kind == 'run' and written.get(task):
      if number not in found:
        found[number] = gradients(seen[number]['a'], seen[number]['b'], *batches[number])
      for k in written[task]:
        stores[group][k] = stores[group][k] - rate * found[number][k]
    elif kind == 'snapshot':
      pulls[group, node] = {k: stores[group][k].copy() for k in on(node)}
    elif kind == 'center':
      for k, x in pulls[group, node].items():
        pulls[group, node][k] = alpha * (x - center[k])
        center[k] = center[k] + pulls[group, node][k]
    elif kind == 'apply':
      for k, d in pulls.pop((group, node)).items():
        stores[group][k] = stores[group][k] - d
  return stores, center
