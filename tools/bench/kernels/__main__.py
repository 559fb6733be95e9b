"""python -m faceter.tools.bench.kernels"""

import sys

from faceter.tools.bench.kernels.main import main

sys.exit(main())
