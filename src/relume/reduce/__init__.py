"""How leaves become one gradient: the fixed tree, the slots that leaves stand in, the blocks that are summed."""
