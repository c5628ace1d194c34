"""`python -m impctl`: the same as the console script, nothing at import time."""

from impctl.cli.main import main

if __name__ == "__main__":
    main()
