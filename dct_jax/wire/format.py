"""Numbers of the wire format (docs/wire_format.md). The native code has the same ones in native/src/common/wire.h."""

from __future__ import annotations

MAGIC = 0xDC720000  # the upper half of every message's first word: 0xDC7, version 2
HEADER = 6  # words before a message's body

# How indices travel. A message without entries has none of them.
INDEX_CODES = {'int32': 1, 'gap16': 2, 'bitmap': 3, 'rice': 4}
NO_INDICES = 0
AUTO = 255  # told to a kernel: the shortest of them

# How values travel, in the lowest byte of a message's first word.
VALUE_CODES = {'float32': 0, 'float16': 1, 'bfloat16': 2}
QSGD_CODES = {2: 16, 4: 17, 8: 18}  # by bits
THREE_LC_CODE = 19
INT8_CODE = 20
TERNARY_CODE = 21
ONE_BIT_CODE = 22


def index_code(codec: str) -> int:
  """The number of an index codec, `AUTO` for 'auto'."""
  return AUTO if codec == 'auto' else INDEX_CODES[codec]
