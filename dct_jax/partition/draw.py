"""A picture of a plan: layers as boxes in the colour of their node, forward from left to right, as SVG.

Layers of one module are a panel and are read from top to bottom. What has no weights is one box for each node between
two layers. Long pictures go on in a line below.
"""

from __future__ import annotations

import collections
import dataclasses
import html
import re
from collections.abc import Iterator, Sequence

from dct_jax.partition.blocks import REST, TABLE
from dct_jax.partition.graph import FORWARD, PARAMETER, nbytes
from dct_jax.partition.placement import SPARSE, TRAINER
from dct_jax.partition.plan import Plan
from dct_jax.wire.units import size_text

# Fill and line of a box; the trainer is grey, colours of servers repeat after so many.
GREY = ('#e8e8e8', '#666666')
COLOURS = (('#cfe2f7', '#1f5fa8'), ('#fde0c2', '#c05f00'), ('#d3efd2', '#25803a'), ('#f6d3e6', '#a83279'),
           ('#fff3b8', '#917a00'), ('#ddd3f2', '#5f3dab'))
SPARSE_COLOURS = (('#c9ecec', '#0b7a7a'), ('#e3d5c8', '#7a5230'), ('#e0e8b8', '#63741a'), ('#f4c9c9', '#a83232'))
BOX, HEIGHT, ABOVE, TITLE, MARGIN = 148, 36, 14, 20, 20
COLUMN_GAP, BAND_GAP = 96, 60
LETTER = 6.1  # pixels of a letter, about, at 11 pixels
MANY_TABLES = 3  # more of them that are alike are one box
FEW_BOXES = 30  # up to so many, all arrows are drawn
SMALL = 0.01  # of the largest arrow: smaller ones are left out of large pictures
BATCH = 'batch'
_Points = list[tuple[float, float]]


@dataclasses.dataclass
class _Box:
  """What is drawn as one: a layer, tables that are alike, or blocks without weights.

  Attributes:
    blocks: numbers; none for the batch.
    section: boxes of one section share a panel, or are one box by themselves.
    depth: layers on the longest path to it.
    node: number.
    order: number of its first operator: boxes are read in this order.
    x, y: of the upper left corner.
    column, band: column in a line of the picture, and the line.
  """

  blocks: list[int]
  section: str
  depth: float
  node: int
  order: float
  x: float = 0.0
  y: float = 0.0
  column: int = 0
  band: int = 0


def svg(plan: Plan, *, width: int = 1500) -> str:
  """The picture.

  Args:
    plan: of any kind.
    width: pixels after which the picture goes on in a line below.

  Returns:
    A whole SVG file. Boxes and arrows say more where the mouse is.
  """
  boxes = _boxes(plan)
  panels, right, bottom = _lay_out(boxes, width)
  arrows, hidden = _arrows(plan, boxes)
  parts = [*_panels(panels), *arrows, *(_box(plan, b, len(panels[b.section])) for b in boxes)]
  legend, tall, wide = _legend(plan, max(right, 900), hidden)
  return '\n'.join((
      f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{bottom + tall:.0f}" '
      f'viewBox="0 0 {wide:.0f} {bottom + tall:.0f}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" '
      'font-size="11">', '<rect width="100%" height="100%" fill="white"/>', *legend,
      f'<g transform="translate(0 {tall:.0f})">', *parts, '</g>', '</svg>', ''))


