"""Where state lives when its holder dies: the mirror in the host's memory, and the disk."""
