"""Figures 3 to 6 of the 3LC paper, from the logs of experiments/resnet_tables.py."""

import matplotlib.figure

from dct_jax.train import pictures, report

RUNTIME = ('float32', 'ternary', 'sparse', 'local2', '3lc')  # designs of Figure 4


def figure(path, title, panels, draw):
  sheet = matplotlib.figure.Figure(figsize=(1 + 4.7 * panels, 4), layout='constrained', dpi=120)
  axes = sheet.subplots(1, panels, squeeze=False)[0]
  draw(axes)
  for one in axes:
    one.grid(alpha=0.3)
  pictures.plain_ticks(*axes)
  pictures.legend_beside(sheet, fontsize='small')
  sheet.suptitle(title)
  sheet.savefig(path)
  print(f'figure: {path}')


def draw_times(runs, times, designs):
  """Figures 3 and 5: accuracy of a number of steps against the time that these take."""
  def draw(axes):
    for one, (rate, seconds) in zip(axes, times.items(), strict=True):
      for name in (n for n in designs if n in seconds):
        points = [(lines[-1]['step'] * seconds[name] / 60, 100 * lines[-1]['eval/test_accuracy'])
                  for (design, _), lines in runs.items() if design == name]
        one.plot(*zip(*sorted(points), strict=True), color=f'C{designs.index(name)}', label=name,
                 **pictures.points(points))
      one.set(xlabel='minutes', ylabel='test accuracy %', title=rate, xscale='log')
  return draw


def draw_runtime(full):
  """Figure 4: the paper's choice of designs, or all where there are few."""
  shown = [n for n in full if n in RUNTIME or len(full) <= len(RUNTIME)]

  def draw(axes):
    for name in shown:
      axes[0].plot(*zip(*((x['step'], x['loss']) for x in full[name]), strict=True), label=name, linewidth=0.8,
                   **pictures.points(full[name]))
      seen = report.evaluations(full[name])
      axes[1].plot(seen['step'], [100 * x for x in seen['test_accuracy']], label=name,
                   **pictures.points(seen['step']))
    axes[0].set(xlabel='step', ylabel='training loss', yscale='log')
    axes[1].set(xlabel='step', ylabel='test accuracy %')
  return draw


def draw_bits(sizes):
  """Figure 6, of steps, bits pushed and bits pulled by design."""
  def draw(axes):
    for one, (name, (steps, pushed, pulled)) in zip(axes, sizes.items(), strict=True):
      one.plot(steps, pushed, label='pushes', **pictures.points(steps))
      one.plot(steps, pulled, label='pulls', **pictures.points(steps))
      one.set(xlabel='step', ylabel='encoded bits a value', title=name, ylim=(0, None))
  return draw
