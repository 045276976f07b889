"""`python -m rrstudy.cli …`, the same as `rr …`."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