class _Flow:
  """How blocks depend on each other in the forward pass.

  Attributes:
    first: block -> number of its first forward operator, or None.
    order: block -> likewise, or where it is drawn.
    depth: block -> layers on the longest path to it, itself included.
    made: block -> blocks that it reads from, forward; the batch is -1.
    readers: block -> blocks that read from it.
  """

  def __init__(self, plan: Plan):
    graph, self.blocks = plan.graph, plan.blocks.blocks
    forward = lambda b: [i for i in b.operators if graph.operators[i].phase == FORWARD]
    self.first = [min(forward(b), default=None) for b in self.blocks]
    self.made: dict[int, set[int]] = collections.defaultdict(set)
    self.readers: dict[int, set[int]] = collections.defaultdict(set)
    for maker, reader, value in _edges(plan):
      self.readers[maker].add(reader)
      if _is_forward(plan, value):
        self.made[reader].add(maker)
    self.depth: dict[int, float] = {-1: 0}
    order = [(f, b) for b, f in enumerate(self.first) if f is not None]
    for first, b in sorted(order):
      before = [self.depth[a] for a in self.made[b] if a < 0 or ((self.first[a] or 0) < first and a in self.depth)]
      self.depth[b] = max(before, default=0) + (self.blocks[b].kind != REST)
    self.order = [len(graph.operators) if f is None else f for f in self.first]
    backward, end = [b for b, f in enumerate(self.first) if f is None], max(self.depth.values()) + 1
    for b in sorted(backward, key=lambda b: max(self.blocks[b].operators, default=0), reverse=True):
      self._place_backward(b, end)

  def _place_backward(self, b: int, last: float) -> None:
    """What only makes gradients is behind the layer that wants them; what only updates is at the end."""
    wants = [r for r in self.readers[b] if r >= 0 and r in self.depth]
    host = max(wants, key=lambda r: self.depth[r], default=None)
    self.depth[b] = last if host is None else self.depth[host]
    if host is not None:
      self.order[b] = self.order[host]


def _edges(plan: Plan) -> Iterator[tuple[int, int, int]]:
  """(block that makes it, block that reads it, number of the value among those that the estimate knows)."""
  for k, reader in plan.estimate.pairs:
    yield int(plan.estimate.makers[k]), int(reader), int(k)


def _is_forward(plan: Plan, k: int) -> bool:
  maker = plan.graph.producer.get(plan.estimate.values[k])
  return maker is None or plan.graph.operators[maker].phase == FORWARD


def _boxes(plan: Plan) -> list[_Box]:
  flow, section = _Flow(plan), _sections(plan)
  several = {s for s, count in collections.Counter(section.values()).items() if count > 1}
  made: dict[object, _Box] = {None: _Box([], BATCH, 0, 0, -1)}
  for b in sorted(range(len(flow.blocks)), key=lambda b: flow.order[b]):
    block, depth, node = flow.blocks[b], flow.depth[b], plan.at[b]
    key: object = b
    where = section.get(b, '')
    if block.kind == REST:
      before = [section[a] for a in sorted(flow.made[b], key=lambda a: -flow.depth.get(a, 0)) if a in section]
      inside = where or next((s for s in before if s in several), '')
      where, depth = inside or f'between {depth:g} on {node}', depth + 0.5
      section.setdefault(b, inside)
      key = where, depth, node
    elif block.kind == TABLE:
      key = _alike(plan, flow, b)
    made.setdefault(key, _Box([], where, depth, node, flow.order[b])).blocks.append(b)
  few = [k for k, box in made.items() if isinstance(k, tuple) and k[0] == TABLE and len(box.blocks) <= MANY_TABLES]
  apart = [dataclasses.replace(made[k], blocks=[b], section=section[b]) for k in few for b in made[k].blocks]
  boxes = [box for k, box in made.items() if k not in few] + apart
  told = lambda box: any(flow.blocks[b].has_loss for b in box.blocks)
  nested = len({box.section for box in boxes}) < len(boxes)  # panels are in the order of the program
  return sorted(boxes, key=lambda box: (told(box), 0 if nested else box.depth, box.order))


def _alike(plan: Plan, flow: _Flow, b: int) -> tuple:
  return TABLE, plan.at[b], flow.depth[b], tuple(sorted(flow.readers[b])), plan.estimate.weights[b]


def _sections(plan: Plan) -> dict[int, str]:
  """Panel of a block: the outermost module that holds several, or the block itself."""
  layers = {b: block.name for b, block in enumerate(plan.blocks.blocks) if block.kind != REST}
  paths, skip = [name.split('/') for name in layers.values()], 0
  while all(len(path) > skip + 1 for path in paths) and len({path[skip] for path in paths}) == 1:
    skip += 1  # everything is in this one module
  outer = {b: '/'.join(name.split('/')[:skip + 1]) for b, name in layers.items()}
  count = collections.Counter(outer.values())
  found = {b: outer[b] if count[outer[b]] > 1 else name for b, name in layers.items()}
  panels = {s.rpartition('/')[2]: s for s, c in count.items() if c > 1}
  for b, block in enumerate(plan.blocks.blocks):
    words = re.split(r'[/.]', block.name) if block.kind == REST else ()
    inside = next((panels[w] for w in words if w in panels), None)
    if inside:
      found[b] = inside
  return found


