"""`python -m rr.cli …`: the verbs of one run, which torchrun starts without what stands above."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
