"""Writes the tables and numbers of results/*.json into the pages that show them: `python docs/render.py`.

A page says what it wants in comments, between which this script writes; nothing else of the page is touched.

    <!-- table kernels main -->                    table `main` of results/kernels.json, and below it how it was made
    <!-- end -->

    It takes <!-- value kernels pack_over_add .2f -->0.96<!-- end --> times as long.
    Its loss is <!-- cell resnet designs 3lc_175 test_loss -->0.5886<!-- end -->.

The last is a cell of a table, by the names of its row and of its column, with _ for blanks. A value never begins a
line: Markdown takes a line that begins with a comment out of its paragraph.

`--check` changes nothing, and ends with exit code 1 if a page differs from the files.
"""

import itertools
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / 'results'
TABLE = re.compile(r'(<!-- table (\S+) (\S+) -->\n).*?(<!-- end -->)', re.S)
VALUE = re.compile(r'(<!-- value (\S+) (\S+) (\S+) -->).*?(<!-- end -->)', re.S)
CELL = re.compile(r'(<!-- cell (\S+) (\S+) (\S+) (\S+) -->).*?(<!-- end -->)', re.S)
NUMBER = re.compile(r'[-+*~(<>]*\d')  # what a cell begins with
FRACTION = re.compile(r'\d\.\d')
FENCED = re.compile(r'^(```|~~~).*?^\1', re.S | re.M)


def pages():
  """All Markdown files of the project that readers see."""
  return sorted([*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), *ROOT.glob('*/README.md')])


def load(name):
  """A file of results."""
  path = RESULTS / f'{name}.json'
  if not path.exists():
    raise ValueError(f'there is no {path.relative_to(ROOT)}')
  return json.loads(path.read_text())


def entry(name, kind, key):
  """A table or a value of a file."""
  found = load(name)[kind]
  if key not in found:
    raise ValueError(f'results/{name}.json has no {key!r} in its {kind}: {", ".join(found)}')
  return found[key]


def markdown(made):
  """A table in Markdown."""
  line = lambda cells: '| ' + ' | '.join(cells) + ' |'
  return '\n'.join([line(made['head']), '|' + '---|' * len(made['head']), *map(line, made['rows'])])


def spoken(seeds):
  """Seeds in words, with `; ` behind them: none, one, some, or all from one to another."""
  seeds = seeds if isinstance(seeds, list) else [] if seeds is None else [seeds]
  if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
    return f'seeds {seeds[0]} to {seeds[-1]}; '
  return f'seed{"s"[:len(seeds) - 1]} {", ".join(map(str, seeds))}; ' if seeds else ''


def origin(found):
  """How a file, or a table with a command of its own, was made."""
  made = f'`{found["command"]}`; {spoken(found["seed"])}{found["date"]}; {found["machine"]}'
  return f'{made}; JAX {found["versions"]["jax"]}'


def small(text):
  """A paragraph in small letters, in lines that fit."""
  return textwrap.fill(f'<small>{text}</small>', 120, break_long_words=False, break_on_hyphens=False)


def cell(made, row, column):
  """A cell of a table, by the names of its row and column with _ for blanks."""
  names = [name.replace(' ', '_') for name in made['head']]
  rows = {cells[0].replace(' ', '_'): cells for cells in made['rows']}
  if row not in rows or column not in names:
    raise ValueError(f'the table has no cell {row!r}, {column!r}: {", ".join(rows)}; {", ".join(names)}')
  return rows[row][names.index(column)]


def rendered(text):
  """A page's text as the files of results would have it."""
  def table(match):
    found = load(match[2])
    made = entry(match[2], 'tables', match[3])
    said = made.get('source') or origin({**found, **made})  # a table of a paper says which one it is
    return f'{match[1]}\n{markdown(made)}\n\n{small(said)}\n\n{match[4]}'

  def value(match):
    return f'{match[1]}{format(entry(match[2], "values", match[3]), match[4])}{match[5]}'

  def one_cell(match):
    return f'{match[1]}{cell(entry(match[2], "tables", match[3]), match[4], match[5])}{match[6]}'

  return CELL.sub(one_cell, VALUE.sub(value, TABLE.sub(table, text)))


def by_hand(text):
  """First lines of tables with numbers that no file of results has.

  Such a table has numbers in most of its cells, or in most of a column where one has a fraction: a measured one is
  rarely whole, and what a format or a setting is seldom has a fraction. The first column is names, whatever it has.
  """
  text, found = FENCED.sub('', TABLE.sub('', text)), []
  for block in re.findall(r'(?:^ *\|.*\n?)+', text, re.M):
    head, _, *rows = [line.strip() for line in block.strip().splitlines()] + ['']
    columns = itertools.zip_longest(*(row[1:-1].split('|')[1:] for row in rows), fillvalue='')
    columns = [[cell.strip() for cell in column if cell.strip()] for column in columns]
    measured = any(mostly_numbers(column) and FRACTION.search(' '.join(column)) for column in columns)
    if measured or mostly_numbers([*itertools.chain(*columns)]):
      found.append(head)
  return found


def mostly_numbers(cells):
  return len([cell for cell in cells if NUMBER.match(cell)]) > len(cells) / 2


def main(check):
  """Renders all pages; returns those that were not as they should be."""
  changed = []
  for page in pages():
    old = page.read_text()
    try:
      new = rendered(old)
    except ValueError as error:
      raise ValueError(f'{page.relative_to(ROOT)}: {error}') from None
    if new != old:
      changed.append(page)
      if not check:
        page.write_text(new)
  return changed


if __name__ == '__main__':
  CHECK = '--check' in sys.argv[1:]
  found = main(CHECK)
  print('\n'.join(f'{"differs" if CHECK else "written"}: {p.relative_to(ROOT)}' for p in found) or 'nothing to change')
  sys.exit(int(CHECK and bool(found)))