def _lay_out(boxes: Sequence[_Box], width: int) -> tuple[dict[str, list[_Box]], float, float]:
  """Gives every box its place. Boxes of each section, and the size of the whole."""
  panels: dict[str, list[_Box]] = {}
  for box in boxes:
    panels.setdefault(box.section, []).append(box)
  columns: list[tuple[float, list[str]]] = []
  for name in panels:
    depth = panels[name][0].depth
    if columns and len(panels[name]) == 1 and columns[-1][0] == depth and len(panels[columns[-1][1][0]]) == 1:
      columns[-1][1].append(name)
    else:
      columns.append((depth, [name]))
  bands: list[list[list[str]]] = [[]]
  x = 0.0
  for _, names in columns:
    if bands[-1] and x + BOX > width - 2 * MARGIN:
      bands.append([])
      x = 0.0
    bands[-1].append(names)
    x += BOX + COLUMN_GAP
  top = float(MARGIN)
  for number, band in enumerate(bands):
    heights = [sum(_height(panels[s]) for s in names) + ABOVE * (len(names) - 1) for names in band]
    for i, names in enumerate(band):
      for box in (box for s in names for box in panels[s]):
        box.x, box.column, box.band = MARGIN + i * (BOX + COLUMN_GAP), i, number
      _stack([panels[s] for s in names], top + (max(heights) - heights[i]) / 2)
    top += max(heights) + BAND_GAP
  return panels, max(b.x for b in boxes) + BOX + MARGIN + COLUMN_GAP, top - BAND_GAP + MARGIN


def _height(panel: Sequence[_Box]) -> float:
  return len(panel) * HEIGHT + (len(panel) - 1) * ABOVE + (2 * ABOVE + TITLE if len(panel) > 1 else 0)


def _stack(panels: Sequence[list[_Box]], y: float) -> None:
  for panel in panels:
    inner = y + (ABOVE + TITLE if len(panel) > 1 else 0)
    for i, box in enumerate(panel):
      box.y = inner + i * (HEIGHT + ABOVE)
    y += _height(panel) + ABOVE


def _colour(plan: Plan, node: int) -> tuple[str, str]:
  name = plan.nodes.names[node]
  if name == TRAINER:
    return GREY
  number = int(re.sub(r'\D', '', name))
  of = SPARSE_COLOURS if name.startswith(SPARSE) else COLOURS
  return of[number % len(of)]


def _panels(panels: dict[str, list[_Box]]) -> Iterator[str]:
  for name, boxes in panels.items():
    if len(boxes) > 1:
      x, y = boxes[0].x - 10, boxes[0].y - ABOVE - TITLE + 4
      yield (f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX + 20}" height="{_height(boxes) - 4:.0f}" rx="8" '
             'fill="#fafafa" stroke="#bbbbbb"/>')
      yield f'<text x="{x + 10:.0f}" y="{y + 17:.0f}" font-weight="bold" fill="#333333">{html.escape(name)}</text>'


def _box(plan: Plan, box: _Box, neighbours: int) -> str:
  fill, line = _colour(plan, box.node)
  title, below = _words(plan, box, neighbours > 1)
  more = '; '.join([plan.nodes.names[box.node], *(plan.blocks.blocks[b].name for b in box.blocks[:12])])
  x, y = round(box.x), round(box.y)
  return (f'<g><title>{html.escape(more)}</title><rect x="{x}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="4" '
          f'fill="{fill}" stroke="{line}" stroke-width="1.4"/>'
          f'<text x="{x + 8}" y="{y + 15}" fill="#111111">{html.escape(title)}</text>'
          f'<text x="{x + 8}" y="{y + 29}" font-size="10" fill="{line}">{html.escape(below)}</text></g>')


