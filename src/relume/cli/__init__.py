"""The command line: thin, over what the packages below do."""
