"""Where a Transformer can be cut, and the pieces that a pipeline runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

AFTER_CUT = ('contract', 'contract_norm')  # parts of a layer that belong to the far side of a cut in it
ENCODER_CROSSING = ('hidden', 'residual')
DECODER_CROSSING = ('hidden', 'residual', 'memory')


class TransformerSection(NamedTuple):
  """What lies between two cuts.

  Attributes:
    begin: place of the cut before it; None for the first.
    layers: those that begin here, up to their cut or whole.
    end: place of the cut behind it, in the last of `layers`; None for the last section.
    shared: names of parameters that another section has a copy of. Their gradient is the sum of all copies'
      gradients, and copies stay equal only if each is updated with that sum.
  """

  begin: str | None
  layers: tuple[str, ...]
  end: str | None
  shared: tuple[str, ...] = ()

  @property
  def is_last(self) -> bool:
    return self.end is None

  @property
  def arriving(self) -> tuple[str, ...]:
    """What a section is given: nothing, ('hidden', 'residual') or ('hidden', 'residual', 'memory')."""
    return _crossing(self.begin)

  @property
  def leaving(self) -> tuple[str, ...]:
    """What it returns, likewise; nothing for the last, which returns logits."""
    return _crossing(self.end)

  def params(self, whole: Mapping) -> dict:
    """This section's part of a model's variables."""
    tree = whole['params']
    names = [] if self.begin else ['source_embedding']
    names += ['encoder_norm', 'target_embedding'] if 'dec1' in self.layers else []
    names += ['decoder_norm', 'output' if 'output' in tree else 'target_embedding'] if self.is_last else []
    names += [f'boundaries_{place}' for place in self.layers]
    part = {name: tree[name] for name in names if name in tree}
    for place in self.layers:
      part[place] = {k: v for k, v in tree[place].items() if place != self.end or k not in AFTER_CUT}
    if self.begin:
      part[self.begin] = {k: v for k, v in tree[self.begin].items() if k in AFTER_CUT}
    return {'params': part}


def sections(splits: str, layers: int | tuple[int, int] = 6, share_embeddings: bool = True) -> list[TransformerSection]:
  """A Transformer in pieces.

  With shared embeddings and a cut in the decoder, the target's matrix is in two sections: the one where the
  decoder begins, and the last one. `TransformerSection.shared` says so there.

  Args:
    splits: places to cut it at, with commas and in order, as 'enc5,dec5'; nothing for one piece.
    layers: as of `Transformer`.
    share_embeddings: likewise.

  Raises:
    ValueError: for a place that does not exist, or places out of order.

  Examples:
    >>> for section in sections('enc1,dec2', layers=2):
    ...   print(section.begin, section.layers, section.end, section.shared)
    None ('enc1',) enc1 ()
    enc1 ('enc2', 'dec1', 'dec2') dec2 ('target_embedding',)
    dec2 () None ('target_embedding',)
  """
  places = split_names(layers)
  cuts = [name for name in splits.split(',') if name]
  if [p for p in places if p in cuts] != cuts:
    raise ValueError(f'a model is cut at some of {places}, in this order, got {splits=}')
  at = [0, *(places.index(name) + 1 for name in cuts), len(places)]
  parts = [places[a:b] for a, b in itertools.pairwise(at)]
  whole = [TransformerSection(*edges) for edges in zip([None, *cuts], parts, [*cuts, None], strict=True)]
  if not share_embeddings or 'dec1' in whole[-1].layers:
    return whole
  return [s._replace(shared=('target_embedding',)) if s.is_last or 'dec1' in s.layers else s for s in whole]


def split_names(layers: int | tuple[int, int] = 6) -> tuple[str, ...]:
  """The places where the model can be cut, which are also the names of its layers.

  >>> split_names((2, 1))
  ('enc1', 'enc2', 'dec1')
  """
  encoder, decoder = (layers, layers) if isinstance(layers, int) else layers
  return (*(f'enc{i}' for i in range(1, encoder + 1)), *(f'dec{i}' for i in range(1, decoder + 1)))


def check(section: TransformerSection, layers: int | tuple[int, int], inputs: tuple) -> TransformerSection:
  """Itself, or a ValueError if it is of another model, or gets something else than what crosses to it."""
  places = split_names(layers)
  known = {section.begin, section.end} <= {None, *places}
  first = places.index(section.begin) + 1 if known and section.begin else 0
  last = places.index(section.end) + 1 if known and section.end else len(places)
  if not known or section.layers != places[first:last]:
    raise ValueError(f'this section is not of a model with {layers=}, got {section=}')
  if len(inputs) != len(section.arriving):
    raise ValueError(f'inputs of this section are {section.arriving}, got {len(inputs)} of them')
  return section


def _crossing(place):
  if place is None:
    return ()
  return ENCODER_CROSSING if place.startswith('enc') else DECODER_CROSSING