def _words(plan: Plan, box: _Box, inside: bool) -> tuple[str, str]:
  """Two lines of a box."""
  if not box.blocks:
    return 'batch', 'comes to the trainer'
  of = [plan.blocks.blocks[b] for b in box.blocks]
  weights = sum(_parameters(plan, b) for b in box.blocks)
  spent = f'{sum(plan.estimate.seconds[b] for b in box.blocks) * 1e3:.2f} ms'
  if of[0].kind != REST:
    name = of[0].name.removeprefix(f'{box.section}/') if inside else of[0].name
    name = f'{len(of)} tables: {name}, ...' if len(of) > 1 else name
    return _short(name), f'{size_text(weights)}, {spent}'
  if any(b.has_loss for b in of):
    return 'loss', spent
  operators = [i for b in of for i in b.operators]
  if not operators:
    return _short(of[0].name), size_text(sum(plan.estimate.weights[b] for b in box.blocks))
  cost = lambda i: plan.estimate.machine.seconds(plan.graph, plan.graph.operators[i])
  kind = plan.graph.operators[max(operators, key=cost)].kind
  return _short(f'{kind} +{len(operators) - 1}' if len(operators) > 1 else kind), spent


def _parameters(plan: Plan, b: int) -> int:
  slots = (plan.graph.slots[s] for s in plan.blocks.blocks[b].slots)
  return sum(nbytes(plan.graph.avals[s.value]) for s in slots if s.kind == PARAMETER)


def _short(text: str) -> str:
  most = int((BOX - 14) / LETTER)
  return text if len(text) <= most else f'{text[:most // 2 - 1]}…{text[-(most - most // 2):]}'


def _arrows(plan: Plan, boxes: Sequence[_Box]) -> tuple[list[str], int]:
  """Arrows from maker to reader, what crosses between nodes with its bytes; and how many there was no room for."""
  size = _sizes(plan, boxes)
  largest = max((sum(s) for s in size.values()), default=0.0) or 1.0  # a batch may be empty
  crosses = lambda ab: boxes[ab[0]].node != boxes[ab[1]].node
  drawn = [ab for ab in size if len(boxes) <= FEW_BOXES or (
      sum(size[ab]) >= SMALL * largest if crosses(ab) else _are_near(boxes[ab[0]], boxes[ab[1]]))]
  taken = [(box.x, box.y, box.x + BOX, box.y + HEIGHT) for box in boxes]
  arrows, labels = [], []
  for ab in sorted(drawn, key=lambda ab: (crosses(ab), sum(size[ab]))):
    a, b, text = boxes[ab[0]], boxes[ab[1]], _traffic(*size[ab])
    line = _colour(plan, a.node or b.node)[1] if crosses(ab) else '#cccccc'
    arrows.append(_arrow(_curve(a, b), line, 1.2 + 3 * sum(size[ab]) / largest if crosses(ab) else 1.0, text))
    if crosses(ab):
      labels.append((sum(size[ab]), a, b, text, line))
  for _, a, b, text, line in sorted(labels, key=lambda x: -x[0]):
    arrows += _label(a, b, text, line, taken)
  return arrows, len(size) - len(drawn)


def _sizes(plan: Plan, boxes: Sequence[_Box]) -> dict[tuple[int, int], list[float]]:
  """(number of a box, number of one behind it) -> bytes forward and back."""
  of = {b: i for i, box in enumerate(boxes) for b in box.blocks} | {
      -1: next(i for i, box in enumerate(boxes) if not box.blocks)}
  size: dict[tuple[int, int], list[float]] = {}
  for maker, reader, k in _edges(plan):
    forward = _is_forward(plan, k)
    ab = (of[maker], of[reader]) if forward else (of[reader], of[maker])
    if ab[0] != ab[1] and reader >= 0:
      size.setdefault(ab, [0.0, 0.0])[not forward] += float(plan.estimate.bytes[k])
  return size


def _are_near(a: _Box, b: _Box) -> bool:
  return a.band == b.band and abs(a.column - b.column) <= 1 and bool(a.blocks)


