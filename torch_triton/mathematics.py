"""`triton.language` as the coefficient functions see it (`xp.where`, `xp.exp`), with a more exact exponential.

`tl.exp` is off by up to 6.6 units in the last place; libdevice's is off by 1.2, and is the one that XLA uses.
"""

import sys

import triton.language as tl
from triton.language.extra.cuda import libdevice

from rlscan.torch_triton.arrays import is_interpreted

where, abs, exp = tl.where, tl.abs, libdevice.exp

# The interpreter patches `triton.language` itself, and has no libdevice.
language = tl if is_interpreted() else sys.modules[__name__]
