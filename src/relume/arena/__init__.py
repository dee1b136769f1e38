"""Host memory that the agent owns and its workers map: it outlives any of them.

Every word here has one writer (rule 1): the payload first, then an aligned eight-byte seal.
"""
