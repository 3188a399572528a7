# SPDX-License-Identifier: Apache-2.0
"""python3 -m ckv_recorder merge OUT IN...

Make the parts that ranks recorded one trace, OUT. With one IN of several ranks: the trace of that rank's heads.
"""
import sys

from . import RecorderError, merge


def main() -> int:
    if len(sys.argv) < 4 or sys.argv[1] != "merge":
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        merge(sys.argv[2], sys.argv[3:])
    except (RecorderError, OSError) as error:
        print(f"ckv_recorder: {error}", file=sys.stderr)
        return 2
    return 0


sys.exit(main())
