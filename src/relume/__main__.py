"""`python -m relume` is `relume`."""

from relume.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
