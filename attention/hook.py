"""`Events`: the hook `at` of attention's equations, that of every operation with a plan of
attention and a tile. It is a name for annotations; `events.hook.Events` makes one.
"""

from typing import TypeAlias

from roundscope.attention.plans.plan import Plan
from roundscope.attention.tiles.tile import Tile
from roundscope.events import hook

Events: TypeAlias = hook.Events[Plan, Tile]
