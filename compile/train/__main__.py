"""`python -m tandem.compile.train`."""

import sys

from tandem.compile.train.cli import main

sys.exit(main())
