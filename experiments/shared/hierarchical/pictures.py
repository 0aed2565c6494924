"""Pictures of what `results/hierarchical.json` has."""

import matplotlib.figure
import numpy as np

LABELS = {'figure 3': 'trainers with a copy each (EASGD)', 'figure 4': 'concurrent nets of one trainer'}


def quality(found, path):
  """Figures 3, 4 and 7, of the small DLRM on synthetic rows: relative normalized entropy, with 95% intervals."""
  figures = found['quality']['synthetic']
  picture = matplotlib.figure.Figure((11, 3.6), layout='constrained')
  for axes, (name, rows) in zip(picture.subplots(1, len(figures), squeeze=False)[0], figures.items(), strict=True):
    if name in LABELS:
      _ends(axes, rows, LABELS[name])
    else:
      _runs(axes, rows, found['settings']['batch'])
    base = next(iter(rows.values()))['against']
    axes.set(title=name.capitalize(), ylabel=f'normalized entropy against {base}, %')
    axes.axhline(0, color='black', linewidth=0.8)
    axes.grid(alpha=0.3)
  picture.savefig(path, dpi=120)


def _ends(axes, rows, label):
  """At the end of the run, against a number."""
  x = [int(''.join(c for c in v if c.isdigit())) for v in rows]
  axes.errorbar(x, [r['percent'] for r in rows.values()], [r['plus_minus'] or 0 for r in rows.values()], marker='o',
                capsize=3)
  axes.set(xlabel=label, xscale='log', xticks=x, xticklabels=x)
  axes.minorticks_off()


def _runs(axes, rows, batch):
  """Over the run."""
  for v, row in rows.items():
    if v != row['against']:
      over = row['over_the_run']
      x = np.arange(1, len(over) + 1) / len(over) * row['batches'] * batch / 1e6
      mean, half = (np.array([r[k] or 0 for r in over]) for k in ('percent', 'plus_minus'))
      axes.plot(x, mean, marker='.', label=f'{v.removeprefix("ht")} groups of 6 + 6')
      axes.fill_between(x, mean - half, mean + half, alpha=0.15)
  axes.set(xlabel='million examples')
  axes.legend()


def clock(found, path):
  """Figures 8 to 11, of one model."""
  picture = matplotlib.figure.Figure((12, 6.4), layout='constrained')
  eighth, eleventh, groups, sizes, processor, network = picture.subplots(2, 3).ravel()
  _bars(eighth, {k: np.mean(v) for k, v in found['figure 8'].items()}, 'Figure 8')
  _bars(eleventh, found['figure 11'], 'Figure 11, 5 groups')
  _scaling(groups, found['figure 10a'], 'Figure 10a', 'groups of 6 + 6')
  _scaling(sizes, found['figure 10b'], 'Figure 10b', 'trainers = servers of each of 8 groups')
  _use(processor, found['figure 9'], ('processor',), 'Figure 9: processor')
  _use(network, found['figure 9'], ('in', 'out'), 'Figure 9: network')
  network.legend()
  picture.savefig(path, dpi=110)


def _bars(axes, numbers, title):
  axes.barh(list(numbers)[::-1], [v / 1e3 for v in numbers.values()][::-1])
  axes.set(title=title, xlabel='thousand examples/s')


def _scaling(axes, numbers, title, label):
  x, y = map(np.array, zip(*((int(k), v) for k, v in numbers.items()), strict=True))
  axes.plot(x, y / y[0], marker='o', label='by the clock')
  axes.plot(x, x / x[0], linestyle=':', color='grey', label='linear')
  axes.set(title=title, xlabel=label, ylabel='times the speed of the first', xticks=x)
  axes.legend()


def _use(axes, used, what, title):
  height, y = 0.8 / len(what), np.arange(len(used))
  for i, resource in enumerate(what):
    axes.barh(y + height * i, [100 * u[resource] for u in used.values()], height=height, label=resource)
  axes.set(title=title, xlabel='% of the time', xlim=(0, 100), yticks=y + height * (len(what) - 1) / 2,
           yticklabels=list(used))