def _arrow(points: _Points, line: str, thick: float, text: str) -> str:
  (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
  return (f'<g><title>{html.escape(text)}</title><path d="M{ax:.0f} {ay:.0f} C{bx:.0f} {by:.0f} {cx:.0f} {cy:.0f} '
          f'{dx:.0f} {dy:.0f}" fill="none" stroke="{line}" stroke-width="{thick:.1f}" stroke-opacity="0.75"/>'
          f'<circle cx="{dx:.0f}" cy="{dy:.0f}" r="{1.5 + thick / 2:.1f}" fill="{line}"/></g>')


def _traffic(forward: float, back: float) -> str:
  """Bytes forward, and back if there are any: '262 / 131 KB'."""
  if not back:
    return size_text(forward)
  first, second = size_text(forward) if forward else '0', size_text(back)
  same = first.rpartition(' ')[2] == second.rpartition(' ')[2]
  return f'{first.rpartition(" ")[0] if same else first} / {second}'


def _curve(a: _Box, b: _Box) -> _Points:
  """Four points of a curve between two boxes: across, along a panel, or to another line."""
  middle = lambda box: box.y + HEIGHT / 2
  if a.band != b.band:
    down = 1 if b.band > a.band else -1
    ends = [(a.x + BOX / 2, a.y + HEIGHT * (down > 0)), (b.x + BOX / 2, b.y + HEIGHT * (down < 0))]
    bend = BAND_GAP * down
    return [ends[0], (ends[0][0], ends[0][1] + bend), (ends[1][0], ends[1][1] - bend), ends[1]]
  if a.x == b.x:
    out = 14 + min(abs(a.y - b.y) / (HEIGHT + ABOVE) * 9, 50)
    return [(a.x + BOX, middle(a)), (a.x + BOX + out, middle(a)), (a.x + BOX + out, middle(b)), (a.x + BOX, middle(b))]
  right = b.x > a.x
  start, end = (a.x + BOX * right, middle(a)), (b.x + BOX * (not right), middle(b))
  half = (end[0] - start[0]) / 2
  far = abs(end[0] - start[0]) > BOX + COLUMN_GAP  # over boxes in between
  rise = -HEIGHT if far and abs(start[1] - end[1]) < HEIGHT else 0
  return [start, (start[0] + half, start[1] + rise), (end[0] - half, end[1] + rise), end]


def _label(a: _Box, b: _Box, text: str, line: str, taken: list[tuple[float, float, float, float]]) -> list[str]:
  """Words on an arrow where nothing else is; none if there is no room, as the arrow says it to the mouse."""
  wide, high, along = len(text) * LETTER * 0.88 + 4, 12, a.x == b.x and a.band == b.band
  for t in (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82):
    x, y = _point(_curve(a, b), t)
    for shift in ((0, -11, 11) if along else (-9, 9, 0)):
      left = x + 3 if along else x - wide / 2
      space = (left, y + shift - high / 2, left + wide, y + shift + high / 2)
      if not any(space[0] < o[2] and o[0] < space[2] and space[1] < o[3] and o[1] < space[3] for o in taken):
        taken.append(space)
        return [f'<text x="{left + 2:.0f}" y="{y + shift + 4:.0f}" font-size="10" fill="{line}" stroke="white" '
                f'stroke-width="3" paint-order="stroke">{html.escape(text)}</text>']
  return []


def _point(points: _Points, t: float) -> tuple[float, float]:
  """Of a Bezier curve."""
  weights = ((1 - t)**3, 3 * t * (1 - t)**2, 3 * t * t * (1 - t), t**3)
  return (sum(w * x for w, (x, _) in zip(weights, points, strict=True)),
          sum(w * y for w, (_, y) in zip(weights, points, strict=True)))


def _legend(plan: Plan, wide: float, hidden: int) -> tuple[list[str], float, float]:
  """Nodes with their colours and what they have to do, above the picture."""
  load, x, y = plan.load, float(MARGIN), float(MARGIN)
  parts: list[str] = []
  for n, name in enumerate(plan.nodes.names):
    fill, line = _colour(plan, n)
    idle = name in plan.idle
    text = f'{name}: ' + ('idle' if idle else f'{load.seconds[n, 0] * 1e3:.2f} ms, in {load.seconds[n, 1] * 1e3:.2f}, '
                          f'out {load.seconds[n, 2] * 1e3:.2f} ms')
    if x + 40 + len(text) * LETTER * 1.05 > wide:
      x, y = float(MARGIN), y + 20
    parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="14" height="14" rx="3" fill="{fill}" stroke="{line}"/>'
                 f'<text x="{x + 20:.0f}" y="{y + 11:.0f}">{html.escape(text)}</text>')
    x += 48 + len(text) * LETTER * 1.05
  left_out = f' {hidden} small or long arrows are left out.' if hidden else ''
  parts.append(f'<text x="{MARGIN}" y="{y + 33:.0f}" fill="#555555">Arrows in colour go from node to node: bytes of a '
               f'batch forward / back. Boxes: weights, and processor time of a batch.{left_out}</text>')
  return parts, y + 56, wide
